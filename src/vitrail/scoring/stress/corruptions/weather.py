"""Weather: snow, frost, fog, light."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.scoring.stress.corruptions.filters import motion_blur, zoomed
from vitrail.scoring.stress.corruptions.severities import SMALL_BELOW
from vitrail.scoring.stress.dice import Dice

# mean colour and deviation of the grey value of the five photographs of frost that the authors lay over pictures
_FROSTS = (
    ((0.31, 0.58, 0.65), 0.06),
    ((0.77, 0.79, 0.83), 0.08),
    ((0.77, 0.79, 0.83), 0.08),
    ((0.57, 0.63, 0.68), 0.10),
    ((0.40, 0.44, 0.49), 0.14),
)
_GREY = (0.299, 0.587, 0.114)


def snow(pixels: Tensor, how: tuple[float, float, float, float, int, float, float], dice: Dice) -> Tensor:
    """Flakes that fall slantwise over a picture that grows pale."""
    mean, deviation, zoom, threshold, radius, sigma, weight = how
    flakes = (mean + deviation * dice.normal(1, *pixels.shape[-2:])).float()
    flakes = zoomed(flakes, zoom)
    flakes = torch.where(flakes < threshold, 0, flakes).clamp(0, 1)
    flakes = (flakes * 255).floor() / 255
    flakes = motion_blur(flakes, dice.between(-135, -45, 1, number=1)[:, 0], radius, sigma)
    flakes = (flakes * 255).round() / 255
    x = pixels.float() / 255
    pale = torch.maximum(x, _grey(x) * 1.5 + 0.5)
    return weight * x + (1 - weight) * pale + flakes + flakes.flip(-1, -2)


def frost(pixels: Tensor, how: tuple[float, float], dice: Dice) -> Tensor:
    own, other = how
    return own * pixels.float() / 255 + other * frost_layer(pixels, dice)


def frost_layer(pixels: Tensor, dice: Dice) -> Tensor:
    """Needles and grains of ice, (n, channels, height, width): drawn, where the authors took photographs, with the
    colour, the contrast and roughly the spectrum of one of those."""
    n, channels, height, width = pixels.shape
    finer = 5 if min(height, width) < SMALL_BELOW else 1  # for small pictures they reduce the photographs to a fifth
    size = finer * height, finer * width
    ice = torch.zeros(n, 1, *size, device=pixels.device)
    for octave in range(1, 7):
        cells = [max(2, side >> octave) + 1 for side in size]
        grid = dice.normal(1, *cells, number=octave).float()
        waves = F.interpolate(grid, size, mode="bicubic", align_corners=True)
        ice += 0.8 - waves.abs()  # ridges: sharp and bright where the waves cross zero
    angle = dice.between(0, 180, 1)[:, 0]
    ice = torch.maximum(ice, torch.maximum(motion_blur(ice, angle, 5, 5), motion_blur(ice, angle + 60, 5, 5)))
    if finer > 1:
        ice = F.avg_pool2d(ice, finer)
    ice = ice - ice.mean(dim=(1, 2, 3), keepdim=True)
    ice = ice / ice.std(dim=(1, 2, 3), correction=0, keepdim=True).clamp(min=1e-6)
    kind = (dice.uniform(1, number=7)[:, 0] * len(_FROSTS)).long()
    colour = torch.tensor([colour for colour, _ in _FROSTS], device=pixels.device)[kind][:, :, None, None]
    contrast = torch.tensor([contrast for _, contrast in _FROSTS], device=pixels.device)[kind][:, None, None, None]
    layer = (colour + contrast * ice).clamp(0, 1)
    return layer if channels == 3 else _grey(layer)


def fog(pixels: Tensor, how: tuple[float, float], dice: Dice) -> Tensor:
    """Clouds are added, and the whole is darkened to the range that the picture had."""
    thickness, decay = how
    height, width = pixels.shape[-2:]
    x = pixels.double() / 255
    brightest = x.amax(dim=(1, 2, 3), keepdim=True)
    clouds = plasma(dice, 1 << (max(height, width) - 1).bit_length(), decay)[:, None, :height, :width]
    return (x + thickness * clouds) * brightest / (brightest + thickness)


def plasma(dice: Dice, side: int, decay: float) -> Tensor:
    """A fractal landscape by the diamond-square algorithm, which joins at its edges: (n, side, side) from 0 to 1. Each
    finer step has hills lower by decay²."""
    land = torch.zeros(len(dice.rows), side, side, dtype=torch.double, device=dice.rows.device)
    step, hills, number = side, 100.0, 0

    def middle(total: Tensor) -> Tensor:
        nonlocal number
        number += 1
        return total / 4 + hills * dice.between(-hills, hills, *total.shape[1:], number=number)

    while step >= 2:
        half = step // 2
        corner = land[:, ::step, ::step]
        pairs = corner + corner.roll(-1, 1)
        land[:, half::step, half::step] = middle(pairs + pairs.roll(-1, 2))
        centre = land[:, half::step, half::step]
        land[:, ::step, half::step] = middle(centre + centre.roll(1, 1) + corner + corner.roll(-1, 2))
        land[:, half::step, ::step] = middle(centre + centre.roll(1, 2) + corner + corner.roll(-1, 1))
        step, hills = half, hills / decay
    land = land - land.amin(dim=(1, 2), keepdim=True)
    return land / land.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)


def brightness(pixels: Tensor, more: float, dice: Dice) -> Tensor:
    """The value of HSV is raised; hue and saturation stay, so that all channels grow by one factor."""
    x = pixels.double() / 255
    value = x.amax(dim=1, keepdim=True)
    raised = (value + more).clamp(max=1)
    return torch.where(value > 0, x * raised / value.clamp(min=1e-12), raised)


def _grey(x: Tensor) -> Tensor:
    """(n, 1, height, width)."""
    if x.shape[1] == 1:
        return x
    return (x * torch.tensor(_GREY, dtype=x.dtype, device=x.device)[:, None, None]).sum(dim=1, keepdim=True)


WEATHERS: dict[str, Any] = {one.__name__: one for one in (snow, frost, fog, brightness)}
