"""Tar shards as a source: any picture in one ranged read, many pictures in few long ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.grouping import groups_by_name
from vitrail.data.notes import class_notes
from vitrail.data.samples import Integers
from vitrail.data.shard_files import Range, ShardFile, common_folder, find_shards, is_remote, plain_address, storage_of
from vitrail.data.shard_index import Index, Progress, read_classes, store_index, stored_index
from vitrail.data.shard_scan import scan
from vitrail.data.source import Readable, Source
from vitrail.errors import DataError

RUN = 2**23  # bytes that are worth reading in one go
LONGEST_RUN = 64  # pictures: longer runs would meet in the same batches epoch after epoch


class Shards:
    """Reads pictures out of tar archives by where they lie."""

    def __init__(
        self, addresses: Sequence[str], shard: NDArray[np.int32], offset: Integers, size: Integers, mark: bytes = b""
    ) -> None:
        self._addresses, self._mark = tuple(addresses), mark
        self._shard, self._offset, self._size = shard, offset, size
        self._storage = storage_of(self._addresses[0])

    def read_many(self, rows: Sequence[int]) -> list[Readable]:
        """The files of these rows in this order, read in the order of the storage.

        Neighbours are read together, with what little lies between them. A shard that is missing or shorter than when
        it was indexed is no bad picture but a damaged set, and raises here.
        """
        if not len(rows):
            return []
        asked = np.asarray(rows, np.int64)
        order = asked[np.lexsort((self._offset[asked], self._shard[asked]))]
        starts = self._offset[order].tolist()
        ends = (self._offset[order] + self._size[order]).tolist()
        runs = self._runs(self._shard[order].tolist(), starts, ends)
        found: dict[int, bytes] = {}
        contents = self._storage.read([run for _, run in runs])
        lasts = [first for first, _ in runs[1:]] + [len(order)]
        for (first, run), last, content in zip(runs, lasts, contents, strict=True):
            for k in range(first, last):
                found[int(order[k])] = content[starts[k] - run.start : ends[k] - run.start]
        return [found[int(row)] for row in asked]

    def fingerprint(self, rows: NDArray[np.integer]) -> bytes:
        """Changes when a shard is written again, or when these pictures lie elsewhere."""
        places = (self._shard[rows], self._offset[rows], self._size[rows])
        return self._mark + b"".join(np.ascontiguousarray(column).tobytes() for column in places)

    def _runs(self, shards: list[int], starts: list[int], ends: list[int]) -> list[tuple[int, Range]]:
        """The reads for pictures that are sorted as they lie, each with the number of its first picture. Another shard,
        a wide gap, or a read that has become long begins the next."""
        runs: list[tuple[int, Range]] = []
        before = -1
        for k, (shard, start, end) in enumerate(zip(shards, starts, ends, strict=True)):
            if runs and shard == before:
                first, run = runs[-1]
                if start - run.end <= self._storage.gap and end - run.start <= self._storage.longest:
                    runs[-1] = first, run._replace(end=max(run.end, end))
                    continue
            runs.append((k, Range(self._addresses[shard], start, end)))
            before = shard
        return runs


def from_shards(address: str | os.PathLike[str], *, group_by: str | None = None) -> Source:
    """Tar shards in the WebDataset layout: a folder, a glob, a brace pattern or one archive, here or at any address
    that fsspec knows. Their index is made when there is none that fits.

    `group_by` is a pattern: see `vitrail.data.grouping`.
    """
    index, notes = open_index(find_shards(address), whole_folder=_is_folder(address))
    samples = index.samples
    if group_by is not None:
        samples = replace(samples, groups=groups_by_name(samples.names, group_by))
    rank = np.empty(len(samples), np.int64)
    rank[np.lexsort((index.offset, index.shard))] = np.arange(len(samples))
    run = min(LONGEST_RUN, max(1, round(RUN / max(1.0, float(index.size.mean())))))
    mark = repr(index.files).encode()
    reader = Shards([file.address for file in index.files], index.shard, index.offset, index.size, mark)
    return Source(os.fsdecode(address), samples, reader, run, rank, (*index.notes, *notes, *class_notes(samples)))


def make_index(address: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Reads the shards once and writes their index: beside them, or into the cache folder where that cannot be. Says
    where it is."""
    index = scan(find_shards(address), progress)
    return store_index(index, whole_folder=_is_folder(address))


def open_index(files: tuple[ShardFile, ...], *, whole_folder: bool) -> tuple[Index, tuple[str, ...]]:
    """The index of these shards, made and kept where there is none that fits; and what their owner should know."""
    index = stored_index(files, read_classes(common_folder(files))[1])
    if index is not None:
        return index, ()
    index = scan(files)
    try:
        store_index(index, whole_folder=whole_folder)
    except DataError as error:
        return index, (f"{error}; until then the shards are read through at every start",)
    return index, ()


def _is_folder(address: str | os.PathLike[str]) -> bool:
    text = plain_address(address)
    return not is_remote(text) and os.path.isdir(text)
