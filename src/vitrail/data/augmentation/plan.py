"""What may happen to a training picture: the settings alone, without the machinery."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
Pair = tuple[float, float]
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
    erasing, cutout, mixing."""

    crop: Annotated[
        Crop,
        "random-resized: a random part of the picture; pad: resized to cover the target, padded, a random window (the "
        "usual one for small pictures, and DeiT-III's simple random crop); none: as in evaluation",
    ] = "random-resized"
    scale: Annotated[Pair, "of random-resized: the part of the area, least and most"] = (0.08, 1.0)
    ratio: Annotated[Pair, "of random-resized: width by height, least and most"] = (3 / 4, 4 / 3)
    padding: Annotated[int, "of pad: pixels on every side"] = 4
    padding_mode: Annotated[PaddingMode, "of pad: the picture's mirror image in them, or the mean colour"] = "reflect"
    interpolation: Annotated[Interpolation, "by which crops are resized"] = "bicubic"
    hflip: Annotated[float, "chance that left and right change places"] = 0.5
    alternate: Annotated[
        bool, "in place of hflip: after a first draw, a picture comes mirrored in every other epoch"
    ] = False
    vflip: Annotated[float, "chance that top and bottom change places"] = 0.0
    policy: Annotated[Policy, "which operations on shape and colours are drawn from"] = "none"
    num_ops: Annotated[int, "of randaugment: operations, one after the other"] = 2
    magnitude: Annotated[float, "of randaugment: how much they do, of 10"] = 9.0
    magnitude_std: Annotated[float, "of randaugment: how much that differs from one operation to the next"] = 0.5
    op_prob: Annotated[float, "of randaugment: chance of each operation"] = 0.5
    brightness: Annotated[float, "colour jitter: by at most this part more or less"] = 0.0
    contrast: Annotated[float, "likewise"] = 0.0
    saturation: Annotated[float, "likewise"] = 0.0
    hue: Annotated[float, "by at most this part of the circle of colours, up to 0.5"] = 0.0
    jitter_prob: Annotated[float, "chance of these four, which come in random order"] = 1.0
    grey: Annotated[float, "chance that colours are lost"] = 0.0
    blur: Annotated[float, "chance of a Gaussian of 0.1 to 2 pixels"] = 0.0
    solarize: Annotated[float, "chance that pixels from the middle level on are inverted"] = 0.0
    erase: Annotated[float, "chance that a rectangle is erased"] = 0.0
    erase_scale: Annotated[Pair, "its part of the area, least and most"] = (0.02, 1 / 3)
    erase_ratio: Annotated[Pair, "its height by its width, least and most"] = (0.3, 1 / 0.3)
    erase_fill: Annotated[Fill, "with the mean of all pictures, or with noise"] = "mean"
    cutout: Annotated[float, "side of a square that is taken out anywhere, as a part of the picture's; 0: none"] = 0.0
    mixup: Annotated[float, "alpha of mixup, where two pictures shine through one another; 0: none"] = 0.0
    cutmix: Annotated[float, "alpha of CutMix, where a box is another picture's; 0: none; with mixup half of each"] = (
        0.0
    )
    mix_prob: Annotated[float, "chance that two neighbours of a batch are mixed"] = 1.0
    repeats: Annotated[int, "how often a picture comes in one batch"] = 1

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
