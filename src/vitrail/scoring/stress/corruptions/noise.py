"""Noise: of a sensor in the dark, of counted photons, of broken bits."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vitrail.scoring.stress.dice import Dice


def gaussian_noise(pixels: Tensor, deviation: float, dice: Dice) -> Tensor:
    return pixels.double() / 255 + deviation * dice.normal(*pixels.shape[1:])


def shot_noise(pixels: Tensor, photons: float, dice: Dice) -> Tensor:
    """Each value becomes a count of photons, Poisson-distributed around itself."""
    table = _poisson(photons).to(pixels.device)
    width = len(table) // 256
    numbers = dice.uniform(*pixels.shape[1:]) + pixels  # the whole part says which of the 256 distributions
    return (torch.searchsorted(table, numbers, right=True) - width * pixels.long()).clamp(0, width - 1) / photons


@lru_cache(maxsize=16)
def _poisson(photons: float) -> Tensor:
    """The distribution functions for the 256 grey levels, each raised by its level: one ascending line."""
    largest = math.ceil(photons + 12 * math.sqrt(photons) + 12)
    counts = torch.arange(largest + 1).double()
    mean = torch.arange(256).double()[:, None] / 255 * photons
    chance = torch.exp(torch.xlogy(counts, mean) - mean - torch.lgamma(counts + 1))
    return (chance.cumsum(dim=1).clamp(max=1 - 2**-40) + torch.arange(256)[:, None]).flatten()


def impulse_noise(pixels: Tensor, share: float, dice: Dice) -> Tensor:
    """Half of the values that are hit become black, half white, each channel by itself."""
    numbers = dice.uniform(*pixels.shape[1:])
    values = torch.where(numbers < share / 2, 0.0, pixels.double() / 255)
    return torch.where(numbers >= 1 - share / 2, 1.0, values)


NOISES: dict[str, Any] = {one.__name__: one for one in (gaussian_noise, shot_noise, impulse_noise)}
