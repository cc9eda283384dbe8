"""A validation part made of whole groups, each class as near to its share as a greedy choice gets."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from vitrail.data.samples import UNSAID, Integers, Samples

_SLACK = 1e-9  # a draw is one on every machine, however it rounds


def choose_groups(samples: Samples, rows: Integers, share: Fraction, ranks: Integers) -> NDArray[np.bool_]:
    """True for the pictures whose group is set aside.

    Groups are looked at in the order of the ranks of their first pictures. One is taken if that brings the classes
    nearer to their shares, in squares of the relative distance, and if each of its classes keeps a picture for
    training. Since classes only fill up, what is left at the end could not be taken either. If every group is too large
    for the share, the one that does least harm is taken.
    """
    group = _whole_groups(samples, rows)
    first = np.unique(group, return_index=True)[1]
    order = np.argsort(ranks[first]).tolist()
    tables = _class_tables(samples, rows, group)
    left = np.bincount(np.concatenate([classes for classes, _ in tables]), np.concatenate([n for _, n in tables]))
    sizes = np.maximum(left, 1)
    wanted = float(share) * left
    taken = np.zeros(len(tables), bool)
    least, harmless = np.inf, None
    for number in order:
        classes, pictures = tables[number]
        if not (left[classes] > pictures).all():
            continue
        weight = pictures / sizes[classes] ** 2
        harm = float((weight * (pictures - 2 * wanted[classes])).sum())
        if harm < -_SLACK * float((weight * pictures).sum()):
            taken[number] = True
            left[classes] -= pictures
            wanted[classes] -= pictures
        elif harm < least * (1 - _SLACK):
            least, harmless = harm, number
    if harmless is not None and not taken.any():
        taken[harmless] = True
    return taken[group]


def _whole_groups(samples: Samples, rows: Integers) -> Integers:
    """Groups from 0 up, without gaps; each row without a group is one of its own."""
    assert samples.groups is not None
    groups = samples.groups[rows].copy()
    alone = np.flatnonzero(groups == UNSAID)
    groups[alone] = groups.max(initial=0) + 1 + np.arange(len(alone))
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def _class_tables(samples: Samples, rows: Integers, group: Integers) -> list[tuple[Integers, Integers]]:
    """For each group, the classes in it and how many pictures of each; pictures without a label are one more class."""
    owners, labels = samples.labels_among(rows)
    bare = np.setdiff1d(np.arange(len(rows)), owners)
    owners = np.concatenate([owners, bare])
    labels = np.concatenate([labels, np.full(len(bare), len(samples.classes), np.int32)])
    pairs, counts = np.unique(np.stack([group[owners], labels], 1), axis=0, return_counts=True)
    cuts = np.flatnonzero(np.diff(pairs[:, 0])) + 1
    return list(zip(np.split(pairs[:, 1], cuts), np.split(counts, cuts), strict=True))
