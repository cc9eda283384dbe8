"""Antialiased resampling as matrices: each row weighs the old pixels for one new pixel, as Pillow does it."""

from __future__ import annotations

import torch
from torch import Tensor


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    """Keys' kernel with a = -1/2, Pillow's bicubic."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


KERNELS = {"bilinear": _triangle, "bicubic": _cubic}


def weights(start: Tensor, step: Tensor, index: Tensor, new: int, size: int, interpolation: str) -> Tensor:
    """(n, len(index), old): pixels `index` (n, …) of the `new` ones that take the place of `new * step` old ones from
    `start` on, both (n,), of `size`. Rows sum to 1; pixels outside that part have no part in it."""
    start, step = start[:, None, None], step[:, None, None]
    centre = start + (index[:, :, None] + 0.5) * step
    at = torch.arange(size, device=start.device, dtype=start.dtype) + 0.5
    found = KERNELS[interpolation]((at - centre) / step.clamp(min=1))  # the kernel grows where the picture shrinks
    half = new * step / 2
    inside = (at - start - half).abs() < half.clamp(min=0.5 + 1e-6)  # of a part within one pixel: that pixel
    found = torch.where(inside, found, 0.0)
    return found / found.sum(2, keepdim=True)


def resample(pixels: Tensor, down: Tensor, along: Tensor) -> Tensor:
    """(n, channels, height, width) of whole numbers, by weights (n, new height, height) and (n, new width, width).

    Rounded to 8 bits after either pass, the horizontal one first: Pillow's result, give or take one level.
    """
    n, channels, height, _ = pixels.shape
    rows = _bytes(pixels.flatten(1, 2) @ along.mT)
    rows = rows.view(n, channels, height, -1).transpose(1, 2).flatten(2)  # (n, height, channels * new width)
    new = _bytes(down @ rows)
    return new.view(n, down.shape[1], channels, -1).transpose(1, 2)


def _bytes(sums: Tensor) -> Tensor:
    """Halves are rounded up, as Pillow does: at 2 : 1 every eighth sum is one."""
    return sums.add_(0.5).floor_().clamp_(0, 255)
