"""Random numbers as a function, against splitmix64 in plain integers and against statistics."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitrail.data.augmentation.draws import Stream, choice, keys, normal, scramble, uniform

GOLDEN, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
any_int64 = st.integers(-(2**63), 2**63 - 1)
N = 20_000


def finish(z: int) -> int:
    """The finisher of splitmix64 as published, in integers without a limit."""
    z &= MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def numbers(stream: Stream = Stream.CROP, seed: int = 0, epoch: int = 0, count: int = 1, n: int = N) -> np.ndarray:
    return uniform(keys(stream, seed, epoch, torch.arange(n)), count).numpy()


def test_the_generator_is_splitmix64_as_its_authors_print_it() -> None:
    # the first numbers of the published generator for the seed 1234567
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    state = torch.tensor(1234567) + torch.arange(1, 6) * (GOLDEN - 2**64)
    assert [value % 2**64 for value in scramble(state).tolist()] == wanted


@given(st.lists(any_int64, min_size=1, max_size=20))
def test_scrambling_equals_integers_without_a_limit(values: list[int]) -> None:
    assert [value & MASK for value in scramble(torch.tensor(values)).tolist()] == [finish(value) for value in values]


@given(
    stream=st.sampled_from(Stream),
    seed=st.integers(-(2**80), 2**80),
    epoch=st.integers(0, 2**40),
    index=st.integers(0, 2**40),
    repeat=st.integers(0, 20),
)
def test_any_seed_negative_or_huge_equals_the_reference_bit_for_bit(stream, seed, epoch, index, repeat) -> None:
    start = 0
    for part in (int(stream), seed, epoch):
        start = finish(start + (part + 1) * GOLDEN)
    state = finish(finish(start + index * GOLDEN) + (repeat + 1) * GOLDEN)
    wanted = [(finish(state + k * GOLDEN) >> 11) / 2**53 for k in (1, 2, 3)]
    for again in (repeat, torch.tensor([repeat])):
        found = uniform(keys(stream, seed, epoch, torch.tensor([index]), again), 3)
        assert found.tolist() == [wanted]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40), st.data())
def test_a_sample_draws_the_same_alone_in_any_company_and_with_any_number_asked_for(indices, data) -> None:
    index = torch.tensor(indices)
    together = uniform(keys(Stream.CROP, 3, 5, index), 7)
    at = data.draw(st.integers(0, len(indices) - 1))
    assert torch.equal(uniform(keys(Stream.CROP, 3, 5, index[at : at + 1]), 7)[0], together[at])
    assert torch.equal(uniform(keys(Stream.CROP, 3, 5, index), 4), together[:, :4])
    shuffled = torch.randperm(len(index), generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniform(keys(Stream.CROP, 3, 5, index[shuffled]), 7), together[shuffled])


def test_streams_seeds_epochs_indices_and_repeats_all_draw_differently() -> None:
    index = torch.arange(2000)
    found = [
        keys(stream, seed, epoch, index, repeat)
        for stream in (Stream.CROP, Stream.FLIP)
        for seed in (-1, 0, 1, 2**63, -(2**63) - 1)
        for epoch in (0, 1)
        for repeat in (0, 1, 2)
    ]
    every = torch.cat(found)
    assert len(every.unique()) == len(every)


@pytest.mark.parametrize("stream", list(Stream))
@pytest.mark.parametrize("seed", [0, 1, -7, 2**64 - 1])
def test_numbers_are_uniform(stream: Stream, seed: int) -> None:
    drawn = numbers(stream, seed, count=4)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    for column in drawn.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4
    counts = np.bincount((drawn.ravel() * 64).astype(int), minlength=64)
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("bit", range(53))
def test_every_bit_is_fair(bit: int) -> None:
    ones = ((numbers(count=3) * 2**53).astype(np.int64) >> bit & 1).sum()
    assert stats.binomtest(int(ones), 3 * N).pvalue > 1e-4


NEIGHBOURS = {
    "indices": (numbers()[:-1, 0], numbers()[1:, 0]),
    "every second index": (numbers()[:-2, 0], numbers()[2:, 0]),
    "numbers of one sample": (numbers(count=2)[:, 0], numbers(count=2)[:, 1]),
    "epochs": (numbers(epoch=0)[:, 0], numbers(epoch=1)[:, 0]),
    "seeds": (numbers(seed=0)[:, 0], numbers(seed=1)[:, 0]),
    "seed and epoch exchanged": (numbers(seed=1, epoch=2)[:, 0], numbers(seed=2, epoch=1)[:, 0]),
    "seed of the other sign": (numbers(seed=5)[:, 0], numbers(seed=-5)[:, 0]),
    "streams": (numbers(Stream.CROP)[:, 0], numbers(Stream.FLIP)[:, 0]),
    "a number and the next sample's": (numbers(count=2)[:-1, 1], numbers(count=2)[1:, 0]),
}


@pytest.mark.parametrize("pair", NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
def test_neighbours_know_nothing_of_one_another(pair: tuple[np.ndarray, np.ndarray]) -> None:
    first, second = pair
    assert stats.pearsonr(first, second).pvalue > 1e-4
    assert stats.spearmanr(first, second).pvalue > 1e-4
    table = np.histogram2d(first, second, bins=12, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(table.ravel()).pvalue > 1e-4


def test_choices_are_even_and_never_out_of_range() -> None:
    for options in (1, 2, 3, 7, 15, 31):
        chosen = choice(torch.from_numpy(numbers()[:, 0]), options).numpy()
        assert stats.chisquare(np.bincount(chosen, minlength=options)).pvalue > 1e-4 or options == 1
    almost = torch.tensor([1 - 2.0**-53], dtype=torch.double)
    assert [int(choice(almost, options)) for options in (1, 3, 2**40)] == [0, 2, 2**40 - 1]


def test_two_uniform_numbers_make_a_normal_one() -> None:
    drawn = torch.from_numpy(numbers(count=2))
    found = normal(drawn[:, 0], drawn[:, 1]).numpy()
    assert stats.kstest(found, "norm").pvalue > 1e-4
    edges = normal(torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.double), torch.zeros(2, dtype=torch.double))
    assert edges.isfinite().all()


def test_nobody_is_an_index_too() -> None:
    assert uniform(keys(Stream.CROP, 0, 0, torch.arange(0)), 3).shape == (0, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_draws_the_same_bits() -> None:
    for seed in (0, -3, 2**70):
        for stream in Stream:
            index, repeat = torch.arange(5000), torch.arange(5000) % 3
            here = uniform(keys(stream, seed, 2, index, repeat), 22)
            there = uniform(keys(stream, seed, 2, index.cuda(), repeat.cuda()), 22)
            assert torch.equal(here, there.cpu())
