"""Linear heads for features as the model gives them: what all linear probes are in the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_LOGITS_AT_ONCE = 1 << 25
_ROWS_AT_ONCE = 1 << 14
_TINY = 1e-5  # added to a standard deviation: a feature that never changes is not divided by zero


def blocks(rows: Tensor, size: int) -> Iterator[Tensor]:
    """Rows, so many at a time."""
    return (rows[start : start + size] for start in range(0, len(rows), size))


class Scale(NamedTuple):
    """Mean and standard deviation of each feature among the pictures that a probe learns from."""

    mean: Tensor  # (width,)
    std: Tensor

    def __call__(self, points: Tensor) -> Tensor:
        return (points.to(self.mean) - self.mean) / self.std


def scale_of(points: Tensor, dtype: torch.dtype | None = None) -> Scale:
    """In float64 from blocks, so that a million rows make no copy and lose no digits."""
    exact = points.dtype if points.device.type == "mps" else torch.float64
    mean = torch.zeros(points.shape[1], dtype=exact, device=points.device)
    for block in blocks(points, _ROWS_AT_ONCE):
        mean += block.to(exact).sum(dim=0) / len(points)
    variance = torch.zeros_like(mean)
    for block in blocks(points, _ROWS_AT_ONCE):
        variance += (block.to(exact) - mean).square().sum(dim=0) / len(points)
    dtype = dtype or points.dtype
    return Scale(mean.to(dtype), variance.sqrt().to(dtype) + _TINY)


class Heads(NamedTuple):
    """One linear head for each setting that was tried."""

    weight: Tensor  # (settings, classes, width)
    bias: Tensor  # (settings, classes)

    @classmethod
    def unscaled(cls, weight: Tensor, bias: Tensor, scale: Scale) -> Heads:
        """Heads that were fitted on scaled features, for features as they are."""
        weight = weight / scale.std
        return cls(weight, bias - weight @ scale.mean)

    def logits(self, points: Tensor) -> Tensor:
        """(settings, pictures, classes)."""
        return torch.einsum("nd,scd->snc", points.to(self.weight), self.weight) + self.bias[:, None]

    def answers(self, points: Tensor) -> Tensor:
        """The class that each head says of each picture, on the CPU: (settings, pictures)."""
        rows = max(1, _LOGITS_AT_ONCE // self.bias.numel())
        parts = [self.logits(block).argmax(dim=-1).cpu() for block in blocks(points, rows)]
        return torch.cat(parts, dim=1) if parts else torch.empty(len(self.bias), 0, dtype=torch.int64)
