"""The engine for many pictures at once, on any device: what `on_picture` does to each, from pixels that are there.

Every sample has its own numbers, and nothing here waits for the device: an operation is computed for all samples and
kept where it was drawn. So the whole can be captured in one graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.data.augmentation import colours
from vitrail.data.augmentation.geometry import affines, padded_windows, random_boxes, reflects
from vitrail.data.augmentation.ops import GEOMETRIC, Op
from vitrail.data.augmentation.plan import Augmentation
from vitrail.data.augmentation.policy import Drawn
from vitrail.data.augmentation.resampling import resample, weights

TABLED = frozenset(
    {Op.BRIGHTNESS, Op.CONTRAST, Op.POSTERIZE, Op.SOLARIZE, Op.SOLARIZE_ADD, Op.AUTOCONTRAST, Op.EQUALIZE, Op.INVERT}
)


def augmented(
    pixels: Tensor, full: Tensor, plan: Augmentation, drawn: Drawn, size: tuple[int, int], colour: Tensor
) -> Tensor:
    """Pixels (n, channels, height, width), uint8, to the same of `size`.

    `full` (n, 2) has the width and height that each picture had before it was stored at its present size: boxes are
    drawn in the full picture, so that one that was squashed is cropped as if it had not been. `colour` (channels,)
    stands where there is no pixel.
    """
    colour = colour.view(1, -1, 1, 1).float()
    if plan.crop == "pad":
        new = _padded(pixels.float(), full, plan, drawn, size, colour)
    elif plan.crop == "random-resized":
        new = _random_resized(pixels.float(), full, plan, drawn, size)
    else:
        new = _flipped(pixels.float(), drawn)
    for slot, possible in enumerate(plan.slots()):
        new = changed(new, drawn.ops[:, slot], drawn.values[:, slot], possible, colour)
    return new.to(torch.uint8)


def _flipped(pixels: Tensor, drawn: Drawn) -> Tensor:
    pixels = torch.where(drawn.hflip.view(-1, 1, 1, 1), pixels.flip(3), pixels)
    return torch.where(drawn.vflip.view(-1, 1, 1, 1), pixels.flip(2), pixels)


def _index(count: int, flip: Tensor) -> Tensor:
    """0 … count - 1, backwards where flipped: (n, count)."""
    forward = torch.arange(count, device=flip.device, dtype=torch.double)
    return torch.where(flip[:, None], count - 1 - forward, forward)


def _random_resized(pixels: Tensor, full: Tensor, plan: Augmentation, drawn: Drawn, size: tuple[int, int]) -> Tensor:
    width, height = full.double().unbind(1)
    left, top, right, bottom = random_boxes(plan, drawn.crop, width, height).unbind(1)
    (stored_h, stored_w), (new_h, new_w), kind = pixels.shape[2:], size, plan.interpolation
    x, y = stored_w / width, stored_h / height
    down = weights(top * y, (bottom - top) * y / new_h, _index(new_h, drawn.vflip), new_h, stored_h, kind)
    along = weights(left * x, (right - left) * x / new_w, _index(new_w, drawn.hflip), new_w, stored_w, kind)
    return resample(pixels, down.float(), along.float())


def _padded(
    pixels: Tensor, full: Tensor, plan: Augmentation, drawn: Drawn, size: tuple[int, int], colour: Tensor
) -> Tensor:
    width, height = full.double().unbind(1)
    tall, wide, top, left = padded_windows(plan, drawn.crop, width, height, size)
    down = _index(size[0], drawn.vflip) + top[:, None]
    along = _index(size[1], drawn.hflip) + left[:, None]
    stored_h, stored_w = pixels.shape[2:]
    new = resample(
        pixels,
        _whole_side(tall, reflects(down, tall[:, None]), stored_h, plan.interpolation),
        _whole_side(wide, reflects(along, wide[:, None]), stored_w, plan.interpolation),
    )
    if plan.padding_mode == "reflect":
        return new
    beyond_y = ((down < 0) | (down >= tall[:, None]))[:, None, :, None]
    beyond_x = ((along < 0) | (along >= wide[:, None]))[:, None, None, :]
    return torch.where(beyond_y | beyond_x, colour, new)


def _whole_side(length: Tensor, index: Tensor, stored: int, kind: str) -> Tensor:
    """Weights of pixels `index` of a side of `stored` pixels that is made `length` long."""
    step = stored / length
    return weights(torch.zeros_like(step), step, index, 2**30, stored, kind).float()


def changed(pixels: Tensor, ops: Tensor, values: Tensor, possible: frozenset[Op], colour: Tensor) -> Tensor:
    """One operation for each sample; `pixels` are whole numbers as float32."""

    def where(op: Op, new: Tensor) -> Tensor:
        return torch.where((ops == op).view(-1, 1, 1, 1), new, pixels)

    value = values.float().view(-1, 1, 1, 1)
    if possible & frozenset(GEOMETRIC):
        height, width = pixels.shape[2:]
        moved = colours.transformed(pixels, affines(ops, values, height, width), colour)
        turned = (ops >= min(GEOMETRIC)) & (ops <= max(GEOMETRIC))
        pixels = torch.where(turned.view(-1, 1, 1, 1), moved, pixels)
    if possible & TABLED:
        pixels = colours.looked_up(pixels, colours.tables(pixels, ops, values, possible))
    if pixels.shape[1] == 3:
        if Op.COLOR in possible:
            pixels = where(Op.COLOR, colours.blended(colours.grey(pixels), pixels, value))
        if Op.GREY in possible:
            pixels = where(Op.GREY, colours.grey(pixels).expand_as(pixels))
        if Op.HUE in possible:
            pixels = where(Op.HUE, colours.hue_shifted(pixels, values.view(-1, 1, 1)))
    if Op.SHARPNESS in possible:
        pixels = where(Op.SHARPNESS, colours.blended(colours.smoothed(pixels), pixels, value))
    if Op.BLUR in possible:
        pixels = where(Op.BLUR, colours.blurred(pixels, torch.where(ops == Op.BLUR, values, 1.0).float()))
    return pixels
