"""Writes any source as tar shards with their index."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.notes import write_bad
from vitrail.data.pack_pictures import Packed, Packer, packed
from vitrail.data.samples import SPLITS, UNSAID, Integers, Samples
from vitrail.data.shard_files import is_remote, local_shard
from vitrail.data.shard_index import NAME, Index
from vitrail.data.shard_labels import Matched
from vitrail.data.shard_scan import OURS
from vitrail.data.shard_writer import ShardWriter, keys_of
from vitrail.data.source import Source
from vitrail.data.splits import ranked
from vitrail.data.workers import processors
from vitrail.errors import DataError, VitrailError
from vitrail.pictures.sources import printable
from vitrail.whole import written_whole

Progress = Callable[[int, int], None]  # (pictures done, of how many)

BAD = "bad_images.csv"
REPORT = "pack.json"
_UNSPLIT = "all"  # begins the names of shards of pictures that are in no split


@dataclass(frozen=True)
class PackReport:
    """What was written."""

    dest: Path
    pictures: int
    shards: int
    bytes: int
    classes: int
    splits: dict[str, int]
    resized: int
    bad: int  # pictures left out; `bad_images.csv` in `dest` names them
    seed: int
    resize: int | None
    fit: str  # what resizing does to the shape
    quality: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"dest": str(self.dest)}


@dataclass
class _Written:
    """Where the pictures have gone, in the order in which they were written."""

    rows: list[int] = field(default_factory=list)
    shard: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    resized: int = 0
    bad: dict[str, str] = field(default_factory=dict)  # name: reason


def pack(
    data: Source | str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    resize: int | None = None,
    quality: int = 95,
    shard_mb: float = 256,
    seed: int = 0,
    workers: int | None = None,
    strict: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> PackReport:
    """Writes the pictures of a source to tar shards of about `shard_mb` million bytes in the WebDataset layout, with
    their index, into a new folder. The same source and seed give the same bytes, whatever the number of workers.

    Files are copied byte for byte. With `resize`, a picture whose shorter side is longer than that is made smaller
    with antialiasing, upright, nothing cropped: JPEG and other lossy files become JPEG of this `quality`, the others
    PNG. The pictures of a split are shuffled by `seed`, so that any stretch of a shard mixes the classes. An unreadable
    picture is left out and named in `bad_images.csv`; with `strict` it stops everything. `options` go to
    `open_source`.
    """
    _check(resize, quality, shard_mb, workers)
    if is_remote(os.fsdecode(dest)):
        raise DataError(
            f"{printable(dest)}: shards are written to a local folder; write them here, then copy them there"
        )
    target = Path(dest)
    if target.exists():
        raise DataError(f"{printable(target)} is already there: choose another name, or remove it")
    source = data if isinstance(data, Source) else _opened(data, options)
    workers = processors() if workers is None else workers
    packer = Packer(source.reader, source.samples.names, resize, quality)
    try:
        with written_whole(target) as folder:
            folder.mkdir()
            writer = ShardWriter(folder, int(shard_mb * 1e6))
            try:
                written = _write_all(source.samples, packer, writer, seed, workers, strict, progress)
                writer.close()
            finally:
                writer.abandon()
            report = _report(source, target, written, writer, seed, resize, quality)
            _write_beside(folder, source.samples, written, writer, report)
    except OSError as error:
        cause = printable(error.strerror or error)
        raise DataError(f"{printable(target)} cannot be written ({cause}); nothing is left of it; make room") from error
    return report


def _check(resize: int | None, quality: int, shard_mb: float, workers: int | None) -> None:
    if resize is not None and resize < 1:
        raise VitrailError(f"resize is {resize}: give the length of the shorter side in pixels")
    if not 1 <= quality <= 100:
        raise VitrailError(f"quality is {quality}: JPEG knows 1 to 100")
    if shard_mb <= 0 or (workers is not None and workers < 0):
        raise VitrailError("the size of a shard must be above 0, and the number of workers not below")


def _opened(data: str | os.PathLike[str], options: dict[str, Any]) -> Source:
    from vitrail.data.opening import open_source

    return open_source(data, **options)


def _write_all(
    samples: Samples,
    packer: Packer,
    writer: ShardWriter,
    seed: int,
    workers: int,
    strict: bool,
    progress: Progress | None,
) -> _Written:
    keys = keys_of(samples.names)
    written = _Written()
    rows = _in_written_order(samples, seed)
    split = None
    with closing(packed(packer, rows, workers)) as pictures:
        for number, one in enumerate(pictures):
            if one.reason:
                if strict:
                    raise DataError(f"{one.reason} (strict: nothing was written)")
                written.bad[samples.names[one.row]] = one.reason
            else:
                if samples.splits[one.row] != split:
                    split = samples.splits[one.row]
                    writer.begin(_UNSPLIT if split == UNSAID else SPLITS[split])
                _write_one(samples, keys[one.row], one, writer, written)
            if progress:
                progress(number + 1, len(rows))
    if not written.rows:
        raise DataError(f"none of {len(rows)} pictures could be read; the first: {next(iter(written.bad.values()))}")
    return written


def _write_one(samples: Samples, key: str, one: Packed, writer: ShardWriter, written: _Written) -> None:
    facts = json.dumps(_facts(samples, one.row)).encode()
    shard, offset = writer.add([(f"{key}.{one.suffix}", one.data), (f"{key}.json", facts)])
    written.rows.append(one.row)
    written.shard.append(shard)
    written.offset.append(offset)
    written.size.append(len(one.data))
    written.resized += one.resized


def _in_written_order(samples: Samples, seed: int) -> Integers:
    """One split after the other, each shuffled: by a hash of the name, so that a new picture moves no other."""
    parts = [np.flatnonzero(samples.splits == split) for split in (*range(len(SPLITS)), UNSAID)]
    return np.concatenate([part[np.argsort(ranked(samples, part, seed), kind="stable")] for part in parts])


def _facts(samples: Samples, row: int) -> dict[str, Any]:
    """What stands in a sample's JSON."""
    labels = [samples.classes[label] for label in samples.labels_of(row)]
    said = samples.splits[row]
    facts: dict[str, Any] = {"labels": labels} if samples.multi_label else {"label": labels[0] if labels else None}
    facts |= {"name": samples.names[row], "split": None if said == UNSAID else SPLITS[said]}
    if samples.groups is not None:
        facts["group"] = int(samples.groups[row])
    if samples.weights is not None:
        facts["weight"] = float(samples.weights[row])
    return facts | {OURS: 1}


