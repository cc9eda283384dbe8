"""Close pairs among many hashes: the same as comparing everyone with everyone, only quicker."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.checking import near
from vitrail.checking.near import close_pairs


def found(hashes: np.ndarray, within: int) -> set[tuple[int, int]]:
    return {(i, j) for first, second in close_pairs(hashes, within) for i, j in zip(first, second, strict=True)}


def expected(hashes: np.ndarray, within: int) -> set[tuple[int, int]]:
    numbers = [int(value) for value in hashes]
    pairs = ((i, j) for j in range(len(numbers)) for i in range(j))
    return {(i, j) for i, j in pairs if (numbers[i] ^ numbers[j]).bit_count() <= within}


@st.composite
def clumped(draw: st.DrawFn) -> np.ndarray:
    """Hashes around a few centres, some of them equal, as those of real pictures are."""
    centres = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
    flips = st.sets(st.integers(0, 63), max_size=16)
    rows = draw(st.lists(st.tuples(st.sampled_from(centres), flips), max_size=40))
    return np.array([centre ^ sum(1 << bit for bit in bits) for centre, bits in rows], np.uint64)


@settings(max_examples=40, deadline=None)
@given(clumped(), st.integers(0, 8))
def test_the_bands_find_every_close_pair_and_no_other(hashes: np.ndarray, within: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near, "_SMALL", 0)
        assert found(hashes, within) == expected(hashes, within)


def test_everyone_with_everyone_gives_the_same() -> None:
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, 300, np.uint64) & np.uint64(0xFFFF)
    assert found(hashes, 3) == expected(hashes, 3) != set()


def test_a_small_memory_changes_nothing(monkeypatch) -> None:
    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 2**64, 200, np.uint64) & np.uint64(0xFF00FF0000FF)
    monkeypatch.setattr(near, "_SMALL", 0)
    monkeypatch.setattr(near, "_AT_ONCE", 7)
    assert found(hashes, 5) == expected(hashes, 5) != set()


def test_a_hundred_thousand_hashes_take_seconds() -> None:
    rng = np.random.default_rng(2)
    hashes = rng.integers(0, 2**64, 100_000, np.uint64)
    hashes[50_000:50_100] = hashes[:100] ^ np.uint64(0b1011 << 30)  # a hundred pairs, three bits apart
    assert found(hashes, 8) >= {(i, 50_000 + i) for i in range(100)}
