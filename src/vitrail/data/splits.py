"""Training, validation and test: as the source says, or a stratified validation part made by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from vitrail.data.group_splits import choose_groups
from vitrail.data.notes import counted, missing_classes
from vitrail.data.samples import SPLITS, UNSAID, Integers, Samples
from vitrail.data.source import Source, Subset
from vitrail.errors import DataError


@dataclass(frozen=True)
class Splits:
    """The sides of a source. `made`: validation was taken from training here."""

    train: Subset
    val: Subset  # empty, where none is said and none was asked for
    test: Subset | None
    made: bool
    notes: tuple[str, ...] = ()


def make_splits(source: Source, *, fraction: float = 0.1, seed: int = 0, subset: float = 1.0) -> Splits:
    """What the source says, if it says a validation part; else `fraction` of training is set aside for it.

    The part is a function of the seed, the names and the labels alone: not of the order of files, nor of the machine,
    nor of where the folder lies. Each class gives its share to within one picture, and keeps one for training; groups
    stay whole. Pictures that a source with splits puts into none are for training.

    `subset` is the part of what is left for training that is used: see `subset_rows`. Validation does not depend on it.
    """
    if not (isinstance(fraction, int | float) and 0 <= fraction < 1):
        raise DataError(f"the fraction for validation is {fraction}: give a number from 0 up to, but not, 1")
    if not (isinstance(subset, int | float) and 0 < subset <= 1):
        raise DataError(f"the part of the training pictures is {subset}: give a number above 0, at most 1")
    said = source.samples.splits
    val, test = (np.flatnonzero(said == SPLITS.index(name)) for name in ("val", "test"))
    train = np.flatnonzero((said == SPLITS.index("train")) | (said == UNSAID))
    notes = _notes_of_said(source.samples)
    if not len(train):
        has = " and ".join(name for name, rows in (("val", val), ("test", test)) if len(rows)) or "no pictures at all"
        raise DataError(f"{source.name} has {has}, but nothing to train on: add a train split")
    made = not len(val) and fraction > 0
    if made:
        chosen = validation_rows(source.samples, train, fraction, seed)
        train, val = np.setdiff1d(train, chosen, assume_unique=True), chosen
        notes += missing_classes(source.samples, train, val, "val")
    if subset < 1:
        every, train = len(train), subset_rows(source.samples, train, subset, seed)
        notes.append(f"{len(train):,} of the {every:,} training pictures are used: {100 * subset:g}% of each class")
    return Splits(
        Subset(source, "train", train),
        Subset(source, "val", val),
        Subset(source, "test", test) if len(test) else None,
        made,
        tuple(notes),
    )


def validation_rows(samples: Samples, rows: Integers, fraction: float, seed: int) -> Integers:
    """The part of these rows that is set aside, in their order."""
    share = Fraction(str(fraction))  # 0.1 is a tenth, and not the nearest power of two's multiple
    ranks = ranked(samples, rows, seed)
    if samples.groups is not None:
        chosen = choose_groups(samples, rows, share, ranks)
        too_few = "no group can be spared from training"
    else:
        chosen = _choose_pictures(samples, rows, share, ranks)
        too_few = f"{share} of them is none, or no class has one to spare"
    if not chosen.any():
        raise DataError(
            f"{counted(len(rows), 'picture')} are too few to set some aside for validation ({too_few}): "
            "add pictures, or give a larger fraction, or 0"
        )
    return rows[chosen]


def subset_rows(samples: Samples, rows: Integers, part: float, seed: int) -> Integers:
    """This part of the rows, in their order: of each class to within one picture, and at least one.

    Like the validation part it is a function of seed, names and labels. The smaller part lies inside the larger one.
    """
    share, ranks = Fraction(str(part)), ranked(samples, rows, seed)
    stratum, place, sizes = _places(samples, rows, ranks)
    if samples.multi_label:
        # most sets of labels are rare: where each begins to give is spread evenly, or half of them would give nothing
        first = np.empty(len(sizes), np.int64)
        first[stratum[place == 0]] = ranks[place == 0]
        begins = [Fraction(rank, len(rows)) for rank in first.tolist()]
    else:
        begins = [Fraction(1, 2)] * len(sizes)
    least = 0 if samples.multi_label else 1
    quotas = [max(least, math.ceil(share * n - begin)) for n, begin in zip(sizes.tolist(), begins, strict=True)]
    chosen = rows[place < np.array(quotas, np.int64)[stratum]]
    if not len(chosen):
        raise DataError(f"{part} of {counted(len(rows), 'training picture')} is none: give a larger part")
    return chosen


def ranked(samples: Samples, rows: Integers, seed: int) -> Integers:
    """The rank of each row in the order of the hashes of its name: as good as random, and the same everywhere."""
    salt = blake2b(b"%d/" % seed, digest_size=8)
    hashes = np.fromiter(_hashes(salt, samples.names.take(rows).all_encoded()), np.uint64, len(rows))
    ranks = np.empty(len(rows), np.int64)
    ranks[np.argsort(hashes, kind="stable")] = np.arange(len(rows))
    return ranks


def _hashes(salt: blake2b, names: Iterable[bytes]) -> Iterable[int]:
    for name in names:
        salted = salt.copy()
        salted.update(name)
        yield int.from_bytes(salted.digest(), "big")


def _choose_pictures(samples: Samples, rows: Integers, share: Fraction, ranks: Integers) -> NDArray[np.bool_]:
    """True for the pictures that are set aside: of each stratum the first ones by rank."""
    stratum, place, sizes = _places(samples, rows, ranks)
    quotas = _quotas(sizes, share, keep_one=not samples.multi_label)
    chosen: NDArray[np.bool_] = place < quotas[stratum]
    if samples.multi_label:
        _give_back(samples, rows, chosen, ranks)
    return chosen


def _places(samples: Samples, rows: Integers, ranks: Integers) -> tuple[Integers, Integers, Integers]:
    """The stratum of each picture (its class, or set of labels), its place there by rank, and the strata's sizes."""
    strata = _label_sets(samples, rows) if samples.multi_label else samples.labels[rows].astype(np.int64)
    _, stratum, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    order = np.lexsort((ranks, stratum))
    before = np.cumsum(sizes) - sizes
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows)) - np.repeat(before, sizes)
    return stratum, place, sizes


