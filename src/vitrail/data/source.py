"""Where pictures and labels come from, whatever they are stored in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.samples import SPLITS, Integers, Samples
from vitrail.pictures.sources import Source as Encoded

Readable = Encoded | Image.Image | NDArray[Any]  # what `vitrail.pictures.as_picture` takes


class Reader(Protocol):
    """Gets at the pictures of a source by their row. It is pickled to worker processes and opens its files there."""

    def read_many(self, rows: Sequence[int]) -> list[Readable]:
        """The pictures of these rows, in this order, undecoded where they are files. Rows may repeat. What cannot be
        read raises only when it is decoded, so that one bad file does not take its neighbours along."""
        ...


@dataclass(frozen=True)
class Source:
    """A folder, a table, a named set, tar shards: a table of samples, and a reader for their pictures."""

    name: str  # as the user called it
    samples: Samples
    reader: Reader = field(repr=False)
    run: int = 1  # pictures to read in one go, where reading them one by one is slow
    positions: Integers | None = field(default=None, repr=False)  # rank of each row in the order of the storage
    notes: tuple[str, ...] = ()  # what its owner should know: a class that validation lacks, rows without a file

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.samples.classes

    def all(self) -> Subset:
        return Subset(self, "all", np.arange(len(self)))

    def said(self, split: str) -> Subset:
        """The rows that the source itself assigns to a split."""
        return Subset(self, split, np.flatnonzero(self.samples.splits == SPLITS.index(split)))


@dataclass(frozen=True)
class Subset:
    """Some rows of a source: one side of a split. Sample k of it is row `rows[k]` of the source."""

    source: Source
    name: str
    rows: Integers = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes

    @property
    def labels(self) -> NDArray[np.int32]:
        """One label for each sample; of a source with several to a picture, empty."""
        labels = self.source.samples.labels
        return labels if self.source.samples.multi_label else labels[self.rows]

    def counts(self) -> Integers:
        return self.source.samples.counts(self.rows)

    def names(self) -> Sequence[str]:
        return self.source.samples.names.take(self.rows)

    def name_of(self, sample: int) -> str:
        return self.source.samples.names[int(self.rows[sample])]

    def read_many(self, samples: Sequence[int] | Integers) -> list[Readable]:
        return self.source.reader.read_many([int(self.rows[sample]) for sample in samples])

    def read(self, sample: int) -> Readable:
        return self.read_many([sample])[0]
