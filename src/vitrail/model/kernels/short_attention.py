"""Attention over few tokens as one kernel: norms of queries and keys, rotations, softmax and sum, there and back.

With 64 tokens the usual kernels spend their time on carrying queries, keys and values to and from memory: once for the
norms, once for the rotations, once for the product. Here one program reads those of one head of one picture, and all of
that happens where they lie.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitrail.model.kernels.ready import angles, inverse, put, ready, strides, tile, turned

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
REGISTERS = 168  # of a thread on the way back: so three programs share a multiprocessor, and few numbers are put by


@triton.jit
def _weights(q, k, seen, scale):  # type: ignore[no-untyped-def]
    """Softmax of the products, in float32: (queries, keys)."""
    products = tl.dot(q, tl.trans(k)) * (scale * LOG2E)
    products = tl.where(seen[None, :], products, float("-inf"))
    weights = tl.exp2(products - tl.max(products, 1)[:, None])
    return weights * (1 / tl.sum(weights, 1))[:, None]


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv, q_weight, k_weight, turn, out, tokens, heads, apart, between, scale, eps,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    rows = tl.arange(0, TOKENS)
    seen = rows < tokens
    inner = heads * WIDTH
    place = qkv + batch.to(tl.int64) * tokens * 3 * inner + head * WIDTH
    cos, sin = angles(turn, batch, rows, seen, apart, between, WIDTH, TURN)
    q = tile(place, rows, 3 * inner, seen, WIDTH)
    k = tile(place + inner, rows, 3 * inner, seen, WIDTH)
    v = tile(place + 2 * inner, rows, 3 * inner, seen, WIDTH)
    q = ready(q, q_weight, eps, cos, sin, TOKENS, WIDTH, NORM, TURN)
    k = ready(k, k_weight, eps, cos, sin, TOKENS, WIDTH, NORM, TURN)
    mixed = tl.dot(_weights(q, k, seen, scale).to(v.dtype), v)
    put(out + batch.to(tl.int64) * tokens * inner + head * WIDTH, rows, inner, seen, mixed.to(v.dtype), WIDTH)


@triton.jit
def _add_up(place, value, rows, TOKENS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums over the tokens, by a product with ones: threads would take longer to pass numbers to each other."""
    sums = tl.dot(tl.full((TOKENS, TOKENS), 1.0, value.dtype), value)
    tl.store(place + rows[:, None] * 0 + tl.arange(0, WIDTH)[None, :], sums, mask=(rows == 0)[:, None])


