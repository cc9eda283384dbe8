"""The order in which samples are seen: a function of the seed and the epoch, the same for any number of processes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.data.augmentation.draws import Stream, choice, keys, uniform
from vitrail.data.samples import Integers

POOL = 256  # samples, at least, among which runs are mixed


def permutation(n: int, seed: int, epoch: int, stream: Stream = Stream.ORDER) -> Integers:
    """0 … n - 1 in an order that only (n, seed, epoch) decide."""
    return np.argsort(keys(stream, seed, epoch, torch.arange(n)).numpy(), kind="stable")


def epoch_order(n: int, seed: int, epoch: int, *, run: int = 1, positions: Integers | None = None) -> Integers:
    """The samples of one epoch, each once.

    With `run` above 1 they come in runs of neighbours in the order of the storage (`positions` ranks them), so that a
    disk or a bucket is read in long stretches: runs are shuffled, their borders move from epoch to epoch, and inside
    a pool of a few runs, at least `POOL` samples, every order is possible.
    """
    if run <= 1:
        return permutation(n, seed, epoch)
    stored = np.arange(n) if positions is None else np.argsort(positions, kind="stable")
    key = keys(Stream.RUNS, seed, epoch, torch.tensor([-1]))
    shift = int(choice(uniform(key, 1), run))
    run_of = (np.arange(n) + shift) // run
    count = int(run_of[-1]) + 1 if n else 0
    rank = np.argsort(permutation(count, seed, epoch, Stream.RUNS))
    runs_in_pool = max(1, -(-POOL // run))
    pool_of = rank[run_of] // runs_in_pool
    by_chance = keys(Stream.ORDER, seed, epoch, torch.arange(n)).numpy()[stored]
    return stored[np.lexsort((by_chance, pool_of))]


def repeated(order: Integers, batch_size: int, repeats: int) -> tuple[Integers, Integers]:
    """Repeated augmentation: each sample comes `repeats` times in one batch, with other draws each time.

    Returns samples and the number of the repeat, as long as `order`: an epoch sees 1 / repeats of the samples. In a
    batch the second round follows the first, so that neighbours, which are mixed, are different pictures.
    """
    if repeats == 1:
        return order, np.zeros_like(order)
    n, distinct = len(order), -(-batch_size // repeats)
    at = np.arange(n)
    batch, place = at // batch_size, at % batch_size
    return order[(batch * distinct + place % distinct) % n], place // distinct


def weighted_order(weights: NDArray[np.floating], seed: int, epoch: int) -> Integers:
    """As many samples as there are weights, drawn in proportion to them, shuffled.

    Systematic: sample i comes floor or ceil of its expected count, never further from it by chance.
    """
    n = len(weights)
    key = keys(Stream.RUNS, seed, epoch, torch.tensor([-2]))
    start = float(uniform(key, 1))
    shuffled = permutation(n, seed, epoch, Stream.RUNS)  # so that neighbours are not drawn together
    edges = np.cumsum(weights[shuffled].astype(np.float64))
    edges *= n / edges[-1]
    counts = np.diff(np.floor(np.concatenate([[0.0], edges[:-1], [float(n)]]) + start)).astype(np.int64)
    drawn = np.repeat(shuffled, counts)
    return drawn[permutation(len(drawn), seed, epoch)]
