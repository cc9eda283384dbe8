"""Confident learning (Northcutt, Jiang and Chuang, 2021): which given labels are likely wrong, from predictions of
models that have not seen the pictures they judge."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.data.samples import Integers

Probabilities = NDArray[np.floating]

NO_CLASS = -1
_SLACK = 1e-6  # a probability that is this little below its threshold has reached it


def thresholds(labels: NDArray[np.integer], probabilities: Probabilities) -> NDArray[np.float64]:
    """For each class, the mean probability of it among the pictures that bear its label: how sure a model is of it
    when it should be. A class that no picture bears is never confidently found."""
    sums = np.bincount(labels, probabilities[np.arange(len(labels)), labels], minlength=probabilities.shape[1])
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)


def confident_classes(labels: NDArray[np.integer], probabilities: Probabilities) -> Integers:
    """For each picture, the likeliest of the classes that reach their threshold, or `NO_CLASS`."""
    reached = probabilities >= thresholds(labels, probabilities) - _SLACK
    best = np.where(reached, probabilities, -1).argmax(axis=1)
    return np.where(reached.any(axis=1), best, NO_CLASS).astype(np.int64)


def confident_joint(labels: NDArray[np.integer], probabilities: Probabilities) -> Integers:
    """How many pictures with label i are confidently of class j: (classes, classes)."""
    found = confident_classes(labels, probabilities)
    known = found != NO_CLASS
    classes = probabilities.shape[1]
    flat = np.bincount(labels[known] * classes + found[known], minlength=classes * classes)
    return flat.reshape(classes, classes).astype(np.int64)


def likely_wrong(labels: NDArray[np.integer], probabilities: Probabilities) -> Integers:
    """The pictures off the diagonal of the confident joint which are also predicted to be of another class, the
    worst normalised margin first."""
    found = confident_classes(labels, probabilities)
    off = (found != NO_CLASS) & (found != labels) & (probabilities.argmax(axis=1) != labels)
    rows = np.flatnonzero(off)
    return rows[np.argsort(normalised_margin(labels[rows], probabilities[rows]), kind="stable")]


def self_confidence(labels: NDArray[np.integer], probabilities: Probabilities) -> NDArray[np.floating]:
    """The probability of the given label."""
    return probabilities[np.arange(len(labels)), labels]


def normalised_margin(labels: NDArray[np.integer], probabilities: Probabilities) -> NDArray[np.floating]:
    """From 0 (surely another class) to 1 (surely the given one): how far the given label is ahead of the best other."""
    others = probabilities.copy()
    others[np.arange(len(labels)), labels] = -np.inf
    return (self_confidence(labels, probabilities) - others.max(axis=1) + 1) / 2
