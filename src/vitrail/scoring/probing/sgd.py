"""A linear head by gradient descent, for a grid of learning rates at once, as DINOv2 does it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vitrail.scoring.probing.heads import Heads, scale_of
from vitrail.scoring.probing.logistic import cross_entropy

RATES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1)  # for batches of 256

_BATCH = 256
_MOMENTUM = 0.9
_EPOCHS = 100
_LEAST, _MOST = 500, 12_500  # steps; DINOv2 takes the latter


def fit_sgd(points: Tensor, labels: Tensor, classes: int, rates: Sequence[float] = RATES, *, seed: int = 0) -> Heads:
    """One head for each rate, on features that are scaled to mean 0 and deviation 1 (MAE's norm before the head): SGD
    with momentum, no decay, rates that fall to 0 along a cosine. All heads see the same batches; their order is a
    function of the seed and the epoch."""
    scale = scale_of(points)
    points = scale(points)
    size = min(_BATCH, len(points))
    steps = max(_LEAST, min(_EPOCHS * math.ceil(len(points) / size), _MOST))
    start = torch.randn(classes, points.shape[1], generator=_generator(seed, 0)) * 0.01
    both = torch.nn.functional.pad(start, (0, 1)).to(points).repeat(len(rates), 1, 1)  # the bias last
    speed = torch.zeros_like(both)
    rate = torch.tensor(list(rates), dtype=points.dtype, device=points.device)[:, None, None] * size / 256
    for step, batch in enumerate(_batches(len(points), size, steps, seed)):
        some = batch.to(points.device)
        _, slope = cross_entropy(points[some], labels[some], both[:, :, :-1], both[:, :, -1])
        speed.mul_(_MOMENTUM).add_(slope)
        both -= rate * (0.5 + 0.5 * math.cos(math.pi * step / steps)) * speed
    return Heads.unscaled(both[:, :, :-1], both[:, :, -1], scale)


def _batches(count: int, size: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Whole batches; what is left over at the end of an epoch waits for the next order."""
    each = count // size
    order = torch.empty(0, dtype=torch.int64)
    for step in range(steps):
        if step % each == 0:
            order = torch.randperm(count, generator=_generator(seed, 1 + step // each))
        place = step % each * size
        yield order[place : place + size]


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) & (2**63 - 1))
