"""What processing does: lost contrast, stretching, large pixels, JPEG."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.scoring.stress.corruptions.filters import gaussian_blur
from vitrail.scoring.stress.dice import Dice


def contrast(pixels: Tensor, factor: float, dice: Dice) -> Tensor:
    """Towards the mean of each channel."""
    x = pixels.double() / 255
    mean = x.mean(dim=(2, 3), keepdim=True)
    return (x - mean) * factor + mean


def elastic_transform(pixels: Tensor, how: tuple[float, float, float], dice: Dice) -> Tensor:
    """Three corners of the middle are shifted, and the picture with them; then every pixel by a smooth field."""
    height, width = pixels.shape[-2:]
    strength, smooth, shift = (min(height, width) * part for part in how)
    x = sampled(pixels.double() / 255, *_skewed(dice, height, width, shift), "pixel")
    if strength == 0:
        return x
    fields = dice.between(-1, 1, 2, height, width, number=1)
    across, down = (strength * gaussian_blur(fields, smooth, "reflect", 3)).unbind(dim=1)
    rows, columns = _places(height, width, x.device)
    return sampled(x, rows + down, columns + across, "edge")


def _places(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rows = torch.arange(height, device=device).double()[:, None].expand(height, width)
    return rows, torch.arange(width, device=device).double().expand(height, width)


def _skewed(dice: Dice, height: int, width: int, shift: float) -> tuple[Tensor, Tensor]:
    """Where each pixel comes from: the affine map that takes the shifted corners back to where they were."""
    x, y, arm = width // 2, height // 2, min(height, width) // 3
    corners = torch.tensor([[x + arm, y + arm], [x + arm, y - arm], [x - arm, y - arm]], device=dice.rows.device)
    moved = corners + dice.between(-shift, shift, 3, 2)
    ones = torch.ones_like(moved[..., :1])
    back = torch.linalg.solve(torch.cat([moved, ones], dim=-1), corners.double().expand_as(moved))  # (n, 3, 2)
    rows, columns = _places(height, width, dice.rows.device)
    places = torch.stack([columns, rows, torch.ones_like(rows)], dim=-1)  # (height, width, 3)
    from_where = torch.einsum("hwk,nkd->nhwd", places, back)
    return from_where[..., 1], from_where[..., 0]


def sampled(x: Tensor, rows: Tensor, columns: Tensor, mirror: str) -> Tensor:
    """The picture at these places, (n, height, width), by straight lines between pixels. Beyond its edge it is
    mirrored: at the middle of the last "pixel", or at its outer "edge"."""
    n, channels, height, width = x.shape
    flat = x.flatten(2)
    total = torch.zeros(n, channels, *rows.shape[1:], dtype=x.dtype, device=x.device)
    top, left = rows.floor(), columns.floor()
    for down in (0, 1):
        for right in (0, 1):
            weight = (1 - (rows - top - down).abs()) * (1 - (columns - left - right).abs())
            place = _folded(top + down, height, mirror) * width + _folded(left + right, width, mirror)
            values = flat.gather(2, place.flatten(1)[:, None].expand(-1, channels, -1))
            total += weight[:, None] * values.view_as(total)
    return total


def _folded(places: Tensor, size: int, mirror: str) -> Tensor:
    turn = max(2 * size - 2, 1) if mirror == "pixel" else 2 * size
    places = places.long().remainder(turn)
    return torch.minimum(places, turn - (mirror == "edge") - places)


def pixelate(pixels: Tensor, factor: float, dice: Dice) -> Tensor:
    def coarse(picture: Image.Image) -> Image.Image:
        size = max(1, int(picture.width * factor)), max(1, int(picture.height * factor))
        return picture.resize(size, Image.Resampling.BOX).resize(picture.size, Image.Resampling.BOX)

    return _each(pixels, coarse)


def jpeg_compression(pixels: Tensor, quality: int, dice: Dice) -> Tensor:
    def squeezed(picture: Image.Image) -> Image.Image:
        page = io.BytesIO()
        picture.save(page, "JPEG", quality=quality)
        return Image.open(page)

    return _each(pixels, squeezed)


def _each(pixels: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Picture by picture, in Pillow's hands."""
    array = pixels.permute(0, 2, 3, 1).cpu().numpy()
    grey = array.shape[-1] == 1
    changed = [np.asarray(change(Image.fromarray(one[..., 0] if grey else one))) for one in np.ascontiguousarray(array)]
    new = torch.from_numpy(np.stack(changed)).to(pixels.device)
    return (new[:, None] if grey else new.permute(0, 3, 1, 2)).double() / 255


DIGITAL: dict[str, Any] = {one.__name__: one for one in (contrast, elastic_transform, pixelate, jpeg_compression)}
