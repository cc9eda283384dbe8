"""`vitrail evaluate`: how good a model is."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

import vitrail
from vitrail.commands.data_flags import NO_FLAGS, Data
from vitrail.commands.printing import Json, print_assumed, print_json
from vitrail.commands.progress import shown_progress
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.data.source import Source, Subset
    from vitrail.scoring.report import Report

Flag = Annotated[bool, Parameter(negative="")]


def evaluate(
    model: str,
    data: str,
    /,
    *,
    split: Literal["train", "val", "test", "all"] | None = None,
    flip: Flag = False,
    real: Path | None = None,
    img_size: int | None = None,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    ignore_unknown: Flag = False,
    in_order: Flag = False,
    strict: Flag = False,
    batch_size: int = 64,
    device: str | None = None,
    workers: int | None = None,
    out: Path | None = None,
    overwrite: Flag = False,
    opening: Data = NO_FLAGS,
    as_json: Json = False,
) -> int:
    """Score a model: loss, top-1 and top-5, each class, confusion, calibration; mAP where pictures have several labels.

    Example: vitrail evaluate my-model/ photos/ --split val --out report/

    On several GPUs: torchrun --nproc-per-node 8 -m vitrail evaluate …, with the same scores.

    Parameters
    ----------
    model
        a model folder, a checkpoint file of any known family, or hf:owner/name
    data
        a folder, a table, a named set, shards
    split
        by default val if the data says one, else test, else all; of a run's own data the part that it held out
    flip
        the mean of the probabilities of each picture and its mirror image
    real
        real.json, ImageNet's reassessed labels: an accuracy by them too
    img_size
        read the pictures at another size; the positions are resized
    precision
        in which the model runs; scores are computed in float64
    ignore_unknown
        leave out pictures of classes that the model does not know
    in_order
        match the data's classes to the model's outputs by position, not by name
    strict
        fail at a picture that cannot be read
    batch_size
        pictures that go through the model at a time
    device
        cpu, cuda, cuda:1, mps; by default the fastest there is
    workers
        processes that read pictures; by default, one for each processor
    out
        a folder to make, with report.json and tables: classes, confusion, mistakes
    overwrite
        replace the folder of an earlier report
    as_json
        print one JSON object
    """
    if batch_size < 1 or (workers is not None and workers < 0):
        raise VitrailError("--batch-size must be at least 1, and --workers at least 0")
    from vitrail.data.opening import open_source
    from vitrail.scoring.report import refuse
    from vitrail.training.held_out import held_out
    from vitrail.training.parallel import joined_world

    if out is not None:
        refuse(out, overwrite)
    with joined_world(device) as world:
        classifier = vitrail.load(model, **({} if img_size is None else {"img_size": img_size}))
        classifier.to(world.device)
        if world.is_first and not as_json:
            print_assumed(classifier)
        source = open_source(data, **opening.given())
        scored: Source | Subset = source
        own = held_out(model, source)
        if own and split in (None, "val"):
            scored, split = own, None
        elif own is not None and world.is_first:
            every = len(source.all())
            words = f"{model} had {every - len(own):,} of the {every:,} pictures of {data} to learn from"
            print(words, file=sys.stderr)
        with shown_progress("batches") if world.is_first else nullcontext() as progress:
            report = vitrail.evaluate(
                classifier,
                scored,
                name=model,
                split=split,
                batch_size=batch_size,
                workers=workers,
                flip=flip,
                real=real,
                precision=precision,
                strict=strict,
                ignore_unknown=ignore_unknown,
                in_order=in_order,
                share=world.share,
                progress=progress,
            )
        if world.is_first:
            _tell(report, out, overwrite, as_json)
    return 0


def _tell(report: Report, out: Path | None, overwrite: bool, as_json: bool) -> None:
    if out is not None:
        report.write(out, overwrite=overwrite)
    if as_json:
        print_json(report.to_json())
    else:
        print(report.text() + ("" if out is None else f"\n\nthe whole of it is in {out}"))
