"""A map laid over the picture that it belongs to."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

HEAT = "inferno"

Floats = NDArray[np.floating[Any]]
Pixels = NDArray[np.uint8]


def scaled(values: Floats) -> Floats:
    """From 0 to 1: each map of (…, rows, columns) by its largest value."""
    largest = values.max(axis=(-2, -1), keepdims=True)
    return values / np.where(largest > 0, largest, 1)


def of_the_mean(values: Floats) -> Floats:
    """In units of each map's mean: 1 where a patch has its equal share."""
    mean = values.mean(axis=(-2, -1), keepdims=True)
    return values / np.where(mean > 0, mean, 1)


def overlay(picture: Pixels, values: Floats, span: tuple[float, float] | None = None) -> Pixels:
    """(height, width, 3): the picture in grey, with the colours of the map, (rows, columns), the stronger the higher it
    is. `span` is what the darkest and the brightest colour stand for; by default, zero and the map's largest value."""
    low, high = (0.0, float(values.max())) if span is None else span
    size = (picture.shape[1], picture.shape[0])
    small = np.clip((values - low) / ((high - low) or 1.0), 0, 1).astype(np.float32)
    full = np.clip(np.asarray(Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)), 0, 1)
    colour = matplotlib.colormaps[HEAT](full)[..., :3]
    grey = in_colour(picture).astype(np.float32).mean(axis=-1, keepdims=True) / 255
    share = 0.3 + 0.45 * full[..., None]
    mixed = np.clip((1 - share) * grey + share * colour, 0, 1) * 255
    return mixed.astype(np.uint8)


def tiled(maps: NDArray[Any], columns: int, gap: int, ground: float = np.nan) -> NDArray[Any]:
    """One picture of many, (count, height, width) or with channels last, in so many columns, a gap between them."""
    count, height, width = maps.shape[:3]
    rows = -(-count // columns)
    shape = (rows * (height + gap) - gap, columns * (width + gap) - gap, *maps.shape[3:])
    sheet = np.full(shape, ground, maps.dtype)
    for place, one in enumerate(maps):
        y, x = place // columns * (height + gap), place % columns * (width + gap)
        sheet[y : y + height, x : x + width] = one
    return sheet


def in_colour(picture: Pixels) -> Pixels:
    """(height, width, 3), whatever the number of channels."""
    return picture if picture.shape[-1] == 3 else np.repeat(picture[..., :1], 3, axis=-1)
