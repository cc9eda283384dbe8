"""The same picture more than once: byte for byte, or to the eye; in two splits, or under two labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.checking.hashes import distances
from vitrail.checking.near import Pairs, close_pairs
from vitrail.checking.records import Records, Trait, with_trait
from vitrail.data.samples import SPLITS, UNSAID, Integers, Samples

NEAR = 10  # bits in which the 64 of the pHash may differ; docs/check.md has how it was chosen
BOTH = 20  # bits in which the 128 of both hashes may differ
_MANY = 1 << 20  # links that are held before they are merged


@dataclass(frozen=True)
class Duplicates:
    """Pictures that are the same: one number for each row, equal for pictures of one group."""

    exact: Integers  # the same bytes
    near: Integers  # the same to the eye; pictures of one exact group are in one near group

    def groups(self) -> list[Integers]:
        """The rows of each near group of two or more, in the order of the source."""
        return _members(self.near)

    def is_exact(self, group: Integers) -> bool:
        return len(np.unique(self.exact[group])) == 1


def find_duplicates(records: Records) -> Duplicates:
    count = len(records)
    readable = np.flatnonzero(with_trait(records, Trait.READABLE))
    exact = np.arange(count, dtype=np.int64)
    _, same = np.unique(records["digest"][readable], axis=0, return_inverse=True)
    exact[readable] = readable[_first_of(same.ravel())]
    return Duplicates(exact, merged(exact, _near_links(records, exact)))


def merged(groups: Integers, links: Iterable[Pairs]) -> Integers:
    """Groups joined wherever a link goes from one to another; a group is named by its first row."""
    groups = groups.copy()
    for first, second in _batches(links):
        while (apart := groups[first] != groups[second]).any():
            one, other = groups[first[apart]], groups[second[apart]]
            np.minimum.at(groups, np.maximum(one, other), np.minimum(one, other))
            while ((heads := groups[groups]) != groups).any():  # a head that got a head of its own passes it on
                groups = heads
    return groups


def between_splits(groups: Iterable[Integers], samples: Samples) -> list[Integers]:
    """The groups with members in more than one split."""
    return [group for group in groups if len(_said(samples.splits[group])) > 1]


def leaked(groups: Iterable[Integers], samples: Samples) -> dict[str, int]:
    """How many pictures of one split are in an earlier one too: {"val in train": 3}."""
    found: dict[str, int] = {}
    for group in groups:
        splits = samples.splits[group]
        present = _said(splits)
        for later in present[1:]:
            for earlier in present[present < later]:
                words = f"{SPLITS[later]} in {SPLITS[earlier]}"
                found[words] = found.get(words, 0) + int((splits == later).sum())
    return found


def contradictory(groups: Iterable[Integers], samples: Samples) -> list[Integers]:
    """The groups whose members have different labels; a picture without a label contradicts nobody."""
    found = []
    for group in groups:
        labels = {frozenset(samples.labels_of(int(row)).tolist()) for row in group} - {frozenset()}
        if len(labels) > 1:
            found.append(group)
    return found


def _near_links(records: Records, exact: Integers) -> Iterable[Pairs]:
    """Pairs of rows whose hashes are close. Equal hashes are joined first: a thousand copies are one hash, not half a
    million pairs."""
    rows = np.flatnonzero(with_trait(records, Trait.HASHED) & (exact == np.arange(len(exact))))
    if not len(rows):
        return
    both = np.stack([records["phash"][rows], records["dhash"][rows]], axis=1)
    hashes, first, same = np.unique(both, axis=0, return_index=True, return_inverse=True)
    yield rows[first[same.ravel()]], rows
    phash, dhash = np.ascontiguousarray(hashes[:, 0]), np.ascontiguousarray(hashes[:, 1])
    for i, j in close_pairs(phash, NEAR):
        apart = distances(phash[i], phash[j]).astype(np.int16) + distances(dhash[i], dhash[j])
        close = apart <= BOTH
        yield rows[first[i[close]]], rows[first[j[close]]]


def _batches(links: Iterable[Pairs]) -> Iterable[Pairs]:
    """Links in few large batches."""
    held: list[Pairs] = []
    size = 0
    for pair in links:
        if len(pair[0]):
            held.append(pair)
            size += len(pair[0])
        if size >= _MANY:
            yield _joined(held)
            held, size = [], 0
    if held:
        yield _joined(held)


def _joined(pairs: list[Pairs]) -> Pairs:
    return np.concatenate([first for first, _ in pairs]), np.concatenate([second for _, second in pairs])


def _first_of(numbers: NDArray[np.integer]) -> Integers:
    """For each place, the first place with the same number."""
    _, first, same = np.unique(numbers, return_index=True, return_inverse=True)
    return first[same].astype(np.int64)


def _members(groups: Integers) -> list[Integers]:
    several = np.flatnonzero(np.bincount(groups, minlength=len(groups))[groups] > 1)
    if not len(several):
        return []
    order = several[np.argsort(groups[several], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def _said(splits: NDArray[np.int8]) -> NDArray[np.int8]:
    present = np.unique(splits)
    return present[present != UNSAID]
