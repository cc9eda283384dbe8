"""`vitrail.probe`: how good a model's features are."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from vitrail.classifier import Classifier, placed
from vitrail.data.opening import open_source
from vitrail.data.source import Source
from vitrail.errors import VitrailError
from vitrail.scoring.features import Extractor, Kind
from vitrail.scoring.probing.knn import KS, TEMPERATURE
from vitrail.scoring.probing.methods import Method, chosen_names, make_methods
from vitrail.scoring.probing.problem import Progress, gather
from vitrail.scoring.probing.report import ProbeReport
from vitrail.scoring.probing.ridge import L2
from vitrail.scoring.probing.runs import Runs, Shots
from vitrail.scoring.probing.sides import Draws, Sides, make_sides

SEEDS = 3


def probe(
    model: Classifier | str | os.PathLike[str],
    data: Source | str | os.PathLike[str],
    *,
    method: str | Sequence[str] = "all",
    shots: Sequence[Shots] | None = None,
    seeds: int = SEEDS,
    l2: float | Literal["sweep"] = L2,
    ks: Sequence[int] = KS,
    temperature: float = TEMPERATURE,
    features: Kind = "pooled",
    blocks: int = 1,
    split: str | None = None,
    examples: int | None = None,
    batch_size: int = 64,
    device: str | torch.device | None = None,
    workers: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    precision: str = "fp32",
    cache: Path | bool = True,
    name: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> ProbeReport:
    """Fits simple classifiers on a model's features, and scores them on pictures they have not seen.

    model: a classifier, or whatever `vitrail.load` takes; a head is not needed and not used.
    data: a source, or whatever `vitrail.data.open_source` takes; `options` go there too.
    method: ridge, knn, lbfgs, sgd; linear (the latter two), all; or several of them.
    shots: pictures of each class to learn from, and `all`; by default 1, 5, 10, 25 and all, less what the smallest
        class does not have.
    seeds: how many draws of the shots, numbered from 0.
    l2: λ of the ridge; `sweep` tries 2^-10 to 2^20.
    ks, temperature: neighbours to try, and the temperature of their votes.
    features, blocks: see `Extractor`.
    split: val or test; by default val if the source says one, else test, else a fifth is set aside.
    examples: learn from so many pictures only.
    cache: the folder that keeps features, True for the user's own, False for none.

    Where there is a choice of settings, a fifth of what is learnt from is held out to make it; what is reported is
    never looked at before. With `all`, the chosen setting then learns from all of it.
    """
    _refuse(shots, seeds, examples, batch_size)
    source = data if isinstance(data, Source) else open_source(data, **options)
    sides = make_sides(source, split, examples)
    classifier = placed(model, img_size, device)
    place = next(classifier.model.parameters()).device
    methods = make_methods(chosen_names(method), place, l2=l2, ks=ks, temperature=temperature)
    sides = _thinned(source, sides, methods, shots, seeds)
    extractor = Extractor(classifier, features, blocks, precision)
    start = time.perf_counter()
    how = {"batch_size": batch_size, "workers": workers, "cache": cache}
    problem = gather(source, sides, extractor, progress=progress, **how)
    seconds = time.perf_counter() - start
    runs = Runs(problem, methods, seeds, progress)
    numbers, notes = runs.shots(shots)
    figures = runs.figures(numbers)
    return ProbeReport(
        model=name or (repr(model) if isinstance(model, Classifier) else os.fspath(model)),
        data=source.name,
        split=sides.split,
        features=extractor.describe(),
        width=problem.learn.shape[1],
        classes=problem.classes,
        learnt=len(problem.learn),
        judged=len(problem.judged),
        held=len(runs.held_labels),
        seeds=seeds,
        figures=tuple(figures),
        preprocessing=classifier.preprocessing.describe(),
        precision=precision,
        skipped=problem.bad,
        unlabelled=sides.unlabelled,
        notes=(*sides.notes, *problem.notes, *notes),
        feature_seconds=seconds,
        kept=problem.kept,
    )


def _refuse(shots: Sequence[Shots] | None, seeds: int, examples: int | None, batch_size: int) -> None:
    for one in shots or ():
        if one != "all" and (not isinstance(one, int) or one < 1):
            raise VitrailError(f"shots are numbers from 1 up, or 'all', not {one!r}")
    if shots is not None and not shots:
        raise VitrailError("there are no shots: give numbers from 1 up, or 'all'")
    if seeds < 1 or batch_size < 1 or (examples is not None and examples < 1):
        raise VitrailError("seeds, examples and batch_size must be at least 1")


def _thinned(
    source: Source, sides: Sides, methods: Sequence[Method], shots: Sequence[Shots] | None, seeds: int
) -> Sides:
    """Holds out what chooses settings, and refuses shots that are not there, before the long work."""
    if any(len(method.grid) > 1 for method in methods):
        sides = sides.with_held_out(source.samples)
    if shots is None:
        return sides
    numbers = [one for one in shots if one != "all"]
    free = sides.learn[~sides.held]
    Draws(source.samples, free, spared=len(sides.learn) - len(free)).refuse(numbers)
    return sides if "all" in shots else sides.with_shots_alone(source.samples, max(numbers), seeds)
