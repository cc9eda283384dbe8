"""What may happen to a training picture: the settings alone, without the machinery."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.data.augmentation.ops import Op

Crop = Literal["random-resized", "pad", "none"]
Policy = Literal[
    "none",
    "randaugment",
    "trivialaugment",
    "autoaugment-imagenet",
    "autoaugment-cifar10",
    "autoaugment-svhn",
    "three-augment",
]
PaddingMode = Literal["reflect", "constant"]
Interpolation = Literal["bilinear", "bicubic"]
Fill = Literal["mean", "noise"]
_CHANCES = ("hflip", "vflip", "op_prob", "jitter_prob", "grey", "blur", "solarize", "erase", "cutout", "mix_prob")
_CHOICES: dict[str, Any] = {
    "crop": Crop,
    "policy": Policy,
    "padding_mode": PaddingMode,
    "interpolation": Interpolation,
    "erase_fill": Fill,
}


@dataclass(frozen=True)
class Augmentation:
    """What may happen to a training picture, in this order: crop, flip, policy, colour jitter, grey, blur, solarize,
    erasing, cutout, mixing.

    `crop`: "random-resized" (a part of `scale` of the area and of an aspect in `ratio`), "pad" (resized to cover the
    target, padded by `padding`, a random window: the usual one for small pictures, and DeiT-III's simple random crop),
    or "none" (as in evaluation). `policy` with `num_ops`, `magnitude` (of 10), `magnitude_std` and `op_prob` for
    randaugment. `jitter_prob` is the probability of colour jitter, and `grey`, `blur`, `solarize` and `erase` are their
    own; `cutout` is the side of a square, as a fraction of the picture's. `mixup` and `cutmix` are the alpha of their
    Beta distribution; `repeats` says how often a picture comes in one batch.
    """

    crop: Crop = "random-resized"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    padding: int = 4
    padding_mode: PaddingMode = "reflect"
    interpolation: Interpolation = "bicubic"
    hflip: float = 0.5
    alternate: bool = False  # after a first draw, a picture comes mirrored in every other epoch
    vflip: float = 0.0
    policy: Policy = "none"
    num_ops: int = 2
    magnitude: float = 9.0
    magnitude_std: float = 0.5
    op_prob: float = 0.5
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    jitter_prob: float = 1.0
    grey: float = 0.0
    blur: float = 0.0
    solarize: float = 0.0
    erase: float = 0.0
    erase_scale: tuple[float, float] = (0.02, 1 / 3)
    erase_ratio: tuple[float, float] = (0.3, 1 / 0.3)
    erase_fill: Fill = "mean"
    cutout: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_prob: float = 1.0
    repeats: int = 1

    def __post_init__(self) -> None:
        for name in _CHANCES:
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"augmentation: {name}={getattr(self, name)} must be from 0 to 1")
        for name in ("magnitude", "magnitude_std", "brightness", "contrast", "saturation", "mixup", "cutmix"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"augmentation: {name}={getattr(self, name)} must not be negative")
        for name, most in (("scale", 1.0), ("erase_scale", 1.0), ("ratio", math.inf), ("erase_ratio", math.inf)):
            pair = getattr(self, name)
            if len(pair) != 2 or not 0 < pair[0] <= pair[1] <= most or math.isinf(pair[1]):
                limits = "above 0" if most == math.inf else "above 0 and up to 1"
                raise ConfigError(f"augmentation: {name}={pair} must be two numbers {limits}, the smaller first")
        if not 0 <= self.hue <= 0.5:
            raise ConfigError(f"augmentation: hue={self.hue} must be from 0 to 0.5")
        for name, least in (("padding", 0), ("num_ops", 0), ("repeats", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"augmentation: {name}={getattr(self, name)} must be at least {least}")
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in kind.__args__:
                options = ", ".join(kind.__args__)
                raise ConfigError(f"augmentation: {name}={getattr(self, name)!r} is not known; choose from {options}")

    @property
    def mixes(self) -> bool:
        return self.mix_prob > 0 and (self.mixup > 0 or self.cutmix > 0)

    def possible_ops(self) -> frozenset[Op]:
        """The operations that can come up."""
        return frozenset(op for slot in self.slots() for op in slot)

    def slots(self) -> tuple[frozenset[Op], ...]:
        """What happens one after the other: the operations of which one, or none, is drawn each time."""
        from vitrail.data.augmentation import ops as spaces
        from vitrail.data.augmentation.autoaugment import POLICIES
        from vitrail.data.augmentation.ops import Op

        slots: list[set[Op]] = []
        if self.policy == "randaugment":
            slots += [set(spaces.RANDAUGMENT)] * self.num_ops
        elif self.policy == "trivialaugment":
            slots += [set(spaces.trivialaugment(1, 1))]
        elif self.policy == "three-augment":
            slots += [{Op.GREY, Op.SOLARIZE, Op.BLUR}]
        elif self.policy != "none":
            pairs = POLICIES[self.policy.removeprefix("autoaugment-")]
            slots += [{op for pair in pairs for op, probability, _ in pair if probability > 0}] * 2
        jitter = {Op[name.upper()] for name, _, most in self.jitter() if most > 0}
        slots += [jitter] * len(jitter)
        slots += [{op} for op, _ in self.looks()]
        return tuple(frozenset(slot) - {Op.IDENTITY} for slot in slots)

    def looks(self) -> list[tuple[Op, float]]:
        """Operations that come with a chance of their own, each after the one before it."""
        from vitrail.data.augmentation.ops import Op

        chances = ((Op.GREY, self.grey), (Op.BLUR, self.blur), (Op.SOLARIZE, self.solarize))
        return [(op, chance) for op, chance in chances if chance > 0]

    def jitter(self) -> list[tuple[str, float, float]]:
        """Operation, the number that changes nothing, and how far to go from it."""
        return [
            ("brightness", 1.0, self.brightness),
            ("contrast", 1.0, self.contrast),
            ("color", 1.0, self.saturation),
            ("hue", 0.0, self.hue),
        ]
