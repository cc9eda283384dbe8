"""Operations on batches of whole-numbered pixels, each with its own parameter, in Pillow's arithmetic: (n, channels,
height, width), float32."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.data.augmentation.ops import BLUR_REACH, Op


def grey(pixels: Tensor) -> Tensor:
    """Luma as Pillow rounds it (ITU-R 601-2, 16 bits): one channel."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.to(torch.int32).unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).unsqueeze(1).float()


def blended(plain: Tensor, pixels: Tensor, factor: Tensor) -> Tensor:
    """From `plain` (0) through `pixels` (1) and on."""
    return (plain + factor * (pixels - plain)).clamp(0, 255).floor()


def smoothed(pixels: Tensor) -> Tensor:
    """Pillow's SMOOTH: a 3 x 3 mean that counts the centre five times; the outermost pixels stay."""
    height, width = pixels.shape[2:]
    if height < 3 or width < 3:
        return pixels
    rows = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * pixels[:, :, 1:-1, 1:-1]
    new = pixels.clone()
    new[:, :, 1:-1, 1:-1] = (total / 13 + 0.5).floor()
    return new


def blurred(pixels: Tensor, sigma: Tensor) -> Tensor:
    """A Gaussian of `sigma` (n,) pixels, mirrored at the edges."""
    n, channels, height, width = pixels.shape
    reach = min(BLUR_REACH, height - 1, width - 1)
    at = torch.arange(-reach, reach + 1, device=pixels.device)
    kernel = torch.exp(-0.5 * (at / sigma[:, None]) ** 2)
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(channels, 0)
    flat = functional.pad(pixels, [reach] * 4, mode="reflect").flatten(0, 1).unsqueeze(0)
    flat = functional.conv2d(flat, kernel[:, None, :, None], groups=n * channels)
    flat = functional.conv2d(flat, kernel[:, None, None, :], groups=n * channels)
    return flat.view(n, channels, height, width).round()


def transformed(pixels: Tensor, maps: Tensor, colour: Tensor) -> Tensor:
    """Bilinear sampling at the points that the affine `maps` (n, 6), float64, name; `colour` where there is no pixel.

    Points are float64 as Pillow's are: some lie on the edge exactly, and both are to say that they are inside.
    """
    _, channels, height, width = pixels.shape
    a, b, c, d, e, f = maps.view(-1, 6, 1, 1).unbind(1)
    x = torch.arange(width, device=pixels.device, dtype=maps.dtype) + 0.5
    y = (torch.arange(height, device=pixels.device, dtype=maps.dtype) + 0.5)[:, None]
    from_x, from_y = a * x + b * y + c, d * x + e * y + f  # (n, height, width)
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    from_x, from_y = from_x - 0.5, from_y - 0.5
    left, top = from_x.floor(), from_y.floor()
    right_part, bottom_part = (from_x - left).float().unsqueeze(1), (from_y - top).float().unsqueeze(1)
    columns = [(left + k).clamp(0, width - 1).long() for k in (0, 1)]
    lines = [(top + k).clamp(0, height - 1).long() * width for k in (0, 1)]
    flat = pixels.flatten(2)

    def at(line: int, column: int) -> Tensor:
        index = (lines[line] + columns[column]).flatten(1).unsqueeze(1).expand(-1, channels, -1)
        return flat.gather(2, index).view_as(pixels)

    upper = at(0, 0) + (at(0, 1) - at(0, 0)) * right_part
    lower = at(1, 0) + (at(1, 1) - at(1, 0)) * right_part
    new = (upper + (lower - upper) * bottom_part + 1e-4).floor()  # cut off, not rounded; sums are not quite exact
    return torch.where(inside.unsqueeze(1), new, colour)


