"""A small paint box for `draw_pictures.py`: smooth shapes, soft light from the upper left, fur, shadows, haze.

Points are (x, y) in a picture of 256 × 256, y downwards. A shape is a mask of how much of each pixel it covers; it is
drawn at four times the size of the picture, painted at twice, and halved at the end: edges come out smooth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

SIZE = 256
WORK = 2 * SIZE
FINE = 2 * WORK

Array = np.ndarray
Points = Sequence[tuple[float, float]]

LIGHT = np.array([-0.45, -0.65, 0.61])  # where it comes from: left, above, in front


def colour(text: str) -> Array:
    """`"8fb3d9"` as three numbers from 0 to 1."""
    return np.array([int(text[i : i + 2], 16) / 255 for i in (0, 2, 4)])


def curve(points: Points, closed: bool = True, steps: int = 12) -> Array:
    """A smooth line through all points (Catmull-Rom)."""
    given = np.array(points, float)
    ends = (given[-1:], given[:2]) if closed else (given[:1], given[-1:])
    p = np.concatenate([ends[0], given, ends[1]])
    t = np.linspace(0, 1, steps, endpoint=False)[:, None, None]
    a, b, c, d = p[:-3], p[1:-2], p[2:-1], p[3:]
    line = b + t * (c - a) / 2 + t**2 * (a - 2.5 * b + 2 * c - d / 2) + t**3 * (1.5 * (b - c) + (d - a) / 2)
    line = line.transpose(1, 0, 2).reshape(-1, 2)
    return line if closed else np.concatenate([line, given[-1:]])


def blur(field: Array, radius: float) -> Array:
    """Three running means in each direction, which come close to a Gaussian; `radius` in points of the picture."""
    half = max(1, round(radius * WORK / SIZE))
    for axis in (0, 1) * 3:
        pad = [(half + 1, half) if i == axis else (0, 0) for i in range(field.ndim)]
        total = np.cumsum(np.pad(field, pad, mode="edge"), axis=axis)
        width = 2 * half + 1
        upper, lower = np.arange(width, total.shape[axis]), np.arange(0, total.shape[axis] - width)
        field = (np.take(total, upper, axis) - np.take(total, lower, axis)) / width
    return field


def around(shape: Array, margin: float) -> tuple[slice, slice]:
    """The part of the picture that a shape is in: what lies further off need not be computed."""
    step = int(margin) + 1
    rows, columns = np.flatnonzero(shape.any(1)), np.flatnonzero(shape.any(0))
    if not len(rows):
        return slice(0, 0), slice(0, 0)
    return slice(max(0, rows[0] - step), rows[-1] + 1 + step), slice(max(0, columns[0] - step), columns[-1] + 1 + step)


class Painting:
    """A picture on its way. `place` moves everything drawn after it: the same horse, larger and further left."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.RandomState(seed)  # its numbers are the same in every version of NumPy
        self.pixels = np.zeros((WORK, WORK, 3))
        self.place()

    def place(self, size: float = 1, x: float = 0, y: float = 0, turn: float = 0, flip: bool = False) -> None:
        """About the middle of the picture: made larger, turned (degrees, clockwise), flipped, then moved."""
        sin, cos = np.sin(np.radians(turn)), np.cos(np.radians(turn))
        self.matrix = size * np.array([[cos, -sin], [sin, cos]]) @ np.diag([-1.0 if flip else 1.0, 1.0])
        self.shift, self.enlarged = np.array([x, y]), size

    # shapes

    def fill(self, outlines: Sequence[Array]) -> Array:
        canvas = Image.new("L", (FINE, FINE))
        for outline in outlines:
            placed = (outline - SIZE / 2) @ self.matrix.T + SIZE / 2 + self.shift
            ImageDraw.Draw(canvas).polygon([tuple(point) for point in (placed * FINE / SIZE).tolist()], fill=255)
        return np.asarray(canvas.reduce(FINE // WORK), float) / 255

    def polygon(self, *points: tuple[float, float]) -> Array:
        return self.fill([np.array(points, float)])

    def blob(self, *points: tuple[float, float]) -> Array:
        """The inside of a smooth line through the points."""
        return self.fill([curve(points)])

    def oval(self, x: float, y: float, rx: float, ry: float, turn: float = 0) -> Array:
        angle, tilt = np.linspace(0, 2 * np.pi, 96, endpoint=False), np.radians(turn)
        a, b = rx * np.cos(angle), ry * np.sin(angle)
        ring = [x + a * np.cos(tilt) - b * np.sin(tilt), y + a * np.sin(tilt) + b * np.cos(tilt)]
        return self.fill([np.stack(ring, 1)])

    def box(self, left: float, top: float, right: float, bottom: float, corner: float = 0) -> Array:
        """With round corners."""
        angle = np.linspace(0, 2 * np.pi, 36, endpoint=False) + np.pi / 36
        x, y = np.cos(angle), np.sin(angle)
        inner = [np.where(x > 0, right - corner, left + corner), np.where(y > 0, bottom - corner, top + corner)]
        return self.fill([np.stack(inner, 1) + corner * np.stack([x, y], 1)])

    def stroke(self, points: Points, *widths: float) -> Array:
        """A smooth line whose width goes from the first to the last of `widths`, with round ends."""
        line = curve(points, closed=False)
        at = np.linspace(0, 1, len(line))
        width = np.interp(at, np.linspace(0, 1, len(widths)), widths) / 2
        along = np.gradient(line, axis=0)
        across = np.stack([-along[:, 1], along[:, 0]], 1) / np.maximum(np.linalg.norm(along, axis=1), 1e-9)[:, None]
        side = across * width[:, None]
        circle = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        disc = np.stack([np.cos(circle), np.sin(circle)], 1)
        caps = [line[0] + disc * width[0], line[-1] + disc * width[-1]]
        quads = [np.array([line[i] + side[i], line[i + 1] + side[i + 1], line[i + 1] - side[i + 1], line[i] - side[i]])
                 for i in range(len(line) - 1)]  # fmt: skip
        joints = [line[i] + disc * width[i] for i in range(1, len(line) - 1, 3)]
        return self.fill(caps + quads + joints)

    # fields

    def ramp(self, top: float, bottom: float) -> Array:
        """0 above `top`, 1 below `bottom`, as a field that broadcasts over a row."""
        y = (np.arange(WORK) + 0.5) * SIZE / WORK
        return np.clip((y - top) / (bottom - top), 0, 1)[:, None]

    def noise(self, wide: float, high: float | None = None, octaves: int = 2, turn: float = 0) -> Array:
        """Smooth noise about 0 whose grains are `wide` × `high` points."""
        total, side = np.zeros((WORK, WORK)), WORK * 3 // 2
        for octave in range(octaves):
            cells = [max(2, round(1.5 * SIZE / grain * 2**octave)) for grain in (high or wide, wide)]
            grid = Image.fromarray(self.random.standard_normal(cells).astype(np.float32))
            large = grid.resize((side, side), Image.Resampling.BICUBIC).rotate(-turn, Image.Resampling.BILINEAR)
            edge = (side - WORK) // 2
            total += np.asarray(large, float)[edge : edge + WORK, edge : edge + WORK] / 2**octave
        return total / max(float(total.std()), 1e-9)

    # paint

    def backdrop(self, *stops: tuple[float, str]) -> None:
        """Colours from top to bottom: (y, colour), …"""
        y = (np.arange(WORK) + 0.5) * SIZE / WORK
        rows = [np.interp(y, [at for at, _ in stops], [colour(c)[i] for _, c in stops]) for i in range(3)]
        self.pixels[:] = np.stack(rows, 1)[:, None]

    def lay(self, cover: Array, paint: str) -> None:
        """Puts plain paint where `cover` says."""
        part = around(cover, 0)
        self.pixels[part] += cover[part][..., None] * (colour(paint) - self.pixels[part])

    def paint(
        self, shape: Array, top: str, bottom: str = "", *, bulge: float = 6, gloss: float = 0, fur: Array | None = None
    ) -> None:
        """A solid thing: colours from its top to its bottom, rounded by `bulge` at the edge, lit, with texture."""
        reach = max(1, bulge * self.enlarged)
        part = around(shape, 8 * reach)
        rows = np.flatnonzero(shape.any(1)) * SIZE / WORK
        fade = self.ramp(rows[0], rows[-1] + 1)[part[0], :, None]
        body = colour(top) + fade * (colour(bottom or top) - colour(top))
        if bulge:
            dy, dx = np.gradient(blur(shape[part], reach) * reach * 3.2)
            facing = np.clip((LIGHT[2] - dx * LIGHT[0] - dy * LIGHT[1]) / np.sqrt(dx**2 + dy**2 + 1), 0, 1)[..., None]
            body = body * (0.62 + 0.62 * facing) + gloss * facing**12
        if fur is not None:
            body = body * (1 + fur[part][..., None])
        self.pixels[part] += shape[part][..., None] * (np.clip(body, 0, 1) - self.pixels[part])

    def tint(self, cover: Array, paint: str, amount: float = 1, soft: float = 0, within: Array | None = None) -> None:
        """A transparent layer: markings, cheeks, shade; `within` keeps it on the thing."""
        if soft:
            part, sharp = around(cover, 8 * soft * self.enlarged), cover
            cover = np.zeros_like(sharp)
            cover[part] = blur(sharp[part], soft * self.enlarged)
        self.lay(amount * cover * (1 if within is None else within), paint)

    def shadow(self, shape: Array, amount: float = 0.45, soft: float = 5) -> None:
        self.tint(shape, "10141c", amount, soft)

    def grain(self, amount: float, field: Array) -> None:
        """Light and dark specks over all there is so far."""
        self.pixels = np.clip(self.pixels * (1 + amount * field[..., None]), 0, 1)

    def haze(self, radius: float) -> None:
        """All there is so far, out of focus."""
        self.pixels = blur(self.pixels, radius)

    def finish(self) -> Image.Image:
        """The picture in its own 256 colours, dithered: small as a file, smooth to the eye."""
        full = Image.fromarray(np.uint8(np.clip(self.pixels, 0, 1) * 255 + 0.5)).reduce(WORK // SIZE)
        palette = full.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1)
        return full.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
