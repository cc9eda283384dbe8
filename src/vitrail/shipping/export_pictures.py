"""Preprocessing as a part of the graph: raw pixels of any size go in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.pictures import Preprocessing

INTERPOLATIONS = {"bicubic": "bicubic", "bilinear": "bilinear", "nearest": "nearest-exact"}


class FromPictures(nn.Module):
    """What `Preprocessing` does, in floats and for a batch of pictures of one size: uint8 of (batch, height, width,
    channels), upright and with as many channels as the model has.

    Pillow resizes in whole grey levels, and reads a large JPEG smaller; here nothing is rounded. The logits differ by
    that much.
    """

    def __init__(self, inner: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        if preprocessing.interpolation not in INTERPOLATIONS:
            raise VitrailError(
                f"the preprocessing resizes by {preprocessing.interpolation}, which no graph can say: export without "
                f"--with-preprocessing, or load the model with one of {', '.join(INTERPOLATIONS)}"
            )
        if preprocessing.fit == "pad" and preprocessing.crop_pct < 1:
            raise VitrailError("a graph cannot both pad and crop: export without --with-preprocessing")
        self.inner = inner
        self.preprocessing = preprocessing
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(preprocessing.std).view(1, -1, 1, 1))

    def forward(self, pictures: Tensor) -> Any:
        values = self._fit(pictures.permute(0, 3, 1, 2).to(self.mean.dtype))
        return self.inner((values / 255 - self.mean) / self.std)

    def _fit(self, values: Tensor) -> Tensor:
        height, width = self._resized(values.shape[-2], values.shape[-1])
        mode = INTERPOLATIONS[self.preprocessing.interpolation]
        values = F.interpolate(values, (height, width), mode=mode, antialias=mode != "nearest-exact")
        values = values.clamp(0, 255)  # bicubic overshoots
        target_h, target_w = self.preprocessing.size
        if self.preprocessing.fit == "pad":
            return self._pad(values, height, width)
        top, left = _middle(height - target_h), _middle(width - target_w)
        return values[:, :, top : top + target_h, left : left + target_w]

    def _resized(self, height: Any, width: Any) -> tuple[Any, Any]:
        """`Preprocessing._resized` in whole numbers, which a graph can have for any size."""
        large_h, large_w = (int(side / self.preprocessing.crop_pct) for side in self.preprocessing.size)
        if self.preprocessing.fit == "squash":
            return large_h, large_w
        if self.preprocessing.fit == "crop" and large_h == large_w:
            short = _least(height, width)
            return large_h * height // short, large_w * width // short
        by_width, by_height = _rounded(height * large_w, width), _rounded(width * large_h, height)
        choose = _greatest if self.preprocessing.fit == "crop" else _least
        return _greatest(1, choose(large_h, by_width)), _greatest(1, choose(large_w, by_height))

    def _pad(self, values: Tensor, height: Any, width: Any) -> Tensor:
        """In the middle of a page in the colour of the mean."""
        target_h, target_w = self.preprocessing.size
        above, before = (target_h - height) // 2, (target_w - width) // 2
        colour = (255 * self.mean).round().clamp(0, 255)
        return F.pad(values - colour, (before, target_w - width - before, above, target_h - height - above)) + colour


def _middle(rest: Any) -> Any:
    return _rounded(rest, 2)


def _rounded(number: Any, by: Any) -> Any:
    """One divided by the other and rounded as Python rounds: from the middle between two to the even one."""
    up = (2 * number + by) // (2 * by)
    from_middle = 1 // (2 * number + by - 2 * by * up + 1)
    return up - from_middle * (up - up // 2 * 2)


def _least(one: Any, other: Any) -> Any:
    """The lesser of two whole numbers that are not negative, by what every format has: no branch, no minimum."""
    is_less = 1 // (one // _at_least_one(other) + 1)
    return is_less * one + (1 - is_less) * other


def _greatest(one: Any, other: Any) -> Any:
    return one + other - _least(one, other)


def _at_least_one(number: Any) -> Any:
    return number + 1 // (number + 1)
