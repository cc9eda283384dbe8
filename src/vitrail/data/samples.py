"""What is known of every picture of a source, in columns: a million samples are a few arrays, not a million objects."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError

SPLITS = ("train", "val", "test")
UNSAID = -1  # of a split, a label or a group: the source does not say

Integers = NDArray[np.int64]


class Names(Sequence[str]):
    """Strings in one block of bytes. Nothing here is counted by reference, so forked workers share it for ever.

    They are file names: bytes that are not UTF-8 survive, as `os.fsencode` and `os.fsdecode` keep them.
    """

    def __init__(self, block: NDArray[np.uint8], ends: Integers) -> None:
        self.block = block
        self.ends = ends

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        block = bytearray()
        ends = []
        for name in names:
            block += os.fsencode(name)
            ends.append(len(block))
        return cls(np.frombuffer(bytes(block), np.uint8), np.array(ends, np.int64))

    def __len__(self) -> int:
        return len(self.ends)

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
        lengths = self.ends[indices] - starts
        ends = np.cumsum(lengths, dtype=np.int64)
        within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
        return Names(self.block[np.repeat(starts, lengths) + within], ends)


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
        for row, index in zip(rows, indices, strict=True):
            row[self.labels_of(int(index))] = 1
        return rows

    def counts(self, indices: NDArray[np.integer] | None = None) -> Integers:
        """How many pictures each class has."""
        chosen = np.arange(len(self)) if indices is None else indices
        if self.multi_label:
            labels = np.concatenate([self.labels_of(int(i)) for i in chosen] or [self.labels[:0]])
        else:
            labels = self.labels[chosen]
            labels = labels[labels != UNSAID]
        return np.bincount(labels, minlength=len(self.classes)).astype(np.int64)
