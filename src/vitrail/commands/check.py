"""`vitrail check`: what is wrong with pictures and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import vitrail
from vitrail.commands.data_flags import NO_FLAGS, Data
from vitrail.commands.printing import Json, print_json
from vitrail.commands.progress import shown_stages
from vitrail.errors import VitrailError

Flag = Annotated[bool, Parameter(negative="")]


def check(
    data: str,
    /,
    *,
    model: str | None = None,
    out: Path = Path("check"),
    overwrite: Flag = False,
    index: Flag = False,
    strict: Flag = False,
    device: str | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    seed: int = 0,
    opening: Data = NO_FLAGS,
    as_json: Json = False,
) -> int:
    """Find unreadable files, duplicates, pictures in two splits, and with a model labels that are likely wrong.

    Example: vitrail check photos/ --model my-model/

    With --group-by, pictures of one group judge each other's labels no more than duplicates do.

    Parameters
    ----------
    data
        a folder, a table, a named set, shards
    model
        a model folder, a checkpoint file, or hf:owner/name: look for wrong labels with its features
    out
        the folder to make, with check.html and tables
    overwrite
        replace the folder of an earlier check
    index
        make the index of tar shards anew first
    strict
        exit with 1 where anything was found
    device
        for the model: cpu, cuda, cuda:1, mps; by default the fastest there is
    batch_size
        pictures that go through the model at a time
    workers
        processes; by default, one for each processor
    seed
        of the folds in which labels are judged
    as_json
        print one JSON object
    """
    if batch_size < 1 or (workers is not None and workers < 0):
        raise VitrailError("--batch-size must be at least 1, and --workers at least 0")
    chosen = None
    if model is not None:
        from vitrail.model.devices import choose_device

        chosen = str(choose_device(device))
    with shown_stages() as progress:
        report = vitrail.check(
            data,
            model=model,
            out=out,
            overwrite=overwrite,
            index=index,
            device=chosen,
            batch_size=batch_size,
            workers=workers,
            seed=seed,
            progress=progress,
            **opening.given(),
        )
    if as_json:
        print_json({**report.to_json(), "page": str(out / "check.html")})
    else:
        from vitrail.checking.summary import summary

        print("\n".join([*summary(report), "", f"look at {out / 'check.html'}; the full lists are beside it"]))
    return int(strict and report.found)
