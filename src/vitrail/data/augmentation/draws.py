"""Random numbers as a function: equal arguments give equal bits, in NumPy's or torch's hands, on any device.

splitmix64 (Steele, Lea and Flood, 2014) on int64, whose overflow wraps the same way everywhere.
"""

from __future__ import annotations

import math
from enum import IntEnum

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15


class Stream(IntEnum):
    """What a number is drawn for. Streams are independent, so that switching one thing on changes no other."""

    ORDER = 1
    CROP = 2
    FLIP = 3
    OPS = 4
    JITTER = 5
    ERASE = 6
    CUTOUT = 7
    NOISE = 8
    MIX = 9
    RUNS = 10
    MASK = 11
    CORRUPTION = 12
    LOOKS = 13
    STRESS = 14


def _signed(value: int) -> int:
    """The same 64 bits, as int64 holds them."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _shifted(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)  # >> on int64 repeats the sign


def scramble(z: Tensor) -> Tensor:
    """The finisher of splitmix64: every bit of the result depends on every bit given."""
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def _scramble_one(z: int) -> int:
    z %= 1 << 64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
    z = (z ^ z >> 27) * 0x94D049BB133111EB % (1 << 64)
    return z ^ z >> 31


def mixed(*parts: int) -> int:
    """One number of 63 bits from several, for generators that take a seed."""
    state = 0
    for part in parts:
        state = _scramble_one(state + part * _GOLDEN + _GOLDEN)
    return state >> 1


def keys(stream: Stream, seed: int, epoch: int, index: Tensor, repeat: Tensor | int = 0) -> Tensor:
    """One int64 for each index (int64), from which any number of values can be drawn."""
    start = 0
    for part in (stream, seed, epoch):
        start = _scramble_one(start + part * _GOLDEN + _GOLDEN)
    key = scramble(index * _signed(_GOLDEN) + _signed(start))
    again = repeat * _signed(_GOLDEN) if isinstance(repeat, Tensor) else _signed(repeat * _GOLDEN)
    return scramble(key + again + _signed(_GOLDEN))


def uniform(key: Tensor, count: int) -> Tensor:
    """`count` numbers from [0, 1) for each key, float64: (…, count)."""
    steps = torch.arange(1, count + 1, device=key.device) * _signed(_GOLDEN)
    bits = scramble(key.unsqueeze(-1) + steps)
    return _shifted(bits, 11).double() * 2.0**-53


def choice(number: Tensor, options: int) -> Tensor:
    """A number from [0, 1) as one of 0 … options - 1, int64."""
    return (number * options).long().clamp_(max=options - 1)


def normal(first: Tensor, second: Tensor) -> Tensor:
    """Two numbers from [0, 1) as one of the standard normal distribution (Box and Muller)."""
    return torch.sqrt(-2 * torch.log1p(-first)) * torch.cos(2 * math.pi * second)
