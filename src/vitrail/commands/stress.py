"""`vitrail stress`: how a model's accuracy falls as pictures are made worse."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

import vitrail
from vitrail.commands.data_flags import NO_FLAGS, Data
from vitrail.commands.printing import Json, print_assumed, print_json
from vitrail.commands.progress import shown_progress
from vitrail.errors import VitrailError

Flag = Annotated[bool, Parameter(negative="")]


def stress(
    models: Annotated[tuple[str, ...], Parameter(negative_iterable="")],
    /,
    *,
    data: str | None = None,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True, negative_iterable="")] = None,
    pictures: int = 1000,
    seeds: int = 3,
    grid: int | None = None,
    eps: float = 1.0,
    steps: int = 10,
    baseline: str | None = None,
    split: Literal["train", "val", "test", "all"] | None = None,
    img_size: int | None = None,
    ignore_unknown: Flag = False,
    in_order: Flag = False,
    batch_size: int = 64,
    device: str | None = None,
    workers: int | None = None,
    out: Path | None = None,
    overwrite: Flag = False,
    opening: Data = NO_FLAGS,
    as_json: Json = False,
) -> int:
    """See where models break: patches dropped or shuffled, corruptions, another style, an adversarial patch, turns.

    Example: vitrail stress my-model/ photos/ --out stress/

    Example: vitrail stress vit/ resnet/ --data photos/ --only occlusion,shuffle --pictures 500 --out stress/

    With --out, the same command goes on where it was stopped. docs/stress.md explains the tests.

    Parameters
    ----------
    models
        one or several: model folders, runs, checkpoint files of any known family, hf:owner/name; without --data,
        the last word is the data
    data
        a folder, a table, a named set, shards
    only
        some of occlusion, salient, shuffle, corruptions, style, patch, rotation, scale
    pictures
        at most so many, drawn by chance, the same for all models
    seeds
        how often a test is made in which chance plays a part
    grid
        panes on each side that are blanked; by default the patches of the first ViT
    eps
        adversarial patch: how far values of pixels, from 0 to 1, may move
    steps
        adversarial patch: steps of the projected gradient
    baseline
        whose errors those under corruptions are divided by: alexnet (as published), a .json file of errors, or one of
        the models
    split
        by default val if the data says one, else test, else all
    img_size
        read the pictures at another size; the positions are resized
    ignore_unknown
        leave out pictures of classes that a model does not know
    in_order
        match the data's classes to the models' outputs by position, not by name
    batch_size
        pictures that go through a model at a time
    device
        cpu, cuda, cuda:1, mps; by default the fastest there is
    workers
        processes that read pictures; by default, one for each processor
    out
        a folder for stress.json, stress.csv, stress.png; it keeps every trial
    overwrite
        forget the trials that the folder keeps
    as_json
        print one JSON object
    """
    if workers is not None and workers < 0:
        raise VitrailError("--workers must be at least 0")
    names, address = (list(models), data) if data is not None else (list(models[:-1]), models[-1])
    if not names:
        raise VitrailError("give a model and data: vitrail stress MODEL DATA, or MODEL MODEL … --data DATA")
    from vitrail.model.devices import choose_device
    from vitrail.scoring.stress.plan import chosen_tests

    chosen_tests(only)
    place = choose_device(device)
    size = {} if img_size is None else {"img_size": img_size}
    if len(set(names)) < len(names):
        raise VitrailError("a model is given twice: give each once")
    classifiers = {name: vitrail.load(name, **size).to(place) for name in names}
    if not as_json:
        for classifier in classifiers.values():
            print_assumed(classifier)
    with _promise(out), shown_progress("batches") as progress:
        report = vitrail.stress(
            classifiers,
            address,
            only=only,
            pictures=pictures,
            seeds=seeds,
            grid=grid,
            eps=eps,
            steps=steps,
            baseline=baseline,
            split=split,
            batch_size=batch_size,
            workers=workers,
            ignore_unknown=ignore_unknown,
            in_order=in_order,
            out=out,
            overwrite=overwrite,
            progress=progress,
            **opening.given(),
        )
    if as_json:
        print_json(report.to_json())
    else:
        print(report.text() + ("" if out is None else f"\n\nthe plot and all figures are in {out}"))
    return 0


@contextmanager
def _promise(out: Path | None) -> Iterator[None]:
    """Whoever stops it is told that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            print(f"what is done is kept in {out}: the same command goes on", file=sys.stderr)
        raise
