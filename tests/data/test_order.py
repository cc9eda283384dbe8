"""The order of samples: a function of seed and epoch, whoever asks and from wherever."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitrail.data.order import POOL, epoch_order, permutation, repeated, weighted_order
from vitrail.data.samples import Names, Samples
from vitrail.data.schedule import Schedule, Share
from vitrail.data.source import Source, Subset
from vitrail.errors import DataError

sizes, seeds, epochs = st.integers(0, 700), st.integers(-(2**70), 2**70), st.integers(0, 10**6)


class NoReader:
    def read_many(self, rows):
        raise AssertionError("an order needs no pictures")


def subset_of(n: int, run: int = 1, positions: np.ndarray | None = None, rows: np.ndarray | None = None) -> Subset:
    samples = Samples(Names.of(f"{i:06d}" for i in range(n)), ("a",), np.zeros(n, np.int32), np.full(n, -1, np.int8))
    source = Source("here", samples, NoReader(), run=run, positions=positions)
    return source.all() if rows is None else Subset(source, "train", rows)


@given(n=sizes, seed=seeds, epoch=epochs)
def test_an_order_is_a_permutation(n: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permutation(n, seed, epoch)), np.arange(n))


@given(n=sizes, seed=seeds, epoch=epochs, run=st.integers(0, 900), stored=st.randoms(use_true_random=False))
def test_an_order_in_runs_is_a_permutation_for_any_run_and_any_storage(n, seed, epoch, run, stored) -> None:
    positions = np.array(stored.sample(range(10 * n), n), np.int64)
    for where in (None, positions):
        assert np.array_equal(np.sort(epoch_order(n, seed, epoch, run=run, positions=where)), np.arange(n))


@given(n=st.integers(20, 300), seed=seeds, epoch=epochs, run=st.integers(1, 50))
def test_equal_arguments_give_an_equal_order_and_others_another(n: int, seed: int, epoch: int, run: int) -> None:
    order = epoch_order(n, seed, epoch, run=run)
    assert np.array_equal(order, epoch_order(n, seed, epoch, run=run))
    assert not np.array_equal(order, epoch_order(n, seed, epoch + 1, run=run))
    assert not np.array_equal(order, epoch_order(n, seed + 1, epoch, run=run))


def test_another_process_finds_the_same_order() -> None:
    script = (
        "from vitrail.data.order import *; import hashlib, numpy as np;"
        "parts = [permutation(1000, -5, 3), epoch_order(1000, 7, 2, run=16), weighted_order(np.arange(1., 500), 1, 1)];"
        "print(hashlib.sha256(b''.join(part.astype('<i8').tobytes() for part in parts)).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_each_place_is_as_likely_as_any_other() -> None:
    n, epochs = 12, 4000
    orders = np.stack([permutation(n, 0, epoch) for epoch in range(epochs)])
    table = np.stack([np.bincount(orders[:, place], minlength=n) for place in range(n)])
    # rows and columns of the table sum to `epochs`, which leaves (n - 1)² degrees of freedom
    statistic = ((table - epochs / n) ** 2 / (epochs / n)).sum()
    assert stats.chi2.sf(statistic, (n - 1) ** 2) > 1e-4


def test_all_orders_of_four_are_equally_likely() -> None:
    orders = [tuple(permutation(4, seed, epoch)) for seed in range(60) for epoch in range(80)]
    counts = np.unique(np.array(orders), axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-4


def adjacent(order: np.ndarray, window: int) -> float:
    """Of the samples, how many come within `window` places of their successor in the storage."""
    place = np.argsort(order)
    return float((np.abs(np.diff(place)) <= window).mean())


@pytest.mark.parametrize("run", [8, 64, 300])
def test_neighbours_in_the_storage_are_read_together(run: int) -> None:
    n = 20_000
    pool = run * -(-POOL // run)
    order = epoch_order(n, 0, 0, run=run)
    # of `run` neighbours all but the last share a run, and so a pool
    assert adjacent(order, pool + run) == pytest.approx(1 - 1 / run, abs=0.03)
    assert adjacent(epoch_order(n, 0, 0), pool + run) < 0.1


def test_storage_decides_what_neighbours_are() -> None:
    n, run = 5000, 50
    positions = np.random.default_rng(0).permutation(n).astype(np.int64)
    order = epoch_order(n, 3, 1, run=run, positions=positions)
    assert adjacent(positions[order], 2 * POOL) > 0.95
    assert adjacent(order, 2 * POOL) < 0.2


def test_a_pool_holds_whole_runs_in_any_order_and_pools_hold_other_runs_each_epoch() -> None:
    n, run = 8192, 32
    pools = []
    for epoch in range(30):
        first = epoch_order(n, 0, epoch, run=run)[:POOL]
        ordered = np.sort(first)
        stretches = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
        assert len(stretches) <= POOL // run + 1
        assert len(np.unique(first % run)) == run
        assert not np.array_equal(first, ordered)
        pools.append(frozenset(first.tolist()))
    assert len(set(pools)) == 30
    borders = {int(np.sort(list(pool))[0]) % run for pool in pools}
    assert len(borders) > 10  # they move, so that a sample does not meet the same company for ever


@pytest.mark.parametrize("run", [1, 16, 100])
def test_with_runs_too_every_sample_is_as_likely_to_come_early(run: int) -> None:
    n = 600
    early = np.zeros(n)
    for epoch in range(400):
        early[epoch_order(n, 1, epoch, run=run)[: n // 2]] += 1
    spread = early.std() / np.sqrt(400 / 4)
    assert early.mean() == 200
    assert spread < (1.3 if run == 1 else 2.5)


@given(n=st.integers(2, 300), batch=st.integers(1, 64), repeats=st.integers(1, 6), seed=st.integers(0, 100))
def test_each_picture_comes_its_repeats_in_one_batch_with_another_number_each_time(n, batch, repeats, seed) -> None:
    batch = min(n, batch)
    order = permutation(n, seed, 0)
    samples, number = repeated(order, batch, repeats)
    assert len(samples) == len(number) == n
    distinct = -(-batch // repeats)
    for start in range(0, n - batch + 1, batch):
        part, again = samples[start : start + batch], number[start : start + batch]
        assert len(set(zip(part.tolist(), again.tolist(), strict=True))) == batch
        assert len(set(part.tolist())) == distinct
        counts = np.unique(part, return_counts=True)[1]
        assert counts.max() <= repeats
        if batch % repeats == 0:
            assert set(counts.tolist()) == {repeats}
        if distinct > 1:
            assert (part[:-1] != part[1:]).all()


def test_with_repeats_an_epoch_sees_that_part_of_the_samples_and_the_next_batch_others() -> None:
    order = permutation(1200, 0, 0)
    samples, _ = repeated(order, 60, 3)
    assert set(samples.tolist()) == set(order[:400].tolist())
    assert not set(samples[:60].tolist()) & set(samples[60:120].tolist())
    assert repeated(order, 60, 1)[0] is order


weight = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))


@given(weights=st.lists(weight, min_size=1, max_size=200).filter(any), seed=seeds, epoch=epochs)
def test_weighted_samples_come_floor_or_ceil_of_their_expected_count(weights, seed, epoch) -> None:
    weights = np.array(weights)
    n = len(weights)
    order = weighted_order(weights, seed, epoch)
    expected = n * weights / weights.sum()
    counts = np.bincount(order, minlength=n)
    assert len(order) == n
    assert (counts >= np.floor(expected - 1e-9)).all()
    assert (counts <= np.ceil(expected + 1e-9)).all()


def test_in_the_long_run_samples_come_in_proportion_to_their_weights() -> None:
    weights = np.array([0.0, 1, 1, 2, 3, 5, 8, 0.1, 0.5, 30])
    counts = sum(np.bincount(weighted_order(weights, 0, epoch), minlength=10) for epoch in range(3000))
    expected = 30000 * weights / weights.sum()
    # each epoch's count is one of two whole numbers, so that its variance is at most 1/4
    assert np.abs(counts - expected).max() < 4 * np.sqrt(3000 / 4)
    assert counts[0] == 0


def test_weighted_samples_are_drawn_independently_of_their_neighbours_in_the_table() -> None:
    weights = np.tile([0.5, 0.5, 1.5, 1.5], 50)
    taken = np.stack([np.bincount(weighted_order(weights, 0, epoch), minlength=200) for epoch in range(500)])
    pairs = np.corrcoef(taken[:, 0::4].T)
    off_diagonal = pairs[~np.eye(len(pairs), dtype=bool)]
    assert abs(off_diagonal.mean()) < 0.03


@pytest.mark.parametrize("options", [{}, {"repeats": 3}, {"run": 20}, {"weights": True}], ids=str)
@pytest.mark.parametrize("world", [1, 2, 4, 12])
def test_the_parts_of_all_processes_make_the_same_batch(options: dict, world: int) -> None:
    if "weights" in options:
        options = {"weights": np.arange(1, 102, dtype=np.float32)}
    schedule = Schedule(subset_of(101), 24, seed=5, **options)
    for step in (0, 1, 3, 4, 11, 4 * 10**6):
        whole = schedule.at(step)
        parts = [schedule.at(step, Share(rank, world)) for rank in range(world)]
        for one, several in zip(whole, zip(*parts, strict=True), strict=True):
            assert np.array_equal(one, np.concatenate(several))
        assert len(whole[0]) == 24


def test_an_epoch_of_batches_is_its_order_and_the_rest_is_left() -> None:
    schedule = Schedule(subset_of(101), 24, seed=2)
    assert schedule.steps_per_epoch == 4
    for epoch in (0, 1, 7):
        seen = np.concatenate([schedule.at(4 * epoch + k)[0] for k in range(4)])
        assert np.array_equal(seen, permutation(101, 2, epoch)[:96])
        places = np.concatenate([schedule.at(4 * epoch + k)[2] for k in range(4)])
        assert np.array_equal(places, np.arange(96))


def test_in_the_long_run_no_sample_is_left_out() -> None:
    schedule = Schedule(subset_of(25), 10)
    seen = np.concatenate([schedule.at(step)[0] for step in range(200)])
    counts = np.bincount(seen, minlength=25)
    assert counts.min() > 60  # of 80 on average, 20 of 25 in each of 100 epochs
    assert stats.chisquare(counts).pvalue > 1e-4


def test_a_source_that_wants_runs_gets_them_unless_told_otherwise() -> None:
    positions = np.arange(1000)[::-1].copy()
    rows = np.arange(0, 1000, 2)
    subset = subset_of(1000, run=25, positions=positions, rows=rows)
    wanted = epoch_order(500, 0, 0, run=25, positions=positions[rows])
    assert np.array_equal(Schedule(subset, 100).at(0)[0], wanted[:100])
    assert np.array_equal(Schedule(subset, 100, run=1).at(0)[0], permutation(500, 0, 0)[:100])


@pytest.mark.parametrize(
    ("size", "share", "words"),
    [
        (0, Share(), "a batch of 0 pictures is none"),
        (11, Share(), "a batch of 11 is larger than the 10 pictures in all of here"),
        (9, Share(0, 2), "a batch of 9 cannot be shared by 2 processes"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_in_one_line(size: int, share: Share, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        Schedule(subset_of(10), size).at(0, share)
    assert "choose a" in str(caught.value)
    assert "\n" not in str(caught.value)
