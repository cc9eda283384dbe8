"""Scores from what a model answered: accuracy, per class, calibration, confusion, the worst mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.samples import Integers

BINS = 15  # of equal width, for the expected calibration error

Floats = NDArray[np.float64]
NAN = float("nan")


class Answers(NamedTuple):
    """Columns of equal length, in the order of the samples."""

    samples: Integers
    label: Integers
    answer: Integers  # -1: none
    rank: Integers  # of the label, by its logit: 0 is the best
    loss: Floats
    confidence: Floats  # probability of the answer
    brier: Floats


class MultiAnswers(NamedTuple):
    """The same where a picture has any number of labels."""

    samples: Integers
    loss: Floats
    logits: Tensor  # (samples, classes), in any precision
    targets: Tensor  # (samples, classes), bool


@dataclass(frozen=True)
class ClassScores:
    """One class. What cannot be said is NaN: the recall of a class without pictures."""

    name: str
    support: int  # pictures that have this label
    answers: int  # pictures that were given it
    precision: float
    recall: float
    f1: float
    average_precision: float = NAN  # with several labels to a picture


class Bin(NamedTuple):
    """A point of the reliability curve: answers whose probability is in (lower, upper]."""

    lower: float
    upper: float
    pictures: int
    confidence: float  # their mean probability; NaN for none
    accuracy: float


class Mistake(NamedTuple):
    """A wrong answer."""

    sample: int
    labels: tuple[str, ...]
    answer: str
    probability: float


class Confused(NamedTuple):
    label: str
    answer: str
    pictures: int


@dataclass(frozen=True)
class Scores:
    """Averages over classes ("macro") are over those that have pictures. None: it is not defined for such labels."""

    pictures: int
    multi_label: bool
    loss: float  # mean cross-entropy; with several labels, binary, over pictures and classes
    macro_precision: float
    macro_recall: float
    macro_f1: float
    per_class: tuple[ClassScores, ...] = field(repr=False)
    mistakes: tuple[Mistake, ...] = field(repr=False)  # the most confident first
    unanswered: int = 0  # pictures whose logits were no numbers: they count as wrong
    # one label to a picture
    top1: float | None = None
    top5: float | None = None
    ece: float | None = None
    brier: float | None = None
    reliability: tuple[Bin, ...] = field(default=(), repr=False)
    cells: Integers | None = field(default=None, repr=False, compare=False)  # label, answer, pictures: none empty
    # several
    mean_average_precision: float | None = None
    micro_f1: float | None = None

    @property
    def score(self) -> float:
        """The one number by which models are compared, the higher the better: top-1, or mAP."""
        found = self.mean_average_precision if self.multi_label else self.top1
        return NAN if found is None else found

    def headline(self) -> dict[str, float]:
        """The few numbers that a line of a log has room for."""
        if self.multi_label:
            numbers = {"loss": self.loss, "map": self.mean_average_precision, "f1": self.macro_f1}
        else:
            numbers = {"loss": self.loss, "accuracy": self.top1, "top5": self.top5, "ece": self.ece}
        return {name: number for name, number in numbers.items() if number is not None}

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean recall of the classes that have pictures."""
        return None if self.multi_label else self.macro_recall

    def confusion(self) -> Integers:
        """Pictures by label (rows) and answer (columns); those without an answer are in no column."""
        matrix = np.zeros((len(self.per_class), len(self.per_class)), np.int64)
        if self.cells is not None:
            matrix[self.cells[:, 0], self.cells[:, 1]] = self.cells[:, 2]
        return matrix

    def confused(self, most: int | None = None) -> list[Confused]:
        """Which classes are taken for which others, the most frequent first."""
        if self.cells is None:
            return []
        wrong = self.cells[self.cells[:, 0] != self.cells[:, 1]]
        wrong = wrong[np.argsort(-wrong[:, 2], kind="stable")][:most]
        names = [one.name for one in self.per_class]
        return [Confused(names[label], names[answer], count) for label, answer, count in wrong.tolist()]


