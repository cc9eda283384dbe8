"""How timm and transformers write a preprocessing down, both ways."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.pictures.preprocessing import Preprocessing

RESAMPLING_CODES = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # Pillow's
_RESAMPLING_NAMES = {code: name for name, code in RESAMPLING_CODES.items()}

_FIT_OF_CROP_MODE = {"center": "crop", "squash": "squash", "border": "pad"}
_CROP_MODE_OF_FIT = {fit: mode for mode, fit in _FIT_OF_CROP_MODE.items()}

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


class _Processor(NamedTuple):
    """What a processor of transformers takes where its file is silent."""

    size: Any
    crop_size: int | None
    resample: int
    norm: tuple[tuple[float, ...], tuple[float, ...]]
    number_is_square: bool  # what a bare number for `size` means: a square, or the shorter side


_PROCESSORS = {
    "vit": _Processor({"height": 224, "width": 224}, None, 2, HALF, True),
    "deit": _Processor({"height": 256, "width": 256}, 224, 3, HALF, True),
    "beit": _Processor({"height": 224, "width": 224}, None, 3, HALF, True),
    "clip": _Processor({"shortest_edge": 224}, 224, 3, CLIP, False),
    "bit": _Processor({"shortest_edge": 224}, 224, 3, CLIP, False),
    "siglip": _Processor({"height": 224, "width": 224}, None, 3, HALF, False),
}


def to_timm(preprocessing: "Preprocessing") -> dict[str, Any]:
    return {
        "input_size": [preprocessing.channels, *preprocessing.size],
        "interpolation": preprocessing.interpolation,
        "crop_pct": preprocessing.crop_pct,
        "crop_mode": _CROP_MODE_OF_FIT[preprocessing.fit],
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
    }


def from_timm(config: dict[str, Any]) -> dict[str, Any]:
    input_size = config.get("input_size") or (3, 224, 224)
    if not isinstance(input_size, tuple | list) or len(input_size) != 3:
        raise ConfigError(f"input_size={input_size!r} is not (channels, height, width)")
    mode = config.get("crop_mode") or "center"
    if mode not in _FIT_OF_CROP_MODE:
        raise ConfigError(f"crop_mode={mode!r} is not known; choose from {', '.join(_FIT_OF_CROP_MODE)}")
    mean, std = (config.get(key) or default for key, default in zip(("mean", "std"), IMAGENET, strict=True))
    if len(mean) != input_size[0]:
        raise ConfigError(f"mean has {len(mean)} values for {input_size[0]} channels; give one for each")
    return {
        "size": input_size[1:],
        "fit": _FIT_OF_CROP_MODE[mode],
        "crop_pct": config.get("crop_pct") or 0.875,
        "interpolation": config.get("interpolation") or "bicubic",
        "mean": mean,
        "std": std,
    }


def to_transformers(preprocessing: "Preprocessing") -> dict[str, Any]:
    height, width = preprocessing.size
    if preprocessing.channels != 3:
        raise ConfigError("transformers' processors know no grey models; save the model with three channels")
    large = [math.floor(n / preprocessing.crop_pct) for n in preprocessing.size]
    square = {"height": large[0], "width": large[1]}
    if preprocessing.fit == "crop" and height == width:
        kind, size = "CLIPImageProcessor", {"shortest_edge": large[0]}
    elif preprocessing.fit == "squash":
        kind, size = "ViTImageProcessor" if large == [height, width] else "DeiTImageProcessor", square
    else:
        what = f'fit="{preprocessing.fit}" to {height} x {width}'
        raise ConfigError(f'transformers has no processor for {what}; use fit="squash", or a square crop')
    cropped = kind != "ViTImageProcessor"
    return {
        "image_processor_type": kind,
        "do_convert_rgb": True,
        "do_resize": True,
        "size": size,
        "resample": RESAMPLING_CODES[preprocessing.interpolation],
        "do_center_crop": cropped,
        **({"crop_size": {"height": height, "width": width}} if cropped else {}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }


def from_transformers(config: dict[str, Any]) -> dict[str, Any]:
    kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    default = _PROCESSORS.get(kind.lower().partition("imageprocessor")[0].partition("featureextractor")[0])
    _refuse_what_is_not_expressible(config)

    def value(key: str, fallback: Any) -> Any:
        found = config.get(key)
        if found is None and fallback is None:
            raise ConfigError(f"the processor {kind or 'without a type'} does not say its {key}; add it to the file")
        return fallback if found is None else found

    size = value("size", default and default.size)
    if isinstance(size, int):
        size = _pair(size) if default is None or default.number_is_square else {"shortest_edge": size}
    crops = config.get("do_center_crop")
    if crops is None:
        crops = default is not None and default.crop_size is not None
    target = _height_and_width("crop_size", value("crop_size", default and default.crop_size)) if crops else None
    if "shortest_edge" in size:
        if target is None or "longest_edge" in size:
            raise ConfigError(f"size={size} without a crop gives every picture another size; add do_center_crop")
        if target[0] != target[1]:
            raise ConfigError(f"a crop to {target} after size={size} cannot be expressed; use a square crop_size")
        fit, large = "crop", (size["shortest_edge"],) * 2
    else:
        fit, large = "squash", _height_and_width("size", size)
    resample = value("resample", default and default.resample)
    if resample not in _RESAMPLING_NAMES:
        raise ConfigError(f"resample={resample!r} is not one of Pillow's codes 0 to 5")
    mean, std = (0.0,) * 3, (1.0,) * 3
    if config.get("do_normalize") is not False:
        mean = value("image_mean", default and default.norm[0])
        std = value("image_std", default and default.norm[1])
    return {
        "size": target or large,
        "fit": fit,
        "crop_pct": _crop_pct(target or large, large),
        "interpolation": _RESAMPLING_NAMES[resample],
        "mean": mean,
        "std": std,
    }


def _refuse_what_is_not_expressible(config: dict[str, Any]) -> None:
    for key, only in {"do_resize": True, "do_rescale": True, "do_pad": False, "do_flip_channel_order": False}.items():
        if config.get(key, only) not in (only, None):
            raise ConfigError(f"{key}={config[key]!r} cannot be expressed; only {only} can")
    factor = config.get("rescale_factor")
    if factor is not None and not math.isclose(factor, 1 / 255, rel_tol=1e-6):
        raise ConfigError(f"rescale_factor={factor!r} cannot be expressed; only 1/255 can")


def _pair(number: int) -> dict[str, int]:
    return {"height": number, "width": number}


def _height_and_width(key: str, size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        size = _pair(size)
    try:
        return size["height"], size["width"]
    except (KeyError, TypeError):
        raise ConfigError(f"{key}={size!r} has no height and width; add them") from None


def _crop_pct(size: tuple[int, int], large: tuple[int, int]) -> float:
    """The number with floor(size / number) = large on both sides: timm stores the ratio, transformers the two sizes."""
    if any(not isinstance(n, int) or n < 1 for n in (*size, *large)):
        raise ConfigError(f"{size} and {large} are not sizes in whole pixels")
    ratio = min(1.0, *(s / n for s, n in zip(size, large, strict=True)))
    for candidate in (ratio, math.nextafter(ratio, 0)):  # the quotient of a rounded quotient may fall short by a bit
        if all(math.floor(s / candidate) == n for s, n in zip(size, large, strict=True)):
            return candidate
    raise ConfigError(f"a resize to {large} and a crop to {size} cannot be expressed as one ratio; change either")
