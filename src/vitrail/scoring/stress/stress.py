"""`vitrail.stress`: how a model's accuracy falls as pictures are made worse, with several models side by side."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.classifier import Classifier, placed
from vitrail.data.notes import counted, quoted
from vitrail.data.source import Source, Subset
from vitrail.errors import DataError, VitrailError
from vitrail.model.fields import Pair, pair
from vitrail.scoring.evaluation import Judged, chosen_subset, judged_part
from vitrail.scoring.feature_cache import mark_of
from vitrail.scoring.matching import is_imagenet
from vitrail.scoring.stress.adversary import Attack
from vitrail.scoring.stress.baseline import ALEXNET, Baseline, read_baseline
from vitrail.scoring.stress.corruptions.severities import SMALL_BELOW
from vitrail.scoring.stress.plan import CLEAN, Plan, Trial, chosen_tests, shuffle_grids
from vitrail.scoring.stress.record import Record
from vitrail.scoring.stress.report import CSV, JSON, PLOT, TRIALS, Curve, Point, Stressed, StressReport
from vitrail.scoring.stress.subject import Outcome, Subject, limited
from vitrail.scoring.stress.ways import Ways

Model = Classifier | str | os.PathLike[str]
Progress = Callable[[int, int], None]

PICTURES = 1000

_FORGETFUL = "the data cannot tell whether its pictures have changed: a stress that is stopped begins anew"


def stress(
    models: Model | Sequence[Model] | Mapping[str, Model],
    data: Source | Subset | str | os.PathLike[str],
    *,
    only: str | Sequence[str] | None = None,
    pictures: int = PICTURES,
    seeds: int = 3,
    grid: int | Pair | None = None,
    eps: float = 1.0,
    steps: int = 10,
    baseline: str | os.PathLike[str] | None = None,
    split: str | None = None,
    img_size: int | Pair | None = None,
    batch_size: int = 64,
    device: str | torch.device | None = None,
    workers: int | None = None,
    ignore_unknown: bool = False,
    in_order: bool = False,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> StressReport:
    """Tries one model or several on the same pictures, made worse in the same ways. See `TESTS` for these.

    models: a classifier or whatever `vitrail.load` takes, several of them, or a mapping from names to them.
    data, split, ignore_unknown, in_order, options: as for `vitrail.evaluate`.
    only: names of tests; by default all.
    pictures: so many at most, drawn by their rows, the same for all models.
    seeds: how often a test is made in which chance plays a part.
    grid: panes that are blanked; by default the patches of the first ViT.
    eps, steps: of the adversarial patch: how far values from 0 to 1 may move, and in how many steps.
    baseline: what errors under corruptions are divided by: "alexnet" (published errors on ImageNet-C), a JSON file of
        errors, or one of the models; by default AlexNet for models of ImageNet, else the first of several models.
    out: a folder that gets the report, and keeps every trial: the same call again goes on where it was stopped.
    overwrite: forget the trials that the folder keeps.
    progress: called with (done, of how many) batches.
    """
    _check(pictures, seeds, eps, steps, batch_size)
    tests = chosen_tests(only)
    folder = None if out is None else _checked(Path(out))
    named = _named(models)
    whole = chosen_subset(data, split, options)
    classifiers = {name: placed(model, img_size, device) for name, model in named.items()}
    parts, known = _same_pictures(whole, classifiers, ignore_unknown, in_order)
    subset = limited(known, pictures)
    subjects = [
        Subject(name, classifiers[name], part._replace(subset=subset), batch_size, workers)
        for name, part in parts.items()
    ]
    divisor = _baseline(baseline, subjects) if "corruptions" in tests else None
    plan = Plan(tests, seeds, _grid(grid, subjects), Attack(eps, steps))
    if folder is not None:
        if overwrite and folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
    marks = {one.name: _mark(one) for one in subjects}
    record = Record(None if folder is None else folder / TRIALS)
    found = tuple(_Run(plan, record, subjects, marks, progress).all())
    if isinstance(divisor, str):
        errors = next(one.corruption_errors for one in found if one.name == divisor)
        divisor = Baseline(divisor, errors)
    report = StressReport(
        models=found,
        data=subset.source.name,
        split=subset.name,
        pictures=len(subset),
        available=len(known),
        seeds=seeds,
        tests=tests,
        grid=plan.grid,
        attack=plan.attack.describe(),
        baseline=divisor,
        notes=(*_notes(subjects, plan), *([_FORGETFUL] if folder is not None and None in marks.values() else [])),
    )
    if folder is not None:
        report.write(folder)
    return report


def _check(pictures: int, seeds: int, eps: float, steps: int, batch_size: int) -> None:
    if min(pictures, seeds, steps, batch_size) < 1:
        raise VitrailError("pictures, seeds, steps and batch_size must be at least 1")
    if not 0 < eps <= 1:
        raise VitrailError(f"eps={eps:g} must be above 0 and at most 1: values of pixels are from 0 to 1")


def _checked(folder: Path) -> Path:
    """The folder of the report: a new one, or one of an earlier stress, whose trials count."""
    ours = {JSON, CSV, PLOT, TRIALS}
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()}.difference(ours)):
        raise VitrailError(f"{folder} holds more than an earlier stress: choose another folder")
    return folder


def _named(models: Model | Sequence[Model] | Mapping[str, Model]) -> dict[str, Model]:
    if isinstance(models, Mapping):
        named = {str(name): model for name, model in models.items()}
    else:
        each = [models] if isinstance(models, Classifier | str | os.PathLike) else list(models)
        names = [f"model {n}" if isinstance(one, Classifier) else os.fspath(one) for n, one in enumerate(each, 1)]
        if len(set(names)) < len(names):
            raise VitrailError("a model is given twice: give each once, or a mapping from names to models")
        named = dict(zip(names, each, strict=True))
    if not named:
        raise VitrailError("there is no model to stress: give at least one")
    return named


def _same_pictures(
    subset: Subset, classifiers: Mapping[str, Classifier], ignore_unknown: bool, in_order: bool
) -> tuple[dict[str, Judged], Subset]:
    """What each model makes of the classes, and the pictures of those that all of them know."""
    parts = {}
    for name, classifier in classifiers.items():
        if not classifier.model.config.num_classes:
            raise VitrailError(f"{name} is an encoder without a head: there is no answer that could be wrong")
        parts[name] = judged_part(subset, classifier.classes, ignore_unknown, in_order)
        if parts[name].multi_label:
            raise DataError("a stress needs one label to a picture: this data has several")
    common = subset.rows
    for part in parts.values():
        common = np.intersect1d(common, part.subset.rows)
    if not len(common):
        raise DataError(f"there is no picture in {subset.source.name} whose class all models know")
    return parts, Subset(subset.source, subset.name, common)


def _grid(grid: int | Pair | None, subjects: Sequence[Subject]) -> Pair:
    size = min(min(one.picture_size) for one in subjects)
    if grid is not None:
        panes = pair("grid", grid)
        if not 1 <= min(panes) <= max(panes) <= size:
            raise VitrailError(f"grid={grid} must be from 1 to {size}, the pixels of a side")
        return panes
    own = next((one.own_grid for one in subjects if one.own_grid is not None), None)
    return own or ((8, 8) if size < SMALL_BELOW else (14, 14))


def _baseline(baseline: str | os.PathLike[str] | None, subjects: Sequence[Subject]) -> Baseline | str | None:
    """Errors, or the name of the model whose errors they will be."""
    if baseline is None:
        if all(is_imagenet(one.classifier.classes) for one in subjects):
            return Baseline("AlexNet", ALEXNET)
        return subjects[0].name if len(subjects) > 1 else None
    word = os.fspath(baseline)
    if word.lower() == "alexnet":
        return Baseline("AlexNet", ALEXNET)
    if word in [one.name for one in subjects]:
        return word
    if word.endswith(".json"):
        return read_baseline(Path(word))
    raise VitrailError(f"baseline {word!r} is neither alexnet, nor a .json file of errors, nor one of the models")


def _notes(subjects: Sequence[Subject], plan: Plan) -> Iterable[str]:
    if subjects[0].judged.unlabelled:
        yield f"without a label, left out: {counted(subjects[0].judged.unlabelled, 'picture')}"
    for one in subjects:
        if ignored := one.judged.ignored:
            pictures = counted(sum(ignored.values()), "picture")
            yield f"of classes that {one.name} does not know, left out: {pictures} of {quoted(ignored)}"
        if "occlusion" in plan.tests and one.own_grid is None:
            yield f"{one.name} has no sequence from which patches could be removed: they are blanked alone"
        if "shuffle" in plan.tests and not shuffle_grids(one.picture_size):
            height, width = one.picture_size
            yield f"{one.name} reads {height} x {width} pixels, which no grid of 2 to 14 panes divides: not shuffled"


class _Run:
    """All trials of all models."""

    def __init__(
        self,
        plan: Plan,
        record: Record,
        subjects: Sequence[Subject],
        marks: Mapping[str, str | None],
        progress: Progress | None,
    ) -> None:
        self.plan = plan
        self.record = record
        self.marks = marks
        self.progress = progress
        self.trials = {one.name: list(plan.trials(one.picture_size, one.own_grid is not None)) for one in subjects}
        self.subjects = subjects
        self.total = sum(len(self.trials[one.name]) * len(one) for one in subjects)
        self.done = 0

    def all(self) -> Iterable[Stressed]:
        for subject in self.subjects:
            yield self._one(subject)

    def _one(self, subject: Subject) -> Stressed:
        mark, ways = self.marks[subject.name], Ways(subject, self.plan)
        outcomes = {trial: self._outcome(subject, ways, mark, trial) for trial in self.trials[subject.name]}
        clean = outcomes.pop(CLEAN)
        return Stressed(
            name=subject.name,
            clean=clean,
            curves=tuple(_curves(outcomes)),
            preprocessing=subject.classifier.preprocessing.describe(),
            size=subject.picture_size,
            grid=subject.own_grid,
            skipped=tuple(subject.bad),
        )

    def _outcome(self, subject: Subject, ways: Ways, mark: str | None, trial: Trial) -> Outcome:
        facts = self.plan.facts(trial.test)
        known = None if mark is None else self.record.get(mark, trial, facts)
        # where pictures could not be read, one pass finds their names again
        whole = known is not None and (trial != CLEAN or known.pictures == len(subject.subset))
        if known is not None and whole:
            self._advance(len(subject))
            return known
        outcome = ways.run(trial, lambda: self._advance(1))
        if mark is not None:
            self.record.add(mark, trial, facts, outcome)
        return outcome

    def _advance(self, batches: int) -> None:
        self.done += batches
        if self.progress is not None:
            self.progress(self.done, self.total)


def _mark(subject: Subject) -> str | None:
    """What the outcomes are of: weights, pictures, labels. None where the source cannot tell whether they changed."""
    labels = subject.judged.outputs[subject.subset.labels]
    digest = hashlib.blake2b(labels.tobytes() + subject.subset.rows.tobytes(), digest_size=16).hexdigest()
    return mark_of(subject.subset, subject.classifier, {"labels": digest})


def _curves(outcomes: Mapping[Trial, Outcome]) -> Iterable[Curve]:
    """Trials by test and series, and in these by level."""
    grouped: dict[tuple[str, str], dict[float, list[Outcome]]] = {}
    for trial, outcome in outcomes.items():
        grouped.setdefault((trial.test, trial.series), {}).setdefault(trial.level, []).append(outcome)
    for (test, series), levels in grouped.items():
        yield Curve(test, series, tuple(Point(level, tuple(some)) for level, some in levels.items()))