def score_single_label(rows: Answers, names: Sequence[str], mistakes: int) -> Scores:
    n, classes = len(rows.samples), len(names)
    right = rows.answer == rows.label
    answered = rows.answer >= 0
    per_class = _per_class(
        names,
        np.bincount(rows.label, minlength=classes),
        np.bincount(rows.answer[answered], minlength=classes),
        np.bincount(rows.label[right], minlength=classes),
    )
    reliability = _reliability(rows.confidence, right)
    gaps = [bin.pictures / n * abs(bin.accuracy - bin.confidence) for bin in reliability if bin.pictures]
    wrong = np.flatnonzero(answered & ~right)
    worst = wrong[np.lexsort((rows.samples[wrong], -rows.confidence[wrong]))][:mistakes]
    pairs, counts = np.unique(rows.label[answered] * classes + rows.answer[answered], return_counts=True)
    return Scores(
        pictures=n,
        multi_label=False,
        loss=float(rows.loss.mean()),
        **_macro(per_class),
        per_class=per_class,
        mistakes=tuple(
            Mistake(int(rows.samples[k]), (names[rows.label[k]],), names[rows.answer[k]], float(rows.confidence[k]))
            for k in worst
        ),
        unanswered=int(n - answered.sum()),
        top1=int(right.sum()) / n,
        top5=int((rows.rank < 5).sum()) / n,
        ece=sum(gaps) if answered.all() else NAN,
        brier=float(rows.brier.mean()),
        reliability=reliability,
        cells=np.stack([pairs // classes, pairs % classes, counts], axis=1),
    )


def _reliability(confidence: Floats, right: NDArray[np.bool_]) -> tuple[Bin, ...]:
    edges = np.linspace(0, 1, BINS + 1)
    known = ~np.isnan(confidence)
    confidence, right = confidence[known], right[known]
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, BINS - 1)
    bins = []
    for k in range(BINS):
        mine = place == k
        count = int(mine.sum())
        means = (float(confidence[mine].mean()), int(right[mine].sum()) / count) if count else (NAN, NAN)
        bins.append(Bin(float(edges[k]), float(edges[k + 1]), count, *means))
    return tuple(bins)


def score_multi_label(rows: MultiAnswers, names: Sequence[str], mistakes: int) -> Scores:
    """A class is answered where its probability is above one half."""
    classes = len(names)
    support, answers, hits = (np.zeros(classes, np.int64) for _ in range(3))
    precisions: list[float] = []
    found: list[tuple[float, int, int]] = []  # logit, row, class: wrong answers
    for k in range(classes):
        logits, truth = rows.logits[:, k].double().numpy(), rows.targets[:, k].numpy()
        said = logits > 0  # false for NaN
        support[k], answers[k], hits[k] = truth.sum(), said.sum(), (said & truth).sum()
        precisions.append(average_precision(truth, logits))
        wrong = np.flatnonzero(said & ~truth)
        wrong = wrong[np.argsort(-logits[wrong], kind="stable")][:mistakes]
        found += [(-float(logits[row]), int(row), k) for row in wrong]
    per_class = _per_class(names, support, answers, hits, precisions)
    both = int(support.sum() + answers.sum())
    return Scores(
        pictures=len(rows.samples),
        multi_label=True,
        loss=float(rows.loss.mean()),
        **_macro(per_class),
        per_class=per_class,
        mistakes=tuple(_multi_mistake(rows, names, *one) for one in sorted(found)[:mistakes]),
        unanswered=int(rows.logits.isnan().any(dim=1).sum()),
        mean_average_precision=_mean([p for p, count in zip(precisions, support, strict=True) if count]),
        micro_f1=2 * int(hits.sum()) / both if both else NAN,
    )


def _multi_mistake(rows: MultiAnswers, names: Sequence[str], minus_logit: float, row: int, answer: int) -> Mistake:
    labels = tuple(names[k] for k in rows.targets[row].nonzero()[:, 0].tolist())
    return Mistake(int(rows.samples[row]), labels, names[answer], float(1 / (1 + np.exp(minus_logit))))


def average_precision(truth: NDArray[np.bool_], logits: Floats) -> float:
    """The area under the steps of precision over recall; equal logits are one step. NaN comes last, and a class that
    no picture has gives NaN."""
    positives = int(truth.sum())
    if not positives:
        return NAN
    logits = np.where(np.isnan(logits), -np.inf, logits)
    order = np.argsort(-logits, kind="stable")
    ordered = logits[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    hits = np.cumsum(truth[order])[ends]
    return float((np.diff(hits, prepend=0) / positives * (hits / (ends + 1))).sum())


def _per_class(
    names: Sequence[str], support: Integers, answers: Integers, hits: Integers, precisions: Sequence[float] = ()
) -> tuple[ClassScores, ...]:
    """Precision without answers is 0, as long as there was something to answer."""
    found = []
    for k, (name, has, said, hit) in enumerate(
        zip(names, support.tolist(), answers.tolist(), hits.tolist(), strict=True)
    ):
        precision = hit / said if said else 0.0 if has else NAN
        f1 = 2 * hit / (has + said) if has + said else NAN
        area = precisions[k] if precisions else NAN
        found.append(ClassScores(name, has, said, precision, hit / has if has else NAN, f1, area))
    return tuple(found)


def _macro(per_class: Sequence[ClassScores]) -> dict[str, Any]:
    there = [one for one in per_class if one.support]
    return {f"macro_{name}": _mean([getattr(one, name) for one in there]) for name in ("precision", "recall", "f1")}


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if numbers else NAN
