"""`vitrail pack`: any source as tar shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import vitrail
from vitrail.commands.data_flags import NO_FLAGS, Data
from vitrail.commands.printing import Json, print_json
from vitrail.commands.progress import shown_progress

Flag = Annotated[bool, Parameter(negative="")]


def pack(
    data: str,
    dest: Path,
    /,
    *,
    resize: int | None = None,
    quality: int = 95,
    shard_mb: float = 256,
    seed: int = 0,
    workers: int | None = None,
    strict: Flag = False,
    opening: Data = NO_FLAGS,
    as_json: Json = False,
) -> int:
    """Write pictures as tar shards in the WebDataset layout, with their index: quick to read from any disk or bucket.

    Example: vitrail pack photos/ photos-256/ --resize 256

    Parameters
    ----------
    data
        a folder, a table, a named set, shards
    dest
        the folder to make
    resize
        make the shorter side this long, where it is longer; without it, files are copied byte for byte
    quality
        of the JPEGs that resizing writes
    shard_mb
        megabytes in a shard, about
    seed
        pictures are shuffled by it
    workers
        processes; by default, one for each processor
    strict
        stop at an unreadable picture, instead of leaving it out and naming it in bad_images.csv
    as_json
        print one JSON object
    """
    with shown_progress("pictures") as progress:
        report = vitrail.pack(
            data,
            dest,
            resize=resize,
            quality=quality,
            shard_mb=shard_mb,
            seed=seed,
            workers=workers,
            strict=strict,
            **opening.given(),
            progress=progress,
        )
    if as_json:
        print_json(report.to_json())
        return 0
    parts = ", ".join(f"{name} {count:,}" for name, count in report.splits.items())
    print(f"{dest}: {report.pictures:,} pictures ({parts}) of {report.classes:,} classes in {report.shards:,} shards")
    print(f"{report.bytes / 1e6:,.1f} MB, shuffled by seed {seed}; {report.resized:,} resized ({report.fit})")
    if report.bad:
        print(f"unreadable and left out: {report.bad:,}; {dest / 'bad_images.csv'} names them")
    return 0
