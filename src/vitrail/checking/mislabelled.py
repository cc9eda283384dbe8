"""Labels that are likely wrong, judged by a linear probe on a model's features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitrail.checking.confident import confident_classes, likely_wrong, normalised_margin, self_confidence
from vitrail.checking.duplicates import Duplicates, merged
from vitrail.checking.records import Trait, with_trait
from vitrail.checking.survey import Progress, Survey
from vitrail.data.samples import UNSAID, Integers, Samples
from vitrail.data.source import Source
from vitrail.errors import DataError

if TYPE_CHECKING:
    from vitrail.classifier import Classifier


@dataclass(frozen=True)
class LabelDoubt:
    """A label that is likely wrong."""

    row: int
    given: int  # into the classes of the source
    suggested: int
    self_confidence: float  # probability of the given label
    probability: float  # of the suggested one
    margin: float  # 0: surely another class; 1: surely the given one


@dataclass(frozen=True)
class LabelReport:
    doubts: list[LabelDoubt]  # the most doubtful first
    judged: int  # pictures
    unjudged: int  # pictures of classes that are too small to judge
    agreement: float  # part of the judged pictures whose given label is also the predicted one


def find_wrong_labels(
    source: Source,
    survey: Survey,
    duplicates: Duplicates,
    model: Classifier,
    *,
    device: str,
    batch_size: int,
    workers: int,
    seed: int,
    progress: Progress,
) -> LabelReport:
    """Fits a probe on the model's features in folds, and lets each judge the fold it has not seen."""
    from vitrail.checking.probe import FOLDS, features, folds_of, held_out_probabilities

    samples = source.samples
    together = _kept_together(samples, duplicates)
    labelled = np.flatnonzero(with_trait(survey.records, Trait.READABLE) & (samples.labels != UNSAID))
    rows = _of_large_classes(samples, labelled, together, FOLDS)
    present, labels = np.unique(samples.labels[rows], return_inverse=True)
    if len(present) < 2:
        raise DataError(f"wrong labels are looked for in two or more classes of {FOLDS} pictures; leave out the model")
    vectors = features(source, rows, model, device=device, batch_size=batch_size, workers=workers, progress=progress)
    folds = folds_of(samples.names.take(rows), labels, together[rows], seed)
    probabilities = held_out_probabilities(vectors, labels, folds, len(present), device=device, progress=progress)
    doubtful = likely_wrong(labels, probabilities)
    suggested = confident_classes(labels, probabilities)[doubtful]
    confidence = self_confidence(labels[doubtful], probabilities[doubtful])
    margins = normalised_margin(labels[doubtful], probabilities[doubtful])
    doubts = [
        LabelDoubt(
            row=int(rows[place]),
            given=int(present[labels[place]]),
            suggested=int(present[suggested[k]]),
            self_confidence=float(confidence[k]),
            probability=float(probabilities[place, suggested[k]]),
            margin=float(margins[k]),
        )
        for k, place in enumerate(doubtful)
    ]
    agreement = float((probabilities.argmax(axis=1) == labels).mean())
    return LabelReport(doubts, len(rows), len(labelled) - len(rows), agreement)


def refuse_several_labels(samples: Samples) -> None:
    if samples.multi_label:
        raise DataError("wrong labels are looked for where each picture has one label; leave out the model")


def _kept_together(samples: Samples, duplicates: Duplicates) -> Integers:
    """Duplicates, and pictures that the source says belong together, have one number."""
    if samples.groups is None:
        return duplicates.near
    grouped = np.flatnonzero(samples.groups != UNSAID)
    _, first, same = np.unique(samples.groups[grouped], return_index=True, return_inverse=True)
    return merged(duplicates.near, [(grouped, grouped[first[same]])])


def _of_large_classes(samples: Samples, rows: Integers, together: Integers, least: int) -> Integers:
    """The rows of classes with enough different pictures for one in every fold."""
    pairs = np.unique(np.stack([samples.labels[rows], together[rows]], axis=1), axis=0)
    different = np.bincount(pairs[:, 0], minlength=len(samples.classes))
    return rows[different[samples.labels[rows]] >= least]
