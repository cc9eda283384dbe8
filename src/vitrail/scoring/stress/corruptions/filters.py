"""Blurs and zooms of a batch, (n, channels, height, width), in floating point."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Edge = Literal["nearest", "reflect"]


def gaussian_blur(x: Tensor, sigma: float, edge: Edge, truncate: float) -> Tensor:
    """By a normalised Gaussian, cut off at `truncate` deviations; any sigma, however large beside the picture."""
    if sigma <= 0:
        return x
    rows, columns = (_blur_matrix(size, sigma, edge, truncate).to(x) for size in x.shape[-2:])
    return rows @ x @ columns.T


@lru_cache(maxsize=16)
def _blur_matrix(size: int, sigma: float, edge: Edge, truncate: float) -> Tensor:
    """(size, size): each row has the weights of one blurred pixel; beyond the edge the line is repeated or mirrored."""
    radius = int(truncate * sigma + 0.5)
    steps = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (steps.double() / sigma) ** 2)
    weights /= weights.sum()
    places = torch.arange(size)[:, None] + steps
    if edge == "nearest":
        places = places.clamp(0, size - 1)
    else:  # d c b a | a b c d | d c b a
        places = places.remainder(2 * size)
        places = torch.minimum(places, 2 * size - 1 - places)
    return torch.zeros(size, size, dtype=torch.double).scatter_add_(1, places, weights.expand(size, -1))


def motion_blur(x: Tensor, angles: Tensor, radius: int, sigma: float) -> Tensor:
    """Half a Gaussian of 2 * radius + 1 pixels along a line at each picture's angle (degrees, float64)."""
    count = 2 * radius + 1
    weights = torch.exp(-0.5 * (torch.arange(count).double() / sigma) ** 2)
    weights /= weights.sum()
    turn = torch.deg2rad(angles)
    n, _, height, width = x.shape
    picture = torch.arange(n, device=x.device)[:, None, None]
    rows, columns = (torch.arange(size, device=x.device) for size in (height, width))
    last = x.permute(0, 2, 3, 1).contiguous()
    blurred = torch.zeros_like(last)
    for step, weight in enumerate(weights.tolist()):
        # pixels come from where the line points to; beyond the edge the last ones are repeated
        down = torch.ceil(step * torch.sin(turn) - 0.5).long()[:, None]
        right = torch.ceil(step * torch.cos(turn) - 0.5).long()[:, None]
        r, c = (rows + down).clamp(0, height - 1), (columns + right).clamp(0, width - 1)
        blurred += weight * last[picture, r[:, :, None], c[:, None, :]]
    return blurred.permute(0, 3, 1, 2)


def zoomed(x: Tensor, factor: float) -> Tensor:
    """The middle of a picture, made larger to its full size by straight lines between pixels."""
    height, width = x.shape[-2:]
    h, w = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - h) // 2, (width - w) // 2
    size = max(height, round(h * factor)), max(width, round(w * factor))
    large = F.interpolate(x[..., top : top + h, left : left + w], size, mode="bilinear", align_corners=True)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return large[..., top : top + height, left : left + width]


def convolved(x: Tensor, kernel: Tensor) -> Tensor:
    """Each channel with one kernel of odd sides; the picture is mirrored at its edge pixels."""
    n, channels, height, width = x.shape
    pad = [side // 2 for side in kernel.shape]
    x = F.pad(x.reshape(n * channels, 1, height, width), (pad[1], pad[1], pad[0], pad[0]), mode="reflect")
    return F.conv2d(x, kernel[None, None].to(x)).view(n, channels, height, width)


def disk(radius: float, edge: float) -> Tensor:
    """A round aperture: equal weights up to the radius, its edge softened by a small Gaussian."""
    reach = max(8, math.ceil(radius))
    line = torch.arange(-reach, reach + 1).double()
    inside = (line[:, None] ** 2 + line**2 <= radius**2).double()
    taps = torch.arange(-1.0, 2.0) if radius <= 8 else torch.arange(-2.0, 3.0)
    weights = torch.exp(-0.5 * (taps.double() / edge) ** 2)
    weights /= weights.sum()
    soft = convolved((inside / inside.sum())[None, None], torch.outer(weights, weights))[0, 0]
    used = int((soft > 1e-12).any(dim=0).nonzero().max()) - reach  # without the empty margin
    return soft[reach - used : reach + used + 1, reach - used : reach + used + 1]
