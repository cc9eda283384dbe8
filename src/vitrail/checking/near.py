"""All pairs of 64-bit hashes that differ in a few bits, without comparing everyone with everyone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from vitrail.data.samples import Integers

Hashes = NDArray[np.uint64]
Pairs = tuple[Integers, Integers]

_SMALL = 3000  # below this, everyone with everyone is quicker
_BANDS = (21, 21, 22)  # bits; with millions of hashes a band is still nearly a name of its own
_AT_ONCE = 1 << 22  # candidates that are held in memory


def close_pairs(hashes: Hashes, within: int) -> Iterator[Pairs]:
    """Every pair of rows (i < j) whose hashes differ in at most `within` bits, in batches; a pair may come more than
    once.

    The hash is cut into three bands. Hashes that differ in at most `within` bits differ in at most a third of them in
    one of the bands: so for each band all values within that distance are looked up in a table of who has them.
    """
    if len(hashes) < _SMALL:
        yield from _everyone_with_everyone(hashes, within)
        return
    start = 0
    for width in _BANDS:
        band = ((hashes >> np.uint64(start)) & np.uint64((1 << width) - 1)).astype(np.int64)
        yield from _close_in_band(hashes, band, width, within)
        start += width


def _everyone_with_everyone(hashes: Hashes, within: int) -> Iterator[Pairs]:
    height = max(1, _AT_ONCE // max(1, len(hashes)))
    for top in range(0, len(hashes), height):
        apart = np.bitwise_count(hashes[top : top + height, None] ^ hashes[None, top:])
        first, second = np.nonzero(apart <= within)
        keep = first < second
        yield first[keep] + top, second[keep] + top


def _close_in_band(hashes: Hashes, band: Integers, width: int, within: int) -> Iterator[Pairs]:
    order = np.argsort(band, kind="stable")
    keys = band[order]
    starts = np.zeros((1 << width) + 1, np.int32)
    np.cumsum(np.bincount(keys, minlength=1 << width), out=starts[1:])
    for bits in range(within // len(_BANDS) + 1):
        for places in combinations(range(width), bits):
            other = keys ^ sum(1 << place for place in places)
            begin = starts[other]
            counts = starts[other + 1] - begin
            rows = np.flatnonzero(counts)
            for part in _parts(counts[rows]):
                chosen = rows[part]
                first = np.repeat(chosen, counts[chosen])
                second = _ranges(begin[chosen], counts[chosen])
                once = first < second  # each pair is met from both of its ends
                i, j = order[first[once]], order[second[once]]
                close = np.bitwise_count(hashes[i] ^ hashes[j]) <= within
                i, j = i[close], j[close]
                yield np.minimum(i, j), np.maximum(i, j)


def _parts(counts: NDArray[np.int32]) -> Iterator[slice]:
    """Slices whose counts add up to about `_AT_ONCE`, or one row that has more."""
    total = np.cumsum(counts, dtype=np.int64)
    start = 0
    while start < len(counts):
        done = total[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(total, done + _AT_ONCE, side="right")))
        yield slice(start, stop)
        start = stop


def _ranges(begin: NDArray[np.int32], counts: NDArray[np.int32]) -> Integers:
    """begin[0], begin[0] + 1, … (counts[0] of them), begin[1], …"""
    ends = np.cumsum(counts, dtype=np.int64)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - (ends - counts), counts)
