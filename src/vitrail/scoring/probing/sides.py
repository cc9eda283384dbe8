"""What a probe learns from and what it is judged on; which pictures are held out, and which are the shots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitrail.data.notes import counted, quoted
from vitrail.data.samples import SPLITS, UNSAID, Integers, Samples
from vitrail.data.source import Source
from vitrail.data.splits import make_splits, ranked, validation_rows
from vitrail.errors import DataError
from vitrail.pictures.sources import printable

FRACTION = 0.2  # of training that is held out to choose settings, or set aside where the data says no split
MOST_HELD = 20_000  # pictures; more would not choose better


@dataclass(frozen=True)
class Sides:
    """Rows of a source, labelled all."""

    learn: Integers
    judged: Integers
    held: NDArray[np.bool_]  # of what is learnt from: chooses settings
    split: str  # what the judged side is called
    unlabelled: int
    notes: tuple[str, ...] = ()

    def with_held_out(self, samples: Samples) -> Sides:
        """A fifth of each class of what is learnt from chooses settings; of each class one stays to be learnt."""
        fraction = round(min(FRACTION, MOST_HELD / len(self.learn)), 6)
        try:
            rows = validation_rows(samples, self.learn, fraction, 0)
        except DataError as error:
            few = f"{counted(len(self.learn), 'picture')} to learn from are too few to hold some out"
            raise DataError(
                f"{few}: add pictures, or take the method ridge with one λ, which chooses nothing"
            ) from error
        return replace(self, held=np.isin(self.learn, rows, assume_unique=True))

    def with_shots_alone(self, samples: Samples, shots: int, seeds: int) -> Sides:
        """Less to compute: of what is learnt from, the pictures that can be drawn, with some in reserve for those that
        cannot be read, and those that are held out."""
        wanted = self.held.copy()
        for rows in (self.learn, self.learn[~self.held]) if self.held.any() else (self.learn,):
            draws = Draws(samples, rows)
            for seed in range(seeds):
                drawn = rows[draws.places(shots + max(2, shots // 5), seed)]
                wanted |= np.isin(self.learn, drawn, assume_unique=True)
        return replace(self, learn=self.learn[wanted], held=self.held[wanted])


def make_sides(source: Source, split: str | None, examples: int | None) -> Sides:
    """Judged on val if the source says one, else on test, else on a fifth that is set aside by name. A source with both
    is learnt from train alone where val judges, and from train and val where test does.

    examples: learn from so many pictures only, the first in the order of hashes of their names.
    """
    samples = source.samples
    _refuse(source)
    said = {name: np.flatnonzero(samples.splits == SPLITS.index(name)) for name in ("val", "test")}
    if split is None:
        split = next((name for name in ("val", "test") if len(said[name])), None)
    if split is None:
        made = make_splits(source, fraction=FRACTION)
        learn, judged, called = made.train.rows, made.val.rows, "a fifth that was set aside"
    elif split not in said or not len(said[split]):
        there = [name for name in said if len(said[name])]
        remedy = f"it has {', '.join(there)}" if there else "leave --split out, and a fifth is set aside"
        raise DataError(f"{printable(source.name)} has no split {split!r} to be judged on: {remedy}")
    else:
        learn, judged, called = make_splits(source, fraction=0).train.rows, said[split], split
        if split == "test":
            learn = np.sort(np.concatenate([learn, said["val"]]))
    bare = int((samples.labels[learn] == UNSAID).sum() + (samples.labels[judged] == UNSAID).sum())
    learn, judged = (rows[samples.labels[rows] != UNSAID] for rows in (learn, judged))
    for rows, what in ((learn, "to learn from"), (judged, "to be judged on")):
        if not len(rows):
            raise DataError(f"{printable(source.name)} has no picture with a label {what}: give labels to both sides")
    if examples is not None and examples < len(learn):
        learn = learn[np.sort(np.argsort(ranked(samples, learn, 0))[:examples])]
    present = np.flatnonzero(samples.counts(learn))
    if len(present) < 2:
        only = quoted([samples.classes[int(k)] for k in present])
        raise DataError(f"there is one class to learn, {only}: a probe tells two or more apart")
    unlearnt = np.flatnonzero((samples.counts(judged) > 0) & (samples.counts(learn) == 0))
    notes = [f"{quoted([samples.classes[int(k)] for k in unlearnt])} cannot be learnt: wrong"] if len(unlearnt) else []
    return Sides(learn, judged, np.zeros(len(learn), bool), called, bare, tuple(notes))


def _refuse(source: Source) -> None:
    name = printable(source.name)
    if source.samples.multi_label:
        raise DataError(f"the pictures of {name} have several labels: a probe needs one for each")
    if not len(source.classes) or not source.samples.counts().any():
        raise DataError(f"{name} has no labels: a probe needs them; give class folders, or a table with labels")


class Draws:
    """The shots of each class, a function of the seed and of the names alone: fewer shots are among the more, and other
    pictures change nothing but their own places."""

    def __init__(self, samples: Samples, rows: Integers, *, spared: int = 0) -> None:
        """rows: to draw from; spared: how many others were held out, to be mentioned."""
        self.samples = samples
        self.rows = rows
        self.spared = spared
        self.labels = samples.labels[rows].astype(np.int64)
        counts = samples.counts(rows)
        self.present = np.flatnonzero(counts)
        self.smallest = int(self.present[np.argmin(counts[self.present])])
        self.most = int(counts[self.smallest])  # shots that every class has

    def refuse(self, shots: Sequence[int]) -> None:
        """Says no to more shots than a class has pictures."""
        if max(shots, default=0) > self.most:
            name = quoted([self.samples.classes[self.smallest]])
            other = f" beside the {self.spared:,} of all classes that are held out" if self.spared else ""
            has = f"class {name} has {counted(self.most, 'picture')} to learn from{other}"
            raise DataError(
                f"{has}, fewer than {max(shots)} shots: "
                f"choose --shots up to {self.most}, or add pictures, or leave the class out"
            )

    def places(self, shots: int, seed: int) -> Integers:
        """Where in `rows` the shots are, class by class."""
        order = np.lexsort((ranked(self.samples, self.rows, seed), self.labels))
        labels = self.labels[order]
        first = np.searchsorted(labels, labels)
        return order[np.arange(len(order)) - first < shots]
