"""Queries and keys made ready to be multiplied, normed and turned, and the way back from there: parts of kernels."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def tile(place, rows, stride, seen, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """What a head has of each token: (tokens, width)."""
    grid = rows[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    return tl.load(place + grid, mask=seen[:, None], other=0.0)


@triton.jit
def put(place, rows, stride, seen, value, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    grid = rows[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    tl.store(place + grid, value, mask=seen[:, None])


@triton.jit
def inverse(x, eps, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """What an RMS norm multiplies each token by."""
    return tl.rsqrt(tl.sum(x * x, 1) / WIDTH + eps)


@triton.jit
def turned(x, cos, sin, TOKENS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pairs of neighbouring channels, turned."""
    even, odd = tl.split(tl.reshape(x, (TOKENS, WIDTH // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, odd * cos + even * sin), (TOKENS, WIDTH))


@triton.jit
def angles(turn, batch, rows, seen, apart, between, WIDTH: tl.constexpr, TURN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Cosines and sines of this picture's tokens, which lie `apart` from each other; numbers where there are none."""
    cos, sin = 1.0, 0.0
    if TURN:
        place = turn + batch * between
        cos = tile(place, rows, WIDTH // 2, seen, WIDTH // 2)
        sin = tile(place + apart, rows, WIDTH // 2, seen, WIDTH // 2)
    return cos, sin


@triton.jit
def ready(  # type: ignore[no-untyped-def]
    x, weight, eps, cos, sin, TOKENS: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr
):  # fmt: skip
    """Queries or keys as they are multiplied: normed and turned, as wide as they came."""
    wide = x.to(tl.float32)
    if NORM:
        wide = wide * inverse(wide, eps, WIDTH)[:, None] * tl.load(weight + tl.arange(0, WIDTH))[None, :]
    if TURN:
        wide = turned(wide, cos, sin, TOKENS, WIDTH)
    return wide.to(x.dtype)


@triton.jit
def before_ready(  # type: ignore[no-untyped-def]
    gradient, x, weight, eps, cos, sin,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Gradients of x from those of what it became, in float32, and what each token adds to that of the weight."""
    if TURN:
        gradient = turned(gradient, cos, -sin, TOKENS, WIDTH)
    to_weight = gradient
    if NORM:
        x = x.to(tl.float32)
        factor = inverse(x, eps, WIDTH)
        x *= factor[:, None]
        to_weight = gradient * x
        gradient *= tl.load(weight + tl.arange(0, WIDTH))[None, :]
        along = tl.sum(gradient * x, 1) / WIDTH
        gradient = factor[:, None] * (gradient - x * along[:, None])
    return gradient, to_weight


def strides(turn: Tensor | None) -> tuple[int, int]:
    """From cosines to sines, and from the angles of one picture to those of the next."""
    if turn is None:
        return 0, 0
    return turn[0].numel(), (turn[0, 0].numel() if turn.shape[1] > 1 else 0)
