"""Pictures with structure, made or real, on which two ways of computing the same are compared."""

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_image

from vitrail.data.augmentation.ops import Op

Pixels = NDArray[np.uint8]


def smooth(width: int, height: int) -> Pixels:
    """A few slow waves in all directions."""
    y, x = np.mgrid[:height, :width] / max(width, height)
    waves = [np.sin(4 * x + 2 * y), np.sin(3 * y - x + 1), np.cos(5 * x * y + 2)]
    return np.round(127.5 + 120 * np.stack(waves, -1)).astype(np.uint8)


def gradient(width: int, height: int) -> Pixels:
    y, x = np.mgrid[:height, :width]
    planes = [255 * x / max(1, width - 1), 255 * y / max(1, height - 1), 255 * (x + y) / max(1, width + height - 2)]
    return np.stack(planes, -1).astype(np.uint8)


def noise(width: int, height: int) -> Pixels:
    return np.random.default_rng(width * 10_007 + height).integers(0, 256, (height, width, 3), np.uint8)


def dark_noise(width: int, height: int) -> Pixels:
    """Few levels, far from white: contrast, autocontrast and equalize have something to do."""
    return noise(width, height) // 6 + np.array([3, 20, 60], np.uint8)


def text(width: int, height: int) -> Pixels:
    page = Image.new("RGB", (width, height), (240, 235, 220))
    pen = ImageDraw.Draw(page)
    for row in range(0, height, 11):
        pen.text((row % 5, row), "vitrail: a window 0123456789 of panes", fill=(20, 10 + row % 90, 40))
    return np.array(page)


def two_valued(width: int, height: int) -> Pixels:
    return np.where(noise(width, height)[..., :1] < 100, 0, 255).repeat(3, -1).astype(np.uint8)


def constant(width: int, height: int) -> Pixels:
    return np.full((height, width, 3), (77, 140, 201), np.uint8)


def black(width: int, height: int) -> Pixels:
    return np.zeros((height, width, 3), np.uint8)


def real(width: int, height: int) -> Pixels:
    """A photograph that comes with scikit-learn."""
    return np.array(Image.fromarray(load_sample_image("china.jpg")).resize((width, height), Image.Resampling.LANCZOS))


SCENES = {
    make.__name__: make for make in (smooth, gradient, noise, dark_noise, text, two_valued, constant, black, real)
}

FILL = (124, 116, 104)  # the mean, where there is no pixel
INTERPOLATED = {Op.SHEAR_X, Op.SHEAR_Y, Op.ROTATE, Op.BLUR}


def batch_of(pixels: list[Pixels]) -> torch.Tensor:
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)


def grey(pixels: Pixels) -> Pixels:
    return np.array(Image.fromarray(pixels).convert("L"))[..., None]
