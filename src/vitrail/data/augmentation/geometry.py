"""Where a picture is cut and how it is turned, as numbers that both engines share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augmentation.ops import Op
from vitrail.data.augmentation.plan import Augmentation
from vitrail.data.augmentation.policy import TRIES

Box = tuple[int, int, int, int]  # left, top, right, bottom


def random_box(plan: Augmentation, numbers: Sequence[float], width: int, height: int) -> Box:
    """A part of `plan.scale` of the area with an aspect in `plan.ratio`, in whole pixels: the first of ten tries that
    fits, else the largest central part of a permitted aspect. `random_boxes` is the same for many pictures at once."""
    low, high = plan.scale
    log_low, log_high = math.log(plan.ratio[0]), math.log(plan.ratio[1])
    for k in range(TRIES):
        area = width * height * (low + (high - low) * numbers[2 * k])
        aspect = math.exp(log_low + (log_high - log_low) * numbers[2 * k + 1])
        wide, tall = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            left = math.floor((width - wide + 1) * numbers[2 * TRIES])
            top = math.floor((height - tall + 1) * numbers[2 * TRIES + 1])
            return left, top, left + wide, top + tall
    wide = max(1, min(width, round(height * plan.ratio[1])))
    tall = max(1, min(height, round(width / plan.ratio[0])))
    left, top = (width - wide) // 2, (height - tall) // 2
    return left, top, left + wide, top + tall


def random_boxes(plan: Augmentation, numbers: Tensor, width: Tensor, height: Tensor) -> Tensor:
    """`random_box` for n pictures: (n, 4), float64."""
    low, high = plan.scale
    log_low, log_high = math.log(plan.ratio[0]), math.log(plan.ratio[1])
    area, aspect = numbers[:, 0 : 2 * TRIES : 2], numbers[:, 1 : 2 * TRIES : 2]
    area = (width * height)[:, None] * (low + (high - low) * area)
    aspect = torch.exp(log_low + (log_high - log_low) * aspect)
    wide, tall = torch.sqrt(area * aspect).round(), torch.sqrt(area / aspect).round()
    fits = (wide > 0) & (wide <= width[:, None]) & (tall > 0) & (tall <= height[:, None])
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    found = fits.any(1)
    widest = torch.minimum(width, (height * plan.ratio[1]).round()).clamp(min=1)
    tallest = torch.minimum(height, (width / plan.ratio[0]).round()).clamp(min=1)
    wide = torch.where(found, wide.gather(1, first)[:, 0], widest)
    tall = torch.where(found, tall.gather(1, first)[:, 0], tallest)
    left = torch.where(found, (width - wide + 1) * numbers[:, 2 * TRIES], (width - wide) / 2).floor()
    top = torch.where(found, (height - tall + 1) * numbers[:, 2 * TRIES + 1], (height - tall) / 2).floor()
    return torch.stack([left, top, left + wide, top + tall], 1)


class Window(NamedTuple):
    """A picture resized to (height, width), of which the part from (top, left) on is taken."""

    height: int
    width: int
    top: int
    left: int


def padded_window(
    plan: Augmentation, numbers: Sequence[float], width: int, height: int, size: tuple[int, int]
) -> Window:
    """The picture resized to just cover `size`, and a random place in it, up to `plan.padding` beyond its edges."""
    target_h, target_w = size
    scale = max(target_h / height, target_w / width)
    tall, wide = max(target_h, round(height * scale)), max(target_w, round(width * scale))
    top = math.floor(numbers[0] * (tall + 2 * plan.padding - target_h + 1)) - plan.padding
    left = math.floor(numbers[1] * (wide + 2 * plan.padding - target_w + 1)) - plan.padding
    return Window(tall, wide, top, left)


def padded_windows(
    plan: Augmentation, numbers: Tensor, width: Tensor, height: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`padded_window` for n pictures: height, width, top and left, each (n,), float64."""
    target_h, target_w = size
    scale = torch.maximum(target_h / height, target_w / width)
    tall, wide = (height * scale).round().clamp(min=target_h), (width * scale).round().clamp(min=target_w)
    top = (numbers[:, 0] * (tall + 2 * plan.padding - target_h + 1)).floor() - plan.padding
    left = (numbers[:, 1] * (wide + 2 * plan.padding - target_w + 1)).floor() - plan.padding
    return tall, wide, top, left


def reflect(index: NDArray[np.integer], size: int) -> NDArray[np.integer]:
    """Indices beyond the edges, turned back at the middle of the outermost pixel: -1 is 1, `size` is `size - 2`.
    `reflects` is the same for many pictures at once."""
    period = max(2 * (size - 1), 1)
    index = index % period
    return np.minimum(index, period - index)


def reflects(index: Tensor, size: Tensor) -> Tensor:
    period = (2 * (size - 1)).clamp(min=1)
    index = torch.remainder(index, period)
    return torch.minimum(index, period - index)


_HAIR = 1e-6  # of a pixel: (32 / 49) * 49 is less than 32 and is to move by 32


def affine(op: Op, value: float, height: int, width: int) -> tuple[float, float, float, float, float, float]:
    """The map from a point of the new picture to one of the old: x' = ax + by + c, y' = dx + ey + f.
    `affines` is the same for many pictures at once."""
    if op == Op.SHEAR_X:
        return 1.0, value, 0.0, 0.0, 1.0, 0.0
    if op == Op.SHEAR_Y:
        return 1.0, 0.0, 0.0, value, 1.0, 0.0
    if op == Op.TRANSLATE_X:
        return 1.0, 0.0, -_whole(value * width), 0.0, 1.0, 0.0
    if op == Op.TRANSLATE_Y:
        return 1.0, 0.0, 0.0, 0.0, 1.0, -_whole(value * height)
    turn = -math.radians(value)
    cos, sin = math.cos(turn), math.sin(turn)
    x, y = width / 2, height / 2
    return cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y


def _whole(pixels: float) -> float:
    return float(math.trunc(pixels + math.copysign(_HAIR, pixels)))


def _wholes(pixels: Tensor) -> Tensor:
    return (pixels + _HAIR * pixels.sign()).trunc()


def affines(ops: Tensor, values: Tensor, height: int, width: int) -> Tensor:
    """`affine` for n pictures: (n, 6), float64; other operations leave every point where it is."""
    one, zero = torch.ones_like(values), torch.zeros_like(values)
    turn = torch.where(ops == Op.ROTATE, -torch.deg2rad(values), 0.0)
    cos, sin = torch.cos(turn), torch.sin(turn)
    x, y = width / 2, height / 2
    rows = [
        cos,
        torch.where(ops == Op.SHEAR_X, values, sin),
        torch.where(ops == Op.TRANSLATE_X, -_wholes(values * width), x - cos * x - sin * y),
        torch.where(ops == Op.SHEAR_Y, values, -sin),
        cos * one,
        torch.where(ops == Op.TRANSLATE_Y, -_wholes(values * height), y + sin * x - cos * y),
    ]
    return torch.stack([row + zero for row in rows], 1)
