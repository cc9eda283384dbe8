"""Perceptual hashes: 64 + 64 bits that stay nearly the same when a picture is resized, re-encoded or made brighter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 32  # pixels that the cosine transform sees; a picture smaller than that has no hash worth comparing

_SPOTS = sorted(((u, v) for u in range(SIDE) for v in range(SIDE) if u + v), key=lambda spot: (sum(spot), spot))[:64]
_ROWS, _COLUMNS = np.array(_SPOTS).T  # the 64 lowest frequencies but the mean
_HIGHEST = int(max(_ROWS.max(), _COLUMNS.max())) + 1
_COSINES = np.cos(np.pi / SIDE * np.arange(_HIGHEST)[:, None] * (np.arange(SIDE) + 0.5)).astype(np.float32)
_BITS = np.uint64(1) << np.arange(64, dtype=np.uint64)
_FAINT = 1.0  # standard deviation, in grey levels, below which what is left is noise


def perceptual_hashes(picture: Image.Image) -> tuple[int, int] | None:
    """The signs of the 64 lowest frequencies (pHash), and of 64 differences between neighbours (dHash); nothing for a
    picture without enough structure to tell it from others."""
    grey = picture.convert("L")
    square = np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BOX), np.float32)
    if square.std() < _FAINT:
        return None
    frequencies = _COSINES @ square @ _COSINES.T
    steps = np.asarray(grey.resize((9, 8), Image.Resampling.BOX), np.int16)
    return _pack(frequencies[_ROWS, _COLUMNS] > 0), _pack((steps[:, 1:] > steps[:, :-1]).ravel())


def distances(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """In how many bits the hashes differ."""
    return np.bitwise_count(one ^ other)


def _pack(bits: NDArray[np.bool_]) -> int:
    return int(_BITS[bits].sum(dtype=np.uint64))