@triton.jit
def _back(  # type: ignore[no-untyped-def]
    gradient, place, stride, result, weight, norm_sums, sums, rows, seen, turn, batch, apart, between, eps,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """From gradients of queries or keys as they are multiplied to those of what the linear map gave, which is read
    again: it need not be held until now."""
    kind = place.dtype.element_ty
    cos, sin = angles(turn, batch, rows, seen, apart, between, WIDTH, TURN)
    if TURN:
        gradient = turned(gradient, cos, -sin, TOKENS, WIDTH)
    if NORM:  # as in `before_ready`, but what is added up is put by early: it takes no registers afterwards
        x = tile(place, rows, stride, seen, WIDTH).to(tl.float32)
        factor = inverse(x, eps, WIDTH)
        x *= factor[:, None]
        _add_up(norm_sums, (gradient * x).to(kind), rows, TOKENS, WIDTH)
        gradient *= tl.load(weight + tl.arange(0, WIDTH))[None, :]
        along = tl.sum(gradient * x, 1) / WIDTH
        gradient = factor[:, None] * (gradient - x * along[:, None])
    gradient = gradient.to(kind)
    put(result, rows, stride, seen, gradient, WIDTH)
    _add_up(sums, gradient, rows, TOKENS, WIDTH)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    qkv, q_weight, k_weight, turn, gradient, result, q_sums, k_sums, sums, tokens, heads, apart, between, scale, eps,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    batch, head = program // heads, program % heads
    rows = tl.arange(0, TOKENS)
    seen = rows < tokens
    inner = heads * WIDTH
    start = batch.to(tl.int64) * tokens * 3 * inner + head * WIDTH
    place = qkv + start
    result += start
    sums += batch * 3 * inner + head * WIDTH
    cos, sin = angles(turn, batch, rows, seen, apart, between, WIDTH, TURN)
    q = tile(place, rows, 3 * inner, seen, WIDTH)
    k = tile(place + inner, rows, 3 * inner, seen, WIDTH)
    v = tile(place + 2 * inner, rows, 3 * inner, seen, WIDTH)
    source = gradient + batch.to(tl.int64) * tokens * inner + head * WIDTH
    given = tile(source, rows, inner, seen, WIDTH)
    q = ready(q, q_weight, eps, cos, sin, TOKENS, WIDTH, NORM, TURN)
    k = ready(k, k_weight, eps, cos, sin, TOKENS, WIDTH, NORM, TURN)
    weights = _weights(q, k, seen, scale)
    to_weights = tl.dot(given, tl.trans(v))
    to_values = tl.dot(tl.trans(weights.to(v.dtype)), given)
    put(result + 2 * inner, rows, 3 * inner, seen, to_values.to(v.dtype), WIDTH)
    _add_up(sums + 2 * inner, given, rows, TOKENS, WIDTH)  # what a query spreads over the values adds up to its own
    mean = tl.sum(weights * to_weights, 1)
    to_products = (weights * (to_weights - mean[:, None]) * scale).to(v.dtype)
    q_sums += program * WIDTH
    k_sums += program * WIDTH
    _back(
        tl.dot(to_products, k), place, 3 * inner, result, q_weight, q_sums, sums,
        rows, seen, turn, batch, apart, between, eps, TOKENS, WIDTH, NORM, TURN,
    )  # fmt: skip
    _back(
        tl.dot(tl.trans(to_products), q), place + inner, 3 * inner, result + inner, k_weight, k_sums, sums + inner,
        rows, seen, turn, batch, apart, between, eps, TOKENS, WIDTH, NORM, TURN,
    )  # fmt: skip


def _settings(qkv: Tensor, q_weight: Tensor | None, turn: Tensor | None, heads: int) -> dict[str, int | bool]:
    width = qkv.shape[-1] // (3 * heads)
    tokens = max(16, triton.next_power_of_2(qkv.shape[1]))
    return {"TOKENS": tokens, "WIDTH": width, "NORM": q_weight is not None, "TURN": turn is not None}


@torch.library.custom_op("vitrail::short_attention", mutates_args=())
def short_attention(
    qkv: Tensor,  # (batch, tokens, 3 * heads * width), contiguous, bfloat16 or float16
    q_weight: Tensor | None,  # of the RMS norms, (width,) in float32; None: there are none
    k_weight: Tensor | None,
    turn: Tensor | None,  # RoPE: (2, 1 or batch, 1, tokens, width / 2) in float32
    heads: int,
    scale: float,
    eps: float,
) -> Tensor:
    """(batch, tokens, heads * width)."""
    batch, tokens, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out = qkv.new_empty(batch, tokens, inner)
    apart, between = strides(turn)
    tensors = (qkv, *(qkv if one is None else one for one in (q_weight, k_weight, turn)), out)
    settings = _settings(qkv, q_weight, turn, heads)
    _forward[(batch * heads,)](*tensors, tokens, heads, apart, between, scale, eps, **settings, num_warps=4)
    return out


@short_attention.register_fake
def _(qkv: Tensor, *rest: Any) -> Tensor:
    return qkv.new_empty(qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3)


@torch.library.custom_op("vitrail::short_attention_backward", mutates_args=())
def short_attention_backward(
    gradient: Tensor,
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    turn: Tensor | None,
    heads: int,
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the packed projections; of both norms' weights by program, (2, batch * heads, width); and sums of
    the first over the tokens of each picture, (batch, 3 * heads * width)."""
    batch, tokens = qkv.shape[:2]
    result, norms, sums = _empty(qkv, q_weight, heads)
    settings = _settings(qkv, q_weight, turn, heads)
    apart, between = strides(turn)
    given = (qkv, *(qkv if one is None else one for one in (q_weight, k_weight, turn)), gradient)
    rest = tokens, heads, apart, between, scale, eps
    _backward[(batch * heads,)](*given, result, *norms, sums, *rest, **settings, num_warps=4, maxnreg=REGISTERS)
    return result, norms, sums


def _empty(qkv: Tensor, q_weight: Tensor | None, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    width = qkv.shape[-1] // (3 * heads)
    programs = qkv.shape[0] * heads if q_weight is not None else 0
    norms = qkv.new_empty(2, programs, width, dtype=torch.float32)
    return torch.empty_like(qkv), norms, qkv.new_empty(qkv.shape[0], qkv.shape[2], dtype=torch.float32)


@short_attention_backward.register_fake
def _(
    gradient: Tensor, qkv: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, turn: Any, heads: int, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(qkv, q_weight, heads)
