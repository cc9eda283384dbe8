"""Blurs: out of focus, behind frosted glass, in motion, zooming."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitrail.scoring.stress.corruptions.filters import convolved, disk, gaussian_blur, motion_blur, zoomed
from vitrail.scoring.stress.dice import Dice


def defocus_blur(pixels: Tensor, how: tuple[float, float], dice: Dice) -> Tensor:
    return convolved(pixels.float() / 255, disk(*how))


def glass_blur(pixels: Tensor, how: tuple[float, int, int], dice: Dice) -> Tensor:
    """Between two slight blurs, each pixel takes the colour of one nearby.

    The authors walk from the last pixel to the first; what they write as an exchange of two pixels is, as their code
    runs, a copy of one over the other, and the published pictures are made so.
    """
    sigma, step, rounds = how
    values = _bytes(gaussian_blur(pixels.double() / 255, sigma, "nearest", 4))
    for number in range(rounds):
        source = copied_from(dice.uniform(2, *pixels.shape[-2:], number=number), step)
        values = values.flatten(2).gather(2, source[:, None].expand(-1, values.shape[1], -1)).view_as(values)
    return gaussian_blur(values / 255, sigma, "nearest", 4)


def copied_from(numbers: Tensor, step: int) -> Tensor:
    """Where each pixel's colour comes from after one walk, (n, height * width), from (n, 2, height, width) numbers.

    A pixel takes the colour of its neighbour as that is by then: if the walk has passed it, the colour that the
    neighbour itself has taken. So colours are handed on along chains, which are followed by doubling.
    """
    n, _, height, width = numbers.shape
    across, down = (numbers * 2 * step).long().sub(step).unbind(dim=1)  # from -step to step - 1
    rows = torch.arange(height, device=numbers.device)[:, None].expand(height, width)
    columns = torch.arange(width, device=numbers.device).expand(height, width)
    own = rows * width + columns
    walked = (rows > step) & (rows <= height - step) & (columns > step) & (columns <= width - step)
    neighbour = ((rows + down) * width + columns + across).where(walked, own)
    safe = neighbour.clamp(0, height * width - 1).flatten(1)
    passed = (safe > own.flatten()) & walked.flatten().expand(n, -1).gather(1, safe)
    count = height * width
    old = torch.arange(count, 2 * count, device=numbers.device).expand(n, -1)  # colours before the walk
    chain = torch.cat([torch.where(passed, safe, safe + count), old], dim=1)
    while bool((chain[:, :count] < count).any()):
        chain = chain.gather(1, chain)
    return chain[:, :count] - count


def motion(pixels: Tensor, how: tuple[int, float], dice: Dice) -> Tensor:
    return motion_blur(pixels.float() / 255, dice.between(-45, 45, 1)[:, 0], *how)


def zoom_blur(pixels: Tensor, how: tuple[float, float], dice: Dice) -> Tensor:
    """The mean of the picture and of its enlargements."""
    largest, step = how
    x = pixels.float() / 255
    factors = [1 + step * number for number in range(round((largest - 1) / step) + 1)]
    total = x + x  # itself, and enlarged by 1
    for factor in factors[1:]:
        total += zoomed(x, factor)
    return total / (len(factors) + 1)


def _bytes(values: Tensor) -> Tensor:
    return (values.clamp(0, 1) * 255 + 1e-4).floor()


BLURS: dict[str, Any] = {
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion,
    "zoom_blur": zoom_blur,
}
