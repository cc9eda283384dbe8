"""The engine for one picture at a time, in worker processes: from an undecoded picture to augmented pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms.v2 import functional as F

from vitrail.data.augmentation.geometry import affine, padded_window, random_box, reflect
from vitrail.data.augmentation.ops import BLUR_REACH, GEOMETRIC, Op
from vitrail.data.augmentation.plan import Augmentation
from vitrail.data.augmentation.policy import Drawn
from vitrail.data.source import Readable
from vitrail.pictures import Preprocessing, as_picture, decode_at, reduction

Pixels = NDArray[np.uint8]  # (height, width, channels)
Size = tuple[int, int]


class Row(NamedTuple):
    """What was drawn for one sample, as plain numbers."""

    crop: Sequence[float]
    hflip: bool
    vflip: bool
    ops: Sequence[int]
    values: Sequence[float]


def rows(drawn: Drawn) -> list[Row]:
    columns = (drawn.crop, drawn.hflip, drawn.vflip, drawn.ops, drawn.values)
    return [Row(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def augmented(picture: Readable, plan: Augmentation, row: Row, preprocessing: Preprocessing) -> Tensor:
    """The picture cropped, flipped and changed as drawn: uint8 of (channels, height, width)."""
    if plan.crop == "none":
        pixels = _planes(preprocessing.pixels(picture))
    elif plan.crop == "pad":
        pixels = _padded(picture, plan, row, preprocessing)
    else:
        pixels = _random_resized(picture, plan, row, preprocessing)
    flips = [axis for axis, flipped in ((1, row.vflip), (2, row.hflip)) if flipped]
    pixels = pixels.flip(flips) if flips else pixels
    return _changed(pixels, row, fill_colour(preprocessing)) if any(row.ops) else pixels


def _planes(pixels: Pixels) -> Tensor:
    """(height, width, channels) as (channels, height, width); nothing is copied."""
    return torch.from_numpy(pixels).permute(2, 0, 1)


def fill_colour(preprocessing: Preprocessing) -> tuple[int, ...]:
    """What stands where a picture has no pixels: the mean, which is zero to the model."""
    return tuple(min(255, max(0, round(255 * value))) for value in preprocessing.mean)


def _pixels(picture: Image.Image) -> Pixels:
    return np.array(picture).reshape(picture.height, picture.width, -1)


def _resized(pixels: Pixels, size: Size, interpolation: str) -> Tensor:
    """Antialiased. torch's kernel for bytes does what Pillow's does in a third of the time."""
    planes = _planes(pixels).unsqueeze(0)
    return interpolate(planes, size, mode=interpolation, antialias=True, align_corners=False)[0]


def _decoded(picture: Readable, shrink: Callable[[int, int], float], channels: int) -> tuple[Image.Image, Size, int]:
    """The picture in its channels, perhaps smaller; its full (width, height); and by how much it is smaller."""
    if isinstance(picture, Image.Image | np.ndarray):
        decoded = as_picture(picture)
        full = decoded.size
    else:
        decoded, full = decode_at(picture, shrink)
    return decoded if channels == 3 else decoded.convert("L"), full, reduction(decoded.size, full)


def _random_resized(picture: Readable, plan: Augmentation, row: Row, preprocessing: Preprocessing) -> Tensor:
    height, width = preprocessing.size

    def shrink(full_width: int, full_height: int) -> float:
        left, top, right, bottom = random_box(plan, row.crop, full_width, full_height)
        return min((right - left) / width, (bottom - top) / height)

    decoded, full, smaller = _decoded(picture, shrink, preprocessing.channels)
    left, top, right, bottom = random_box(plan, row.crop, *full)
    if smaller > 1:
        left, top, right, bottom = (round(side / smaller) for side in (left, top, right, bottom))
        right, bottom = min(right, decoded.width), min(bottom, decoded.height)
    return _resized(_pixels(decoded.crop((left, top, right, bottom))), (height, width), plan.interpolation)


def _padded(picture: Readable, plan: Augmentation, row: Row, preprocessing: Preprocessing) -> Tensor:
    size = preprocessing.size

    def shrink(full_width: int, full_height: int) -> float:
        window = padded_window(plan, row.crop, full_width, full_height, size)
        return min(full_width / window.width, full_height / window.height)

    decoded, full, smaller = _decoded(picture, shrink, preprocessing.channels)
    window = padded_window(plan, row.crop, *full, size)
    planes = _planes(_pixels(decoded))
    if smaller > 1:  # the last column and row may be partly beyond the edge, which torch's kernel cannot say
        box, kind = (0, 0, full[0] / smaller, full[1] / smaller), Image.Resampling[plan.interpolation.upper()]
        planes = _planes(_pixels(decoded.resize((window.width, window.height), kind, box)))
    elif decoded.size != (window.width, window.height):
        planes = _resized(_pixels(decoded), (window.height, window.width), plan.interpolation)
    down, along = np.arange(size[0]) + window.top, np.arange(size[1]) + window.left
    rows, columns = reflect(down, window.height), reflect(along, window.width)
    taken = planes[:, torch.from_numpy(rows)][:, :, torch.from_numpy(columns)]
    if plan.padding_mode == "constant":
        beyond = ((down < 0) | (down >= window.height))[:, None] | (along < 0) | (along >= window.width)
        colour = torch.tensor(fill_colour(preprocessing), dtype=torch.uint8)
        taken[:, torch.from_numpy(beyond)] = colour[:, None]
    return taken


def _changed(planes: Tensor, row: Row, fill: tuple[int, ...]) -> Tensor:
    pixels = planes.permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(pixels if len(planes) == 3 else pixels[..., 0])
    for op, value in zip(row.ops, row.values, strict=True):
        if op:
            picture = apply(picture, Op(op), value, fill)
    return _planes(_pixels(picture))


def apply(picture: Image.Image, op: Op, value: float, fill: tuple[int, ...]) -> Image.Image:
    """One operation on a picture of 8 bits, grey or RGB."""
    if op in GEOMETRIC:
        colour = fill if picture.mode == "RGB" else fill[0]
        data = affine(op, value, picture.height, picture.width)
        kind = Image.Transform.AFFINE
        return picture.transform(picture.size, kind, data, Image.Resampling.BILINEAR, fillcolor=colour)
    if op == Op.SOLARIZE_ADD:
        added = [min(255, level + int(value)) if level < 128 else level for level in range(256)]
        return picture.point(added * len(picture.getbands()))
    if op == Op.BLUR:
        side = 2 * min(BLUR_REACH, picture.width - 1, picture.height - 1) + 1
        return cast(Image.Image, F.gaussian_blur(picture, [side, side], [value, value]))
    change: Any = _CHANGES[op]
    return cast(Image.Image, change(picture, value))


_CHANGES = {
    Op.BRIGHTNESS: F.adjust_brightness,
    Op.CONTRAST: F.adjust_contrast,
    Op.COLOR: F.adjust_saturation,
    Op.SHARPNESS: F.adjust_sharpness,
    Op.POSTERIZE: lambda picture, value: F.posterize(picture, int(value)),
    Op.SOLARIZE: F.solarize,
    Op.AUTOCONTRAST: lambda picture, value: F.autocontrast(picture),
    Op.EQUALIZE: lambda picture, value: F.equalize(picture),
    Op.INVERT: lambda picture, value: F.invert(picture),
    Op.HUE: F.adjust_hue,
    Op.GREY: lambda picture, value: F.rgb_to_grayscale(picture, len(picture.getbands())),
}
