"""Another picture's colours and textures, by statistics of channels: what is where stays, what it looks like does not.

A picture is split into bands, from fine to coarse (a Laplacian pyramid). In each band and channel the deviation, and
in the coarsest the mean too, is made that of another picture.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_COARSEST = 8  # pixels of the shorter side: below it there is no texture


def bands(pictures: Tensor) -> list[Tensor]:
    """From fine to coarse, each at its own size; `joined` puts them together again."""
    found = []
    while min(pictures.shape[-2:]) >= 2 * _COARSEST:
        small = F.avg_pool2d(pictures, 2, ceil_mode=True)
        found.append(pictures - _as_large(small, pictures))
        pictures = small
    return [*found, pictures]


def joined(parts: list[Tensor]) -> Tensor:
    whole = parts[-1]
    for part in reversed(parts[:-1]):
        whole = part + _as_large(whole, part)
    return whole


def _as_large(small: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(small, like.shape[-2:], mode="bilinear", align_corners=False)


def statistics(pictures: Tensor) -> Tensor:
    """Mean and deviation of each band and channel: (n, bands, channels, 2)."""
    found = [torch.stack([one.mean(dim=(2, 3)), one.std(dim=(2, 3), correction=0)], dim=-1) for one in bands(pictures)]
    return torch.stack(found, dim=1)


def restyled(pictures: Tensor, style: Tensor, share: float) -> Tensor:
    """Pictures, from 0 to 1, moved by this share towards the statistics of others, (n, bands, channels, 2)."""
    parts = bands(pictures)
    own = statistics(pictures)
    for number, part in enumerate(parts):
        (mean, deviation), (other_mean, other_deviation) = (
            table[:, number, :, :, None, None].unbind(dim=2) for table in (own, style)
        )
        parts[number] = (part - mean) / deviation.clamp(min=1e-6) * other_deviation + other_mean
    return torch.lerp(pictures, joined(parts), share).clamp(0, 1)
