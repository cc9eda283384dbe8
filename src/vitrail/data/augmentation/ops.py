"""The operations that policies choose from, and how strong each is at a given level."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import torch
from torch import Tensor


class Op(IntEnum):
    """Beside each: what the number means that it takes."""

    IDENTITY = 0
    SHEAR_X = 1  # columns moved per row
    SHEAR_Y = 2
    TRANSLATE_X = 3  # fraction of the width
    TRANSLATE_Y = 4
    ROTATE = 5  # degrees, against the clock
    BRIGHTNESS = 6  # factor; 1 changes nothing
    CONTRAST = 7
    COLOR = 8
    SHARPNESS = 9
    POSTERIZE = 10  # bits that are kept
    SOLARIZE = 11  # grey level from which on pixels are inverted
    SOLARIZE_ADD = 12  # added to what is darker than 128
    AUTOCONTRAST = 13
    EQUALIZE = 14
    INVERT = 15
    HUE = 16  # fraction of the colour circle
    GREY = 17
    BLUR = 18  # standard deviation in pixels


GEOMETRIC = (Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y, Op.ROTATE)

BLUR_REACH = 6  # pixels to each side, three standard deviations of the strongest blur

Level = Callable[[Tensor, Tensor], Tensor]  # (strength from 0 to 1, sign) to the number the operation takes


def _signed(most: float) -> Level:
    return lambda strength, sign: strength * most * sign


def _factor(most: float, least: float = 0.0) -> Level:
    return lambda strength, sign: (1 + strength * most * sign).clamp(min=least)


def _nothing(strength: Tensor, sign: Tensor) -> Tensor:
    return torch.zeros_like(strength)


def _posterize(lost: int) -> Level:
    return lambda strength, sign: torch.round(8 - strength * lost)


def _solarize(strength: Tensor, sign: Tensor) -> Tensor:
    """The first whole level that is inverted: with a whole number no rounding decides about the level at the edge."""
    return torch.ceil(255 * (1 - strength) - 1e-6)


_ENHANCE = (Op.BRIGHTNESS, Op.CONTRAST, Op.COLOR, Op.SHARPNESS)
_PARAMETERLESS = (Op.AUTOCONTRAST, Op.EQUALIZE, Op.INVERT)

# Cubuk et al. 2019 as timm has it in its "increasing" form, which DeiT trains with: a higher level always changes more.
RANDAUGMENT: dict[Op, Level] = {
    Op.AUTOCONTRAST: _nothing,
    Op.EQUALIZE: _nothing,
    Op.INVERT: _nothing,
    Op.ROTATE: _signed(30.0),
    Op.POSTERIZE: lambda strength, sign: 4 - (strength * 4).floor().clamp(max=3),  # no bit at all would be black
    Op.SOLARIZE: lambda strength, sign: 256 - (strength * 256).floor().clamp(max=256),
    Op.SOLARIZE_ADD: lambda strength, sign: (strength * 110).floor().clamp(max=128),
    **{op: _factor(0.9, 0.1) for op in _ENHANCE},
    Op.SHEAR_X: _signed(0.3),
    Op.SHEAR_Y: _signed(0.3),
    Op.TRANSLATE_X: _signed(0.45),
    Op.TRANSLATE_Y: _signed(0.45),
}

# Cubuk et al. 2018, ranges as in torchvision.
AUTOAUGMENT: dict[Op, Level] = {
    Op.SHEAR_X: _signed(0.3),
    Op.SHEAR_Y: _signed(0.3),
    Op.TRANSLATE_X: _signed(150 / 331),
    Op.TRANSLATE_Y: _signed(150 / 331),
    Op.ROTATE: _signed(30.0),
    **{op: _factor(0.9) for op in _ENHANCE},
    Op.POSTERIZE: _posterize(4),
    Op.SOLARIZE: _solarize,
    **dict.fromkeys(_PARAMETERLESS, _nothing),
}


def trivialaugment(height: int, width: int) -> dict[Op, Level]:
    """Müller and Hutter 2021, the wide space as in torchvision, where pictures move by up to 32 pixels."""
    return {
        Op.IDENTITY: _nothing,
        Op.SHEAR_X: _signed(0.99),
        Op.SHEAR_Y: _signed(0.99),
        Op.TRANSLATE_X: _signed(32 / width),
        Op.TRANSLATE_Y: _signed(32 / height),
        Op.ROTATE: _signed(135.0),
        **{op: _factor(0.99) for op in _ENHANCE},
        Op.POSTERIZE: _posterize(6),
        Op.SOLARIZE: _solarize,
        Op.AUTOCONTRAST: _nothing,
        Op.EQUALIZE: _nothing,
    }


def values(space: dict[Op, Level], ops: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """The number that each of `ops` takes at its strength; all of one shape."""
    found = torch.zeros_like(strength)
    for op, level in space.items():
        found = torch.where(ops == op, level(strength, sign), found)
    return found
