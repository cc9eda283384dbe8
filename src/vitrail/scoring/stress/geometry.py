"""Pictures turned about their middle, and made larger or smaller there; around them is the colour of the mean."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def rotated(inputs: Tensor, degrees: Tensor) -> Tensor:
    """Normalised pictures, each turned counter-clockwise by its own angle, (n,), with straight lines between pixels."""
    n, channels, height, width = inputs.shape
    angle = torch.deg2rad(degrees.double())
    cos, sin = torch.cos(angle), torch.sin(angle)
    zero = torch.zeros_like(cos)
    # in units of half the sides, as `affine_grid` counts, so that a picture that is not square is not skewed
    there = torch.stack([cos, -sin * height / width, zero, sin * width / height, cos, zero], dim=1).view(n, 2, 3)
    places = F.affine_grid(there, [n, channels, height, width], align_corners=False)
    return F.grid_sample(inputs, places.to(inputs.dtype), mode="bilinear", align_corners=False)


def scaled(inputs: Tensor, factor: float) -> Tensor:
    """Normalised pictures whose content is so many times as large: the middle alone, or the whole amid a margin."""
    height, width = inputs.shape[-2:]
    if factor >= 1:
        h, w = max(1, round(height / factor)), max(1, round(width / factor))
        top, left = (height - h) // 2, (width - w) // 2
        part = inputs[..., top : top + h, left : left + w]
        return F.interpolate(part, (height, width), mode="bicubic", antialias=True)
    h, w = max(1, round(height * factor)), max(1, round(width * factor))
    small = F.interpolate(inputs, (h, w), mode="bicubic", antialias=True)
    top, left = (height - h) // 2, (width - w) // 2
    return F.pad(small, (left, width - w - left, top, height - h - top))
