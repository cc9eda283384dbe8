"""A validation part made of whole groups, each class as near to its share as a greedy choice gets."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from vitrail.data.samples import UNSAID, Integers, Samples

Table = list[tuple[int, int]]  # of a group: (class, pictures)

_SLACK = 1e-15  # less is rounding, and no reason to change sides
_ROUNDS = 10


def choose_groups(samples: Samples, rows: Integers, share: Fraction, ranks: Integers) -> NDArray[np.bool_]:
    """True for the pictures whose group is set aside.

    Groups are looked at in the order of the ranks of their first pictures, and change sides if that brings the classes
    nearer to their shares, in squares of the relative distance, and if each class keeps a picture for training; until
    none changes, or ten rounds. If every group is too large for the share, the one that does least harm is
    set aside.
    """
    group = _whole_groups(samples, rows)
    first = np.unique(group, return_index=True)[1]
    order = np.argsort(ranks[first]).tolist()
    sides = _Sides(_class_tables(samples, rows, group), share)
    for _ in range(_ROUNDS):
        if not sum(sides.change_if_better(number) for number in order):
            break
    if not any(sides.aside):
        sides.set_least_harmful_aside(order)
    return np.array(sides.aside)[group]


class _Sides:
    """Which groups are set aside, and how far each class is from its share. Plain numbers, since a group has few
    classes; and added in one order, so that the sums are the same on every machine."""

    def __init__(self, tables: list[Table], share: Fraction) -> None:
        self.tables = tables
        self.aside = [False] * len(tables)
        self.left: Counter[int] = Counter()  # pictures for training
        for table in tables:
            for label, pictures in table:
                self.left[label] += pictures
        self.wanted = {label: float(share) * size for label, size in self.left.items()}
        self.weight = {label: 1 / size**2 for label, size in self.left.items()}

    def _spared(self, number: int) -> bool:
        return all(self.left[label] > pictures for label, pictures in self.tables[number])

    def _harm(self, number: int) -> float:
        """How much farther from their shares the classes would be if the group changed sides."""
        sign = 2 if self.aside[number] else -2
        return sum(
            self.weight[label] * pictures * (pictures + sign * self.wanted[label])
            for label, pictures in self.tables[number]
        )

    def change_if_better(self, number: int) -> bool:
        if self._harm(number) >= -_SLACK or not (self.aside[number] or self._spared(number)):
            return False
        for label, pictures in self.tables[number]:
            moved = -pictures if self.aside[number] else pictures
            self.left[label] -= moved
            self.wanted[label] -= moved
        self.aside[number] = not self.aside[number]
        return True

    def set_least_harmful_aside(self, order: list[int]) -> None:
        spared = [number for number in order if self._spared(number)]
        if spared:
            self.aside[min(spared, key=self._harm)] = True


def _whole_groups(samples: Samples, rows: Integers) -> Integers:
    """Groups from 0 up, without gaps; each row without a group is one of its own."""
    assert samples.groups is not None
    groups = samples.groups[rows].copy()
    alone = np.flatnonzero(groups == UNSAID)
    groups[alone] = groups.max(initial=0) + 1 + np.arange(len(alone))
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def _class_tables(samples: Samples, rows: Integers, group: Integers) -> list[Table]:
    """For each group, the classes in it and how many pictures of each; pictures without a label are one more class."""
    owners, labels = samples.labels_among(rows)
    bare = np.setdiff1d(np.arange(len(rows)), owners)
    kinds = len(samples.classes) + 1
    pairs = np.concatenate([group[owners] * kinds + labels, group[bare] * kinds + kinds - 1])
    numbers, counts = np.unique(pairs, return_counts=True)
    tables: list[Table] = [[] for _ in range(group.max() + 1)]
    for number, pictures in zip(numbers.tolist(), counts.tolist(), strict=True):
        tables[number // kinds].append((number % kinds, pictures))
    return tables
