"""Random numbers of a stress test: a function of the seed, of what they are for, and of the picture."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.data.augmentation.draws import Stream, keys, normal, uniform


@dataclass(frozen=True)
class Dice:
    """Numbers for each picture of a batch. The batch, its neighbours and its place in the order play no part."""

    rows: Tensor  # (n,), int64: which pictures of the source
    seed: int
    purpose: str  # equal purposes draw equal numbers, whatever the severity: so levels of one test can be compared

    def uniform(self, *shape: int, number: int = 0) -> Tensor:
        """From [0, 1): (n, *shape), float64. Another `number`, other values."""
        key = keys(Stream.STRESS, self.seed, zlib.crc32(self.purpose.encode()), self.rows, number)
        return uniform(key, math.prod(shape)).view(len(self.rows), *shape)

    def normal(self, *shape: int, number: int = 0) -> Tensor:
        """Of the standard normal distribution: (n, *shape), float64."""
        numbers = self.uniform(2, *shape, number=number)
        return normal(numbers[:, 0], numbers[:, 1])

    def between(self, low: float, high: float, *shape: int, number: int = 0) -> Tensor:
        return low + (high - low) * self.uniform(*shape, number=number)

    def order(self, count: int) -> Tensor:
        """A permutation for each picture: (n, count)."""
        return torch.argsort(self.uniform(count), dim=1, stable=True)