def tables(pixels: Tensor, ops: Tensor, values: Tensor, possible: frozenset[Op]) -> Tensor:
    """What becomes of each of the 256 levels, for operations that look at no neighbours: (n, channels, 256)."""
    n, channels = pixels.shape[:2]
    level = torch.arange(256, device=pixels.device, dtype=torch.float32).expand(n, channels, 256)
    value = values.float().view(-1, 1, 1)
    found = level

    def put(op: Op, new: Tensor) -> None:
        nonlocal found
        found = torch.where((ops == op).view(-1, 1, 1), new, found)

    if Op.BRIGHTNESS in possible:
        put(Op.BRIGHTNESS, blended(torch.zeros_like(level), level, value))
    if Op.CONTRAST in possible:
        middle = (grey(pixels).double().mean((1, 2, 3)) + 0.5).floor().float().view(-1, 1, 1)
        put(Op.CONTRAST, blended(middle, level, value))
    if Op.POSTERIZE in possible:
        kept = torch.exp2(8 - value.clamp(0, 8))
        put(Op.POSTERIZE, (level / kept).floor() * kept)
    if Op.SOLARIZE in possible:
        put(Op.SOLARIZE, torch.where(level < value, level, 255 - level))
    if Op.SOLARIZE_ADD in possible:
        put(Op.SOLARIZE_ADD, torch.where(level < 128, (level + value.floor()).clamp(max=255), level))
    if Op.INVERT in possible:
        put(Op.INVERT, 255 - level)
    if Op.AUTOCONTRAST in possible:
        put(Op.AUTOCONTRAST, _stretched(pixels, level))
    if Op.EQUALIZE in possible:
        put(Op.EQUALIZE, _equalized(pixels, level))
    return found


def _stretched(pixels: Tensor, level: Tensor) -> Tensor:
    """The darkest level of each channel to 0, the brightest to 255."""
    low, high = pixels.flatten(2).double().aminmax(dim=2, keepdim=True)
    scale = torch.full_like(high, 255) / (high - low).clamp(min=1)  # 255 / x would be 255 * (1 / x)
    return torch.where(high > low, (level * scale - low * scale).clamp(0, 255).floor(), level).float()


def _equalized(pixels: Tensor, level: Tensor) -> Tensor:
    """Every level as frequent as the others, in Pillow's whole numbers."""
    n, channels = pixels.shape[:2]
    counts = torch.zeros(n, channels, 256, dtype=torch.long, device=pixels.device)
    flat = pixels.flatten(2).long()
    counts.scatter_add_(2, flat, torch.ones_like(flat))
    brightest = flat.amax(2, keepdim=True)
    step = (flat.shape[2] - counts.gather(2, brightest)) // 255
    before = counts.cumsum(2) - counts
    new = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, new.float(), level)


def looked_up(pixels: Tensor, table: Tensor) -> Tensor:
    return table.gather(2, pixels.flatten(2).long()).view_as(pixels)


def hue_shifted(pixels: Tensor, fraction: Tensor) -> Tensor:
    """Round the circle of colours by a fraction of it, through hue, saturation and value of 8 bits each.

    What is float and what is double is as in Pillow, since everything is cut off to whole numbers.
    """
    red, green, blue = pixels.unbind(1)
    high, low = pixels.amax(1), pixels.amin(1)
    spread = (high - low).clamp(min=1)
    from_red, from_green, from_blue = (((high - band) / spread).double() for band in (red, green, blue))
    hue = torch.where(green == high, 2 + from_red - from_blue, 4 + from_green - from_red)
    hue = torch.where(red == high, from_blue - from_green, hue)
    hue = (torch.remainder(hue.float().double() / 6 + 1, 1).float().double() * 255).floor()
    saturation = ((((high - low) / high.clamp(min=1)).double() * 255).floor() / 255).float().double()
    hue = torch.where(high == low, 0.0, hue)
    hue = torch.remainder(hue + (fraction * 255).trunc(), 256) * 6 / 255
    sector, part = hue.floor(), (hue - hue.floor()).float().double()
    high = high.double()
    p = (high * (1 - saturation) + 0.5).floor()
    q = (high * (1 - saturation * part) + 0.5).floor()
    t = (high * (1 - saturation * (1 - part)) + 0.5).floor()
    sector = torch.remainder(sector, 6).long().unsqueeze(0)
    bands = [(high, q, p, p, t, high), (t, high, high, q, p, p), (p, p, t, high, high, q)]
    return torch.stack([torch.stack(band).gather(0, sector)[0] for band in bands], 1).float()
