"""The draws that decide what happens to each sample."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.data.augmentation import ops as spaces
from vitrail.data.augmentation.autoaugment import POLICIES
from vitrail.data.augmentation.draws import Stream, choice, keys, normal, uniform
from vitrail.data.augmentation.ops import Op
from vitrail.data.augmentation.plan import Augmentation

TRIES = 10  # to find a box that fits, as everywhere
CROP_NUMBERS = 2 * TRIES + 2
_BINS = 30  # of TrivialAugment


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
    looks = numbers(Stream.LOOKS, 5)
    jitter_ops, jitter_values = _draw_jitter(plan, numbers(Stream.JITTER, 8), looks[:, :1])
    look_ops, look_values = _draw_looks(plan, looks[:, 1:])
    return Drawn(
        crop=numbers(Stream.CROP, CROP_NUMBERS),
        hflip=_alternating(seed, epoch, index, repeat) if plan.alternate else flips[:, 0] < plan.hflip,
        vflip=flips[:, 1] < plan.vflip,
        ops=torch.cat([ops, jitter_ops, look_ops], 1),
        values=torch.cat([values, jitter_values, look_values], 1),
        erase=_draw_erase(plan, numbers(Stream.ERASE, CROP_NUMBERS + 1), size),
        cutout=_draw_cutout(plan, numbers(Stream.CUTOUT, 2), size),
        noise=keys(Stream.NOISE, seed, epoch, index, repeat),
    )


def _alternating(seed: int, epoch: int, index: Tensor, repeat: Tensor) -> Tensor:
    """Jordan 2024: no picture comes twice in a row the same way round, which short trainings gain from."""
    first = uniform(keys(Stream.FLIP, seed, 0, index, repeat), 1)[:, 0] < 0.5
    return first ^ bool(epoch % 2)


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
        return ops, _look_values(ops, drawn[:, 1:2])
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


def _look_values(ops: Tensor, number: Tensor) -> Tensor:
    """Pixels are inverted from the middle level on; blurs are from a tenth of a pixel to two."""
    value = torch.where(ops == Op.SOLARIZE, 128.0, 0.1 + 1.9 * number)
    return torch.where(ops == Op.GREY, 0.0, value)


def _draw_looks(plan: Augmentation, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Grey, blur and solarize; a number for each, and one for how much is blurred."""
    order = (Op.GREY, Op.BLUR, Op.SOLARIZE)
    drawn = [torch.where(numbers[:, order.index(op)] < chance, op, Op.IDENTITY) for op, chance in plan.looks()]
    ops = torch.stack(drawn, 1) if drawn else numbers[:, :0].long()
    return ops, _look_values(ops, numbers[:, 3:4].expand(-1, ops.shape[1]))


def _draw_jitter(plan: Augmentation, numbers: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """Brightness, contrast, saturation and hue in a random order, or none of them."""
    used = [(i, row) for i, row in enumerate(plan.jitter()) if row[2] > 0]
    order = numbers[:, [4 + i for i, _ in used]].argsort(dim=1)
    ops = torch.tensor([Op[name.upper()] for _, (name, _, _) in used], dtype=torch.long, device=numbers.device)
    values = [_within(numbers[:, i], neutral, most) for i, (_, neutral, most) in used]
    stacked = torch.stack(values, 1) if values else numbers[:, :0]
    return torch.where(chance < plan.jitter_prob, ops[order], Op.IDENTITY), stacked.gather(1, order)


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