def _quotas(sizes: Integers, share: Fraction, keep_one: bool) -> Integers:
    """How many each stratum gives: `share` of its size, rounded up or down so that the sum comes out right as well.

    What is rounded is the running sum, from the smallest stratum up: what one cannot give, since it keeps its last
    picture, a larger one gives in its place.
    """
    quotas = np.zeros(len(sizes), np.int64)
    order = np.argsort(sizes, kind="stable") if keep_one else np.arange(len(sizes))
    seen = given = 0
    for stratum in order.tolist():
        size = int(sizes[stratum])
        seen += size
        due = math.floor(share * seen + Fraction(1, 2)) - given
        most = min(math.ceil(share * size), size - 1 if keep_one else size)
        quotas[stratum] = max(min(due, most), min(math.floor(share * size), most))
        given += int(quotas[stratum])
    return quotas


def _label_sets(samples: Samples, rows: Integers) -> Integers:
    """A number for each row, equal for equal sets of labels and in their order, so that neighbours share labels."""
    sets = [tuple(sorted(set(samples.labels_of(int(row)).tolist()))) for row in rows]
    numbers = {labels: number for number, labels in enumerate(sorted(set(sets)))}
    return np.array([numbers[labels] for labels in sets], np.int64)


def _give_back(samples: Samples, rows: Integers, chosen: NDArray[np.bool_], ranks: Integers) -> None:
    """Returns to training one picture of each class that would have none left."""
    owners, labels = samples.labels_among(rows)
    left = np.bincount(labels[~chosen[owners]], minlength=len(samples.classes))
    for label in np.unique(labels).tolist():
        if not left[label]:
            holders = owners[labels == label]
            back = holders[np.argmax(ranks[holders])]
            chosen[back] = False
            left[np.unique(labels[owners == back])] += 1


def _notes_of_said(samples: Samples) -> list[str]:
    notes = []
    unsaid = int((samples.splits == UNSAID).sum())
    if unsaid and unsaid < len(samples):
        notes.append(f"{counted(unsaid, 'picture')} in no split: used for training")
    if samples.groups is not None:
        # unsaid pictures train
        sides = np.where(samples.splits == UNSAID, 0, samples.splits).astype(np.int64)
        known = samples.groups != UNSAID
        pairs = np.unique(np.stack([samples.groups[known], sides[known]], 1), axis=0)
        straddling = int((np.unique(pairs[:, 0], return_counts=True)[1] > 1).sum())
        if straddling:
            notes.append(f"{counted(straddling, 'group')} with pictures on both sides of the splits that are said")
    return notes
