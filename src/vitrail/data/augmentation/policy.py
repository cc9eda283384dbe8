"""What may happen to a training picture, and the draws that decide what does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from vitrail.data.augmentation import ops as spaces
from vitrail.data.augmentation.autoaugment import POLICIES
from vitrail.data.augmentation.draws import Stream, choice, keys, normal, uniform
from vitrail.data.augmentation.ops import Op
from vitrail.errors import ConfigError

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
_CHOICES: dict[str, Any] = {
    "crop": Crop,
    "policy": Policy,
    "padding_mode": PaddingMode,
    "interpolation": Interpolation,
    "erase_fill": Fill,
}

TRIES = 10  # to find a box that fits, as everywhere
CROP_NUMBERS = 2 * TRIES + 2
_BINS = 30  # of TrivialAugment


@dataclass(frozen=True)
class Augmentation:
    """What may happen to a training picture, in this order: crop, flip, policy, colour jitter, erasing, cutout, mixing.

    `crop`: "random-resized" (a part of `scale` of the area and of an aspect in `ratio`), "pad" (resized to cover the
    target, padded by `padding`, a random window: the usual one for small pictures, and DeiT-III's simple random crop),
    or "none" (as in evaluation). `policy` with `num_ops`, `magnitude` (of 10), `magnitude_std` and `op_prob` for
    randaugment. `erase` is a probability; `cutout` the side of a square, as a fraction of the picture's. `mixup` and
    `cutmix` are the alpha of their Beta distribution; `repeats` says how often a picture comes in one batch.
    """

    crop: Crop = "random-resized"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    padding: int = 4
    padding_mode: PaddingMode = "reflect"
    interpolation: Interpolation = "bicubic"
    hflip: float = 0.5
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
        for name in ("hflip", "vflip", "op_prob", "erase", "cutout", "mix_prob"):
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
        if self.policy == "randaugment":
            found = set(spaces.RANDAUGMENT)
        elif self.policy == "trivialaugment":
            found = set(spaces.trivialaugment(1, 1))
        elif self.policy == "three-augment":
            found = {Op.GREY, Op.SOLARIZE, Op.BLUR}
        elif self.policy != "none":
            pairs = POLICIES[self.policy.removeprefix("autoaugment-")]
            found = {op for pair in pairs for op, probability, _ in pair if probability > 0}
        else:
            found = set()
        return frozenset(found | {op for op, _, most in _jitter(self) if most > 0}) - {Op.IDENTITY}


def _jitter(plan: Augmentation) -> list[tuple[Op, float, float]]:
    """Operation, the number that changes nothing, and how far to go from it."""
    return [
        (Op.BRIGHTNESS, 1.0, plan.brightness),
        (Op.CONTRAST, 1.0, plan.contrast),
        (Op.COLOR, 1.0, plan.saturation),
        (Op.HUE, 0.0, plan.hue),
    ]


@dataclass(frozen=True)
class Drawn:
    """What was drawn for each of n samples, whatever their pictures look like."""

    crop: Tensor  # (n, CROP_NUMBERS), from [0, 1): see geometry
    hflip: Tensor  # (n,), bool
    vflip: Tensor
    ops: Tensor  # (n, slots), int64: `Op`, in the order in which they are applied
    values: Tensor  # (n, slots), float64: the number each takes
    erase: Tensor  # (n, 4), int64: left, top, right, bottom in the finished picture; empty where nothing is erased
    cutout: Tensor
    noise: Tensor  # (n,), int64: keys of the noise that erasing fills in

    def __getitem__(self, rows: Tensor | slice) -> Drawn:
        return Drawn(**{name: column[rows] for name, column in vars(self).items()})


def draw(plan: Augmentation, seed: int, epoch: int, index: Tensor, repeat: Tensor, size: tuple[int, int]) -> Drawn:
    """A pure function: the same arguments draw the same, on any device, alone or among others.

    `index` and `repeat` are int64 of one shape; `size` is the finished picture's (height, width).
    """

    def numbers(stream: Stream, count: int) -> Tensor:
        return uniform(keys(stream, seed, epoch, index, repeat), count)

    flips = numbers(Stream.FLIP, 2)
    ops, values = _draw_policy(plan, numbers, size)
    jitter_ops, jitter_values = _draw_jitter(plan, numbers(Stream.JITTER, 8))
    return Drawn(
        crop=numbers(Stream.CROP, CROP_NUMBERS),
        hflip=flips[:, 0] < plan.hflip,
        vflip=flips[:, 1] < plan.vflip,
        ops=torch.cat([ops, jitter_ops], 1),
        values=torch.cat([values, jitter_values], 1),
        erase=_draw_erase(plan, numbers(Stream.ERASE, CROP_NUMBERS + 1), size),
        cutout=_draw_cutout(plan, numbers(Stream.CUTOUT, 2), size),
        noise=keys(Stream.NOISE, seed, epoch, index, repeat),
    )


def _draw_policy(plan: Augmentation, numbers, size: tuple[int, int]) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    if plan.policy == "randaugment":
        drawn = numbers(Stream.OPS, 5 * plan.num_ops)
        which, applied, sign, first, second = drawn.view(len(drawn), plan.num_ops, 5).unbind(-1)
        space = spaces.RANDAUGMENT
        level = plan.magnitude + plan.magnitude_std * normal(first, second)
        strength = level.clamp(0, max(10.0, plan.magnitude)) / 10
        ops = torch.where(applied < plan.op_prob, _members(space, which), Op.IDENTITY)
        return ops, spaces.values(space, ops, strength, _sign(sign))
    drawn = numbers(Stream.OPS, 5)
    if plan.policy == "trivialaugment":
        space = spaces.trivialaugment(*size)
        ops = _members(space, drawn[:, :1])
        strength = choice(drawn[:, 1:2], _BINS + 1).double() / _BINS
        return ops, spaces.values(space, ops, strength, _sign(drawn[:, 2:3]))
    if plan.policy == "three-augment":
        which = choice(drawn[:, :1], 3)
        ops = torch.tensor([Op.GREY, Op.SOLARIZE, Op.BLUR], device=which.device)[which]
        value = torch.where(ops == Op.SOLARIZE, 128.0, 0.1 + 1.9 * drawn[:, 1:2])
        return ops, torch.where(ops == Op.GREY, 0.0, value)
    if plan.policy == "none":
        return drawn[:, :0].long(), drawn[:, :0]
    table = torch.tensor(POLICIES[plan.policy.removeprefix("autoaugment-")], dtype=torch.double, device=drawn.device)
    ops, probability, level = table[choice(drawn[:, 0], len(table))].unbind(-1)  # each (n, 2)
    ops = torch.where(drawn[:, 1:3] < probability, ops.long(), Op.IDENTITY)
    return ops, spaces.values(spaces.AUTOAUGMENT, ops, level / 9, _sign(drawn[:, 3:5]))


def _members(space: dict[Op, spaces.Level], number: Tensor) -> Tensor:
    return torch.tensor(list(space), device=number.device)[choice(number, len(space))]


def _sign(number: Tensor) -> Tensor:
    return torch.where(number < 0.5, -1.0, 1.0).double()


def _draw_jitter(plan: Augmentation, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Brightness, contrast, saturation and hue in a random order."""
    used = [(i, row) for i, row in enumerate(_jitter(plan)) if row[2] > 0]
    order = numbers[:, [4 + i for i, _ in used]].argsort(dim=1)
    ops = torch.tensor([op for _, (op, _, _) in used], dtype=torch.long, device=numbers.device)
    values = [_within(numbers[:, i], neutral, most) for i, (_, neutral, most) in used]
    stacked = torch.stack(values, 1) if values else numbers[:, :0]
    return ops[order], stacked.gather(1, order)


def _within(number: Tensor, neutral: float, most: float) -> Tensor:
    low = max(0.0, neutral - most) if neutral else -most
    return low + (neutral + most - low) * number


def _draw_erase(plan: Augmentation, numbers: Tensor, size: tuple[int, int]) -> Tensor:
    """Zhong et al. 2017: a box of a random area and aspect that fits, with whole sides; empty if none fits."""
    height, width = size
    area, aspect = numbers[:, 0 : 2 * TRIES : 2], numbers[:, 1 : 2 * TRIES : 2]
    low, high = plan.erase_scale
    area = height * width * (low + (high - low) * area)
    low, high = (math.log(value) for value in plan.erase_ratio)
    aspect = torch.exp(low + (high - low) * aspect)
    tall, wide = torch.sqrt(area * aspect).round(), torch.sqrt(area / aspect).round()
    fits = (tall < height) & (wide < width)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    chosen = fits.any(1) & (numbers[:, -1] < plan.erase)
    tall, wide = tall.gather(1, first)[:, 0], wide.gather(1, first)[:, 0]
    top = ((height - tall + 1) * numbers[:, 2 * TRIES]).floor()
    left = ((width - wide + 1) * numbers[:, 2 * TRIES + 1]).floor()
    return (torch.stack([left, top, left + wide, top + tall], 1) * chosen[:, None]).long()


def _draw_cutout(plan: Augmentation, numbers: Tensor, size: tuple[int, int]) -> Tensor:
    """DeVries and Taylor 2017: a square whose centre is anywhere, so that its edges may lie outside."""
    height, width = size
    tall, wide = round(plan.cutout * height), round(plan.cutout * width)
    x, y = choice(numbers[:, 0], width), choice(numbers[:, 1], height)
    left, top = x - wide // 2, y - tall // 2
    limits = torch.tensor([width, height, width, height], device=numbers.device)
    return torch.minimum(torch.stack([left, top, left + wide, top + tall], 1).clamp(min=0), limits)
