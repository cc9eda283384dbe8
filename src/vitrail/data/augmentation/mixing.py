"""Mixup and CutMix: neighbours in the global batch, two by two, take from one another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.data.augmentation import Augmentation
from vitrail.data.augmentation.draws import Stream, keys, uniform

_TABLE = 8192


@dataclass(frozen=True)
class Mix:
    """Each picture's part in itself; the rest, a share of every pixel or a box of them, is its partner's."""

    partner: Tensor  # (n,), int64: in this batch
    share: Tensor  # (n,), float32: of the label
    blend: Tensor  # (n,), float32: of every pixel outside the box
    box: Tensor  # (n, 4), int64: left, top, right, bottom, all of it the partner's

    def part(self, start: int, stop: int) -> Mix:
        """Of the samples from `start` to `stop`, which begin and end with whole pairs."""
        each = slice(start, stop)
        return Mix(self.partner[each] - start, self.share[each], self.blend[each], self.box[each])

    def pixels(self, values: Tensor) -> Tensor:
        """(n, channels, height, width), floats, mixed."""
        other = values[self.partner]
        blend = self.blend.to(values.dtype).view(-1, 1, 1, 1)
        return torch.where(inside(self.box, values), other, torch.lerp(other, values, blend))  # at 1, `values` exactly

    def targets(self, labels: Tensor, classes: int) -> Tensor:
        """(n, classes), from labels (n,) or rows of targets."""
        rows = labels if labels.ndim == 2 else functional.one_hot(labels, classes).float()
        share = self.share.to(rows.dtype).view(-1, 1)
        return torch.lerp(rows[self.partner], rows, share)


def inside(box: Tensor, values: Tensor) -> Tensor:
    """Which pixels of (n, channels, height, width) are in the box of theirs: (n, 1, height, width)."""
    left, top, right, bottom = box.view(-1, 4, 1, 1).unbind(1)
    x = torch.arange(values.shape[3], device=values.device)
    y = torch.arange(values.shape[2], device=values.device)[:, None]
    return ((x >= left) & (x < right) & (y >= top) & (y < bottom)).unsqueeze(1)


def draw_mix(plan: Augmentation, seed: int, epoch: int, place: Tensor, size: tuple[int, int]) -> Mix:
    """For the samples at these places (int64) in the epoch's order, which begin at an even one: 0 and 1 are a pair, 2
    and 3, and so on. The two of a pair share their draw, so that any number of processes mixes the same pictures."""
    n, device = len(place), place.device
    number = uniform(keys(Stream.MIX, seed, epoch, place // 2), 5)
    cut = number[:, 1] < (0.5 if plan.mixup > 0 else 1.0) if plan.cutmix > 0 else torch.zeros_like(place).bool()
    partner = torch.arange(n, device=device) ^ 1
    mixed = (number[:, 0] < plan.mix_prob) & (partner < n)
    partner = torch.where(mixed, partner, torch.arange(n, device=device))
    blend = torch.where(mixed & ~cut, _beta(plan.mixup, number[:, 2]), 1.0)
    box = _box(_beta(plan.cutmix, number[:, 2]), number[:, 3:], size) * (mixed & cut)[:, None]
    left, top, right, bottom = box.unbind(1)
    kept = 1 - (right - left) * (bottom - top) / (size[0] * size[1])
    return Mix(partner, torch.where(cut, kept, blend).float(), blend.float(), box)


def _box(share: Tensor, centre: Tensor, size: tuple[int, int]) -> Tensor:
    """Yun et al. 2019: a box of 1 - share of the area around a point, cut off at the edges."""
    height, width = size
    reach = 0.5 * torch.sqrt(1 - share)
    x, y = (centre[:, 0] * width).floor(), (centre[:, 1] * height).floor()
    wide, tall = (reach * width).floor(), (reach * height).floor()
    sides = [
        (x - wide).clamp(0, width),
        (y - tall).clamp(0, height),
        (x + wide).clamp(0, width),
        (y + tall).clamp(0, height),
    ]
    return torch.stack(sides, 1).long()


def _beta(alpha: float, number: Tensor) -> Tensor:
    """Numbers from [0, 1) as ones of the distribution Beta(alpha, alpha)."""
    if alpha <= 0:
        return torch.ones_like(number)
    table = _quantiles(alpha).to(number.device)
    place = 2 * torch.minimum(number, 1 - number) * _TABLE  # it is symmetric: the lower half is enough
    low = place.floor().clamp(max=_TABLE - 1)
    first, second = table[low.long()], table[low.long() + 1]
    lower = 0.5 * (first + (second - first) * (place - low)) ** (1 / _power(alpha))
    return torch.where(number < 0.5, lower, 1 - lower)


def _power(alpha: float) -> float:
    """Quantiles begin like the root of this degree, which a table of them to this power follows."""
    return min(alpha, 32.0)


@lru_cache(maxsize=8)
def _quantiles(alpha: float) -> Tensor:
    """The lower half of the quantile function at `_TABLE` + 1 points, as (2 x)^power.

    Below 1 the density has a pole at 0. With x = u^(1 / alpha) / 2 that of u is (1 - x)^(alpha - 1), which has none.
    """
    bend = max(1.0, 1 / alpha)
    u = torch.linspace(0, 1, 16 * _TABLE + 1, dtype=torch.double)
    x = 0.5 * u**bend
    density = (1 - x) ** (alpha - 1) if alpha < 1 else (4 * x * (1 - x)) ** (alpha - 1)
    total = torch.cat([torch.zeros(1, dtype=torch.double), torch.cumulative_trapezoid(density, u)])
    wanted = torch.linspace(0, 1, _TABLE + 1, dtype=torch.double) * total[-1]
    right = torch.searchsorted(total, wanted).clamp(1, len(u) - 1)
    part = (wanted - total[right - 1]) / (total[right] - total[right - 1]).clamp(min=1e-300)
    return (u[right - 1] + (u[right] - u[right - 1]) * part) ** (bend * _power(alpha))
