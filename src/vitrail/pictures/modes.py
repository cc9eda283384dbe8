"""Any mode of picture, and any array that is one, to 8-bit RGB."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops

from vitrail.errors import PictureError

_TOLERANCE = 1e-6  # how far a float may lie outside [0, 1]: the rounding of a resize, not another range
_MIDDLE_GREY = 128
_BAND = 2**22  # pixels that are worked on at a time


def to_rgb(picture: Image.Image, *, may_keep: bool = False) -> Image.Image:
    """A new 8-bit RGB picture with no metadata. With `may_keep` it may share the memory of `picture`, which nobody
    must use any more: at 2000 x 1500 a copy costs as much as decoding.

    Alpha is composed over white. 16-bit grey is divided by 257; so are 32-bit integers that fit in 16 bits. Floats
    within [0, 1] are multiplied by 255. Anything wider is scaled from its least to its greatest finite value, to middle
    grey if these are equal. NaN is black. Colour profiles are not applied.
    """
    if picture.mode == "CMYK" and picture.format in ("JPEG", "MPO") and "adobe" not in picture.info:
        picture = ImageChops.invert(picture)  # Pillow takes every such JPEG for one of Adobe's, which are negatives
    if picture.mode.startswith("I;16") or picture.mode in ("I", "F"):
        rgb = Image.fromarray(_grey(picture)).convert("RGB")
    elif picture.has_transparency_data:
        rgb = _over_white(picture)
    elif may_keep and picture.mode == "RGB" and not picture.readonly:  # such memory belongs to an open file
        rgb = picture._new(picture.im)
    else:
        rgb = picture.convert("RGB")  # a copy where it is RGB already
    rgb.info = {}  # an orientation left here would be applied a second time
    return rgb


def from_array(array: NDArray[Any], name: str) -> Image.Image:
    """An array of (height, width[, 1, 3 or 4]) as an 8-bit RGB picture; the fourth channel is alpha, over white."""
    shape = " x ".join(map(str, array.shape))
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in (3, 4)):
        remedy = "move the channels last" if array.ndim == 3 and array.shape[0] in (1, 3, 4) else "change the shape"
        raise PictureError(f"{name}: {shape or 'a number'} is not height x width (x 1, 3 or 4); {remedy}")
    if 0 in array.shape:
        raise PictureError(f"{name}: {shape} holds no pixels; check where it was made")
    return to_rgb(Image.fromarray(np.ascontiguousarray(_eight_bits(array, name))))


def _eight_bits(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:
        return _sixteen_to_eight(array)
    if array.dtype.kind != "f":
        raise PictureError(
            f"{name}: values of type {array.dtype} have no known range; convert to uint8, uint16, or floats in [0, 1]"
        )
    if np.isnan(array).any():
        raise PictureError(f"{name}: holds NaN; replace those values first")
    low, high = float(array.min()), float(array.max())
    if low < -_TOLERANCE or high > 1 + _TOLERANCE:
        raise PictureError(f"{name}: floats from {low:g} to {high:g} do not lie in [0, 1]; scale them, or use uint8")
    return _unit_to_eight(array)


def _over_white(picture: Image.Image) -> Image.Image:
    mode = picture.mode
    if mode == "La":
        picture = picture.convert("LA")
    elif mode == "P":
        picture = picture.copy()  # `convert` writes the transparency into the palette of its source
    elif mode == "RGB" and max(picture.info["transparency"]) > 255:
        # A 16-bit PNG: Pillow keeps the high byte of each pixel, and both bytes of the transparent colour.
        picture = picture.copy()
        picture.info["transparency"] = tuple(value >> 8 for value in picture.info["transparency"])
    rgba = picture if picture.mode == "RGBA" else picture.convert("RGBA")
    alpha = rgba.getchannel("A")
    rgb = rgba.convert("RGB")
    if alpha.getextrema() == (255, 255):
        return rgb
    page = Image.new("RGB", rgb.size, "white")
    page.paste(rgb, mask=alpha)
    return page


def _grey(picture: Image.Image) -> NDArray[np.uint8]:
    """In bands of rows: a large picture is in memory two or three times, and not ten."""
    values = np.asarray(picture)
    height = max(1, _BAND // values.shape[1])
    bands = [slice(row, row + height) for row in range(0, len(values), height)]
    scale = _scale(picture.mode, [values[band] for band in bands])
    transparent = picture.info.get("transparency")
    grey = np.empty(values.shape, np.uint8)
    for band in bands:
        grey[band] = scale(values[band])
        if isinstance(transparent, int):
            grey[band][values[band] == transparent] = 255
    return grey


def _scale(mode: str, bands: Sequence[NDArray[Any]]) -> Callable[[NDArray[Any]], NDArray[np.uint8]]:
    """How the values of these bands, taken together, become eight bits."""
    if bands[0].dtype.itemsize == 2:
        return _sixteen_to_eight
    finite = (band[np.isfinite(band)] for band in bands)
    ends = [(float(values.min()), float(values.max())) for values in finite if values.size]
    low = min((least for least, _ in ends), default=math.inf)
    high = max((greatest for _, greatest in ends), default=-math.inf)
    if mode == "I" and low >= 0 and high <= 65535:
        return _sixteen_to_eight
    infinite = any(np.isinf(band).any() for band in bands)
    if mode == "F" and low >= -_TOLERANCE and high <= 1 + _TOLERANCE and not infinite:
        return lambda values: _unit_to_eight(np.nan_to_num(values))
    return lambda values: _spread(values, low, high)


def _sixteen_to_eight(values: NDArray[Any]) -> NDArray[np.uint8]:
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 257 is odd: no value lies half way


def _unit_to_eight(values: NDArray[Any]) -> NDArray[np.uint8]:
    return np.rint(np.clip(values.astype(np.float32, copy=False), 0, 1) * 255).astype(np.uint8)


def _spread(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Linear from the least to the greatest finite value; the infinities go to the ends, NaN to black."""
    with np.errstate(invalid="ignore"):  # some kinds of NaN complain
        values = values.astype(np.float64)
    if low < high:
        known = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
        scaled = np.rint((known - low) / (high - low) * 255)
    else:
        scaled = np.where(np.isfinite(values), _MIDDLE_GREY, np.where(values > 0, 255, 0))
    return scaled.astype(np.uint8)
