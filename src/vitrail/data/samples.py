"""What is known of every picture of a source, in columns: a million samples are a few arrays, not a million objects."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError

SPLITS = ("train", "val", "test")
UNSAID = -1  # of a split, a label or a group: the source does not say

Integers = NDArray[np.int64]

_AT_ONCE = 1 << 16


def _ranges(starts: Integers, stops: Integers) -> Integers:
    """The numbers from each start to its stop, one range after the other."""
    lengths = stops - starts
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)


class Names(Sequence[str]):
    """Strings in one block of bytes. Nothing here is counted by reference, so forked workers share it for ever.

    They are file names: bytes that are not UTF-8 survive, as `os.fsencode` and `os.fsdecode` keep them.
    """

    def __init__(self, block: NDArray[np.uint8], ends: Integers) -> None:
        self.block = block
        self.ends = ends

    @classmethod
    def of(cls, names: Iterable[str | bytes]) -> Names:
        block = bytearray()
        ends = array("q")
        for name in names:
            block += name if isinstance(name, bytes) else os.fsencode(name)
            ends.append(len(block))
        return cls(np.frombuffer(bytes(block), np.uint8), np.array(ends, np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[str]:
        return map(os.fsdecode, self.all_encoded())

    def all_encoded(self) -> Iterator[bytes]:
        """The bytes of every name, in order."""
        block = self.block.tobytes()
        start = 0
        for end in self.ends.tolist():
            yield block[start:end]
            start = end

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Names: ...
    def __getitem__(self, index: int | slice) -> str | Names:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        return os.fsdecode(self.encoded(index))

    def encoded(self, index: int) -> bytes:
        """The bytes of one name."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} names, no {index}")
        index %= len(self)
        start = self.ends[index - 1] if index else 0
        return self.block[start : self.ends[index]].tobytes()

    def take(self, indices: NDArray[np.integer]) -> Names:
        starts = np.concatenate([[0], self.ends[:-1]])[indices]
        stops = self.ends[indices]
        ends = np.cumsum(stops - starts, dtype=np.int64)
        block = np.empty(ends[-1] if len(ends) else 0, np.uint8)
        for few in range(0, len(ends), _AT_ONCE):  # an index of 8 bytes to each byte of all names would be large
            some = slice(few, few + _AT_ONCE)
            first = ends[few - 1] if few else 0
            block[first : ends[some][-1]] = self.block[_ranges(starts[some], stops[some])]
        return Names(block, ends)


@dataclass(frozen=True)
class Samples:
    """One row for each picture, sorted by name; `labels` index `classes`.

    With several labels to a picture `labels` is empty, and row i has `label_list[label_ends[i - 1] : label_ends[i]]`.
    """

    names: Names
    classes: tuple[str, ...]
    labels: NDArray[np.int32]  # UNSAID: none
    splits: NDArray[np.int8]  # into SPLITS; UNSAID: not said
    groups: Integers | None = None  # pictures of one group stay on one side of a split; UNSAID: a group of its own
    weights: NDArray[np.float32] | None = None
    label_list: NDArray[np.int32] | None = field(default=None, repr=False)
    label_ends: Integers | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        rows: dict[str, NDArray[Any] | None]
        rows = {"labels": self.labels, "splits": self.splits, "groups": self.groups, "weights": self.weights}
        if self.label_list is not None:
            rows |= {"labels": None, "label_ends": self.label_ends}
        for name, column in rows.items():
            if column is not None and len(column) != len(self.names):
                raise DataError(f"{name} has {len(column)} rows for {len(self.names)} pictures")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def multi_label(self) -> bool:
        return self.label_list is not None

    def labels_of(self, index: int) -> NDArray[np.int32]:
        """The labels of one picture: none, one, or with `multi_label` any number."""
        if self.label_list is None or self.label_ends is None:
            label = self.labels[index]
            return self.labels[:0] if label == UNSAID else self.labels[index : index + 1]
        start = self.label_ends[index - 1] if index else 0
        return self.label_list[start : self.label_ends[index]]

    def targets(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """Rows of zeros with ones at the labels, (pictures, classes)."""
        rows = np.zeros((len(indices), len(self.classes)), np.float32)
        owners, labels = self.labels_among(indices)
        rows[owners, labels] = 1
        return rows

    def counts(self, indices: NDArray[np.integer] | None = None) -> Integers:
        """How many pictures each class has."""
        _, labels = self.labels_among(np.arange(len(self)) if indices is None else indices)
        return np.bincount(labels, minlength=len(self.classes)).astype(np.int64)

    def labels_among(self, indices: NDArray[np.integer]) -> tuple[Integers, NDArray[np.int32]]:
        """All labels of these pictures, and for each label whose it is: k for the picture `indices[k]`."""
        if self.label_list is None or self.label_ends is None:
            labels = self.labels[indices]
            owners = np.flatnonzero(labels != UNSAID)
            return owners, labels[owners]
        starts = np.concatenate([[0], self.label_ends[:-1]])[indices]
        stops = self.label_ends[indices]
        return np.repeat(np.arange(len(indices)), stops - starts), self.label_list[_ranges(starts, stops)]