def _report(
    source: Source,
    target: Path,
    written: _Written,
    writer: ShardWriter,
    seed: int,
    resize: int | None,
    quality: int,
) -> PackReport:
    splits = source.samples.splits[written.rows]
    counts = {name: int(np.sum(splits == number)) for number, name in [*enumerate(SPLITS), (UNSAID, _UNSPLIT)]}
    return PackReport(
        dest=target,
        pictures=len(written.rows),
        shards=len(writer.paths),
        bytes=sum(path.stat().st_size for path in writer.paths),
        classes=len(source.classes),
        splits={name: count for name, count in counts.items() if count},
        resized=written.resized,
        bad=len(written.bad),
        seed=seed,
        resize=resize,
        fit="copied as it is" if resize is None else "shorter side, aspect kept, nothing cropped, never enlarged",
        quality=quality,
    )


def _write_beside(folder: Path, samples: Samples, written: _Written, writer: ShardWriter, report: PackReport) -> None:
    """The names of the classes, the index, the report, and the list of what was left out."""
    classes = json.dumps(samples.classes, indent=0)
    (folder / "classes.json").write_text(classes)
    plain = {name: value for name, value in report.to_json().items() if name != "dest"}
    (folder / REPORT).write_text(json.dumps(plain, indent=2) + "\n")
    if written.bad:
        write_bad(written.bad, folder / BAD)
    order = np.argsort(written.rows)
    by_name = sorted(range(len(writer.paths)), key=lambda number: writer.paths[number].name)
    files = [local_shard(str(writer.paths[number])) for number in by_name]
    index = Index(
        samples=_rows_of(samples, np.array(written.rows)[order]),
        shard=np.argsort(by_name).astype(np.int32)[written.shard][order],
        offset=np.array(written.offset, np.int64)[order],
        size=np.array(written.size, np.int64)[order],
        files=tuple(files),
        classes_stamp=hashlib.sha256(classes.encode()).hexdigest(),
    )
    index.write(folder / NAME)


def _rows_of(samples: Samples, rows: Integers) -> Samples:
    lists = None
    if samples.label_list is not None and samples.label_ends is not None:
        lists = samples.label_list, samples.label_ends
    return Samples(
        names=samples.names.take(rows),
        classes=samples.classes,
        splits=samples.splits[rows],
        groups=None if samples.groups is None else samples.groups[rows],
        weights=None if samples.weights is None else samples.weights[rows],
        **Matched(samples.classes, samples.labels, lists).columns(rows),
    )
