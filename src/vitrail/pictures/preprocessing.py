"""The preprocessing that is stored with a model: from any picture to the numbers the model was trained on."""

import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from vitrail.errors import ConfigError
from vitrail.pictures import dialects
from vitrail.pictures.bombs import MAX_PIXELS
from vitrail.pictures.decode import as_picture, decode_at
from vitrail.pictures.draft import reduction
from vitrail.pictures.sources import Source

Fit = Literal["crop", "squash", "pad"]
Interpolation = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]

FITS = ("crop", "squash", "pad")
RESAMPLING = {name: Image.Resampling[name.upper()] for name in dialects.RESAMPLING_CODES}

_LARGEST_RESIZED = 2**26  # pixels, 256 MiB: at 224 the sides of a picture can be as 1 to 1000


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop or pad, normalise; the pixels are timm's, exactly (which resizes a crop that is not square
    bilinearly, whatever it is told; here `interpolation` holds for every shape).

    One exception: a JPEG file that is to become a third or less of its size is decoded at a half, a quarter or an
    eighth, which is much quicker and moves pixels by about half a grey level in the mean (docs/pictures.md has the
    measurements). A PIL picture or an array is taken as it is; so is every file with `interpolation="nearest"`.

    `size` is (height, width). `fit` says what becomes of the aspect ratio: "crop" keeps it and loses the edges,
    "squash" does not keep it, "pad" keeps it and adds borders in the colour of the mean. A `crop_pct` below 1 first
    resizes to floor(size / crop_pct) and then crops the centre. One or three values in `mean` and `std`: grey or RGB.
    """

    size: tuple[int, int] = (224, 224)
    fit: Fit = "crop"
    crop_pct: float = 0.9
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        _set(self, "size", _size(self.size))
        _one_of("fit", self.fit, FITS)
        _one_of("interpolation", self.interpolation, tuple(RESAMPLING))
        crop_pct = _numbers("crop_pct", [self.crop_pct])[0]
        if not 0 < crop_pct <= 1:
            raise ConfigError(f"crop_pct={crop_pct:g} must be above 0 and at most 1")
        _set(self, "crop_pct", crop_pct)
        _set(self, "mean", _numbers("mean", self.mean))
        _set(self, "std", _numbers("std", self.std))
        if len(self.mean) not in (1, 3):
            raise ConfigError(f"mean has {len(self.mean)} values; give 3 for RGB or 1 for grey")
        if len(self.std) != len(self.mean):
            raise ConfigError(f"std has {len(self.std)} values and mean has {len(self.mean)}; give as many of each")
        if min(self.std) <= 0:
            raise ConfigError(f"std={self.std} must be above 0")

    @property
    def channels(self) -> int:
        return len(self.mean)

    def __call__(self, picture: Source | Image.Image | NDArray[Any]) -> NDArray[np.float32]:
        """What the model takes, float32 of (channels, height, width), from anything `as_picture` takes."""
        return self.normalise(self.pixels(picture))

    def pixels(self, picture: Source | Image.Image | NDArray[Any]) -> NDArray[np.uint8]:
        """The step before `normalise`: uint8 of (height, width, channels), a quarter of the bytes for a device."""
        return self.measured_pixels(picture)[0]

    def measured_pixels(
        self,
        picture: Source | Image.Image | NDArray[Any],
        *,
        max_pixels: int = MAX_PIXELS,
        name: str | None = None,
    ) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        """`pixels`, and the (width, height) that the picture has; `max_pixels` and `name` are those of `decode`."""
        if isinstance(picture, Image.Image | np.ndarray) or self.interpolation == "nearest":
            rgb = as_picture(picture, max_pixels=max_pixels, name=name)
            full = rgb.size
        else:
            rgb, full = decode_at(picture, self._shrink, max_pixels=max_pixels, name=name)
        fitted = self._fit(rgb if self.channels == 3 else rgb.convert("L"), full)
        return np.array(fitted).reshape(*self.size, self.channels), full

    def normalise(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(pixels / 255 - mean) / std, from (..., height, width, channels) to (..., channels, height, width)."""
        if pixels.dtype != np.uint8 or pixels.ndim < 3 or pixels.shape[-1] != self.channels:
            raise ValueError(f"pixels are {pixels.dtype} of {pixels.shape}, not uint8 of (…, {self.channels})")
        values = np.ascontiguousarray(np.moveaxis(pixels, -1, -3)).astype(np.float32)
        values /= 255
        values -= np.array(self.mean, np.float32).reshape(-1, 1, 1)
        values /= np.array(self.std, np.float32).reshape(-1, 1, 1)
        return values

    def describe(self) -> str:
        height, width = self.size
        large_h, large_w = self._large
        target, large, how = f"{height} x {width}", f"{large_h} x {large_w}", f"({self.interpolation})"
        cropped = f", centre crop {target}" if self._large != self.size else ""
        if self.fit == "squash":
            steps = f"resize to {large} {how}{cropped}"
        elif self.fit == "pad":
            steps = f"resize to fit in {large} {how}, pad with the mean to {target}"
        elif height == width:
            steps = f"resize shorter side to {large_h} {how}, centre crop {target}"
        else:
            steps = f"resize to cover {large} {how}, centre crop {target}"
        grey = "grey, " if self.channels == 1 else ""
        return f"{grey}{steps}, mean {_list(self.mean)}, std {_list(self.std)}"

    def to_json(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        return cls(**_known(config, {field.name for field in fields(cls)}))

    def to_timm(self) -> dict[str, Any]:
        """The keys of timm's `pretrained_cfg` that say the same."""
        return dialects.to_timm(self)

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> Self:
        """From timm's `pretrained_cfg`, with timm's defaults; its other keys are not looked at."""
        return cls(**dialects.from_timm(_known(config)))

    def to_transformers(self) -> dict[str, Any]:
        """The `preprocessor_config.json` that says the same, for the processor it names.

        Where the crop cannot be centred exactly, transformers rounds its corner down and timm to the even pixel.
        """
        return dialects.to_transformers(self)

    @classmethod
    def from_transformers(cls, config: Mapping[str, Any]) -> Self:
        """From a `preprocessor_config.json` of the ViT, DeiT, BEiT, CLIP, BiT (DINOv2) or SigLIP kind."""
        return cls(**dialects.from_transformers(_known(config)))

    @property
    def _large(self) -> tuple[int, int]:
        height, width = self.size
        return math.floor(height / self.crop_pct), math.floor(width / self.crop_pct)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """The (height, width) a picture is resized to, before it is cropped or padded to `size`."""
        large_h, large_w = self._large
        if self.fit == "squash":
            return large_h, large_w
        if self.fit == "crop" and large_h == large_w:
            short, long = min(height, width), max(height, width)
            other = int(large_h * long / short)
            return (large_h, other) if height <= width else (other, large_h)
        ratios = height / large_h, width / large_w
        ratio = max(ratios) if self.fit == "pad" else min(ratios)
        return max(1, round(height / ratio)), max(1, round(width / ratio))

    def _shrink(self, width: int, height: int) -> float:
        """By how much a picture of this size is reduced, on the side where that is least."""
        resized_h, resized_w = self._resized(height, width)
        return min(height / resized_h, width / resized_w)

    def _fit(self, picture: Image.Image, full: tuple[int, int]) -> Image.Image:
        """The picture resized and cropped or padded, as if it had its `full` (width, height)."""
        height, width = self._resized(full[1], full[0])
        target_h, target_w = self.size
        crop_h, crop_w = min(height, target_h), min(width, target_w)
        resampling = RESAMPLING[self.interpolation]
        left, top = round((width - crop_w) / 2), round((height - crop_h) / 2)
        scale = reduction(picture.size, full)
        inner = full[0] / scale, full[1] / scale
        if height * width <= _LARGEST_RESIZED:
            picture = picture.resize((width, height), resampling, (0, 0, *inner))
            picture = picture.crop((left, top, left + crop_w, top + crop_h))
        else:  # a thread of a picture: only the part that the crop keeps, which differs by a grey level here and there
            x, y = inner[0] / width, inner[1] / height
            box = (left * x, top * y, (left + crop_w) * x, (top + crop_h) * y)
            picture = picture.resize((crop_w, crop_h), resampling, box)
        if (crop_h, crop_w) == self.size:
            return picture
        colour = tuple(min(255, max(0, round(255 * value))) for value in self.mean)
        page = Image.new(picture.mode, (target_w, target_h), colour)
        page.paste(picture, ((target_w - crop_w) // 2, (target_h - crop_h) // 2))
        return page


def _set(target: object, name: str, value: object) -> None:
    object.__setattr__(target, name, value)


def _size(size: object) -> tuple[int, int]:
    pair: list[Any] = list(size) if isinstance(size, tuple | list) else [size, size]
    try:
        if len(pair) != 2 or any(isinstance(n, bool) for n in pair):
            raise TypeError
        height, width = map(operator.index, pair)
    except TypeError:
        raise ConfigError(f"size={size!r} is neither a whole number nor (height, width)") from None
    if height < 1 or width < 1:
        raise ConfigError(f"size={size!r} must be at least 1 x 1")
    return height, width


def _numbers(name: str, values: ArrayLike) -> tuple[float, ...]:
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        numbers = np.empty(())
    if numbers.ndim != 1 or numbers.size == 0 or not np.isfinite(numbers).all():
        raise ConfigError(f"{name}={values!r} must be finite numbers, one for each channel")
    return tuple(numbers.tolist())


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name}={value!r} is not known; choose from {', '.join(known)}")


def _known(config: object, keys: set[str] | None = None) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        raise ConfigError(f"a preprocessing is a table of keys, not {type(config).__name__}")
    unknown = sorted(str(key) for key in config if keys is not None and key not in keys)
    if keys is not None and unknown:
        raise ConfigError(f"unknown key {unknown[0]!r} in the preprocessing; known are {', '.join(sorted(keys))}")
    return cast(dict[str, Any], dict(config))


def _list(values: tuple[float, ...]) -> str:
    return f"({', '.join(f'{value:g}' for value in values)})"
