"""Attention over few tokens as one kernel: norms of queries and keys, rotations, softmax and sum, there and back.

With 64 tokens the usual kernels spend their time on carrying queries, keys and values to and from memory: once for the
norms, once for the rotations, once for the product. Here one program reads those of one head of one picture, and all of
that happens where they lie. Channels are taken as even and odd ones apart, because rotations turn pairs of neighbours.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _pairs(place, rows, stride, seen, TOKENS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Even and odd channels of a head, in float32: (tokens, width / 2) each."""
    columns = tl.arange(0, WIDTH)
    values = tl.load(place + rows[:, None] * stride + columns[None, :], mask=seen[:, None], other=0.0)
    return tl.split(tl.reshape(values.to(tl.float32), (TOKENS, WIDTH // 2, 2)))


@triton.jit
def _normed(even, odd, weight, eps, WIDTH: tl.constexpr, NORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """RMS norm: both halves, and what each token was divided by, inverted."""
    half = tl.arange(0, WIDTH // 2)
    inverse = tl.rsqrt((tl.sum(even * even, 1) + tl.sum(odd * odd, 1)) / WIDTH + eps)
    if NORM:
        even = even * inverse[:, None] * tl.load(weight + 2 * half)[None, :]
        odd = odd * inverse[:, None] * tl.load(weight + 2 * half + 1)[None, :]
    return even, odd, inverse


@triton.jit
def _turned(even, odd, cos, sin, TURN: tl.constexpr):  # type: ignore[no-untyped-def]
    if TURN:
        even, odd = even * cos - odd * sin, odd * cos + even * sin
    return even, odd


@triton.jit
def _angles(turn, batch, rows, seen, tokens, apart, between, WIDTH: tl.constexpr, TURN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Cosines and sines of this picture's tokens, which lie `apart` from each other; numbers where there are none."""
    cos, sin = 1.0, 0.0
    if TURN:
        half = tl.arange(0, WIDTH // 2)
        place = turn + batch * between + rows[:, None] * (WIDTH // 2) + half[None, :]
        cos = tl.load(place, mask=seen[:, None], other=1.0)
        sin = tl.load(place + apart, mask=seen[:, None], other=0.0)
    return cos, sin


@triton.jit
def _weights(qe, qo, ke, ko, seen, scale):  # type: ignore[no-untyped-def]
    """Softmax of the products, in float32: (queries, keys)."""
    products = tl.dot(qe, tl.trans(ke)) + tl.dot(qo, tl.trans(ko))
    products = tl.where(seen[None, :], products * scale, float("-inf"))
    weights = tl.exp(products - tl.max(products, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv, q_weight, k_weight, turn, out, tokens, heads, apart, between, scale, eps,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    rows, columns = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    seen = rows < tokens
    inner = heads * WIDTH
    place = qkv + batch.to(tl.int64) * tokens * 3 * inner + head * WIDTH
    kind = qkv.dtype.element_ty
    cos, sin = _angles(turn, batch, rows, seen, tokens, apart, between, WIDTH, TURN)
    qe, qo = _pairs(place, rows, 3 * inner, seen, TOKENS, WIDTH)
    ke, ko = _pairs(place + inner, rows, 3 * inner, seen, TOKENS, WIDTH)
    qe, qo, _ = _normed(qe, qo, q_weight, eps, WIDTH, NORM)
    ke, ko, _ = _normed(ke, ko, k_weight, eps, WIDTH, NORM)
    qe, qo = _turned(qe, qo, cos, sin, TURN)
    ke, ko = _turned(ke, ko, cos, sin, TURN)
    weights = _weights(qe.to(kind), qo.to(kind), ke.to(kind), ko.to(kind), seen, scale)
    grid = rows[:, None] * 3 * inner + columns[None, :]
    values = tl.load(place + 2 * inner + grid, mask=seen[:, None], other=0.0)
    mixed = tl.dot(weights.to(kind), values)
    target = out + batch.to(tl.int64) * tokens * inner + head * WIDTH + rows[:, None] * inner + columns[None, :]
    tl.store(target, mixed.to(kind), mask=seen[:, None])


@triton.jit
def _unnormed(de, do, even, odd, inverse, weight, sums, WIDTH: tl.constexpr, NORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Gradients before the norm from those after it; those of its weights are added over this program's tokens."""
    if NORM:
        half = tl.arange(0, WIDTH // 2)
        even, odd = even * inverse[:, None], odd * inverse[:, None]
        tl.store(sums + 2 * half, tl.sum(de * even, 0))
        tl.store(sums + 2 * half + 1, tl.sum(do * odd, 0))
        de = de * tl.load(weight + 2 * half)[None, :]
        do = do * tl.load(weight + 2 * half + 1)[None, :]
        along = (tl.sum(de * even, 1) + tl.sum(do * odd, 1)) / WIDTH
        de = inverse[:, None] * (de - even * along[:, None])
        do = inverse[:, None] * (do - odd * along[:, None])
    return de, do


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    qkv, q_weight, k_weight, turn, gradient, result, q_sums, k_sums, sums, tokens, heads, apart, between, scale, eps,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    batch, head = program // heads, program % heads
    rows, columns = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    seen = rows < tokens
    inner = heads * WIDTH
    start = batch.to(tl.int64) * tokens * 3 * inner + head * WIDTH
    kind = qkv.dtype.element_ty
    grid = rows[:, None] * 3 * inner + columns[None, :]
    cos, sin = _angles(turn, batch, rows, seen, tokens, apart, between, WIDTH, TURN)
    q0e, q0o = _pairs(qkv + start, rows, 3 * inner, seen, TOKENS, WIDTH)
    k0e, k0o = _pairs(qkv + start + inner, rows, 3 * inner, seen, TOKENS, WIDTH)
    qe, qo, q_inverse = _normed(q0e, q0o, q_weight, eps, WIDTH, NORM)
    ke, ko, k_inverse = _normed(k0e, k0o, k_weight, eps, WIDTH, NORM)
    qe, qo = _turned(qe, qo, cos, sin, TURN)
    ke, ko = _turned(ke, ko, cos, sin, TURN)
    qe, qo, ke, ko = qe.to(kind), qo.to(kind), ke.to(kind), ko.to(kind)
    weights = _weights(qe, qo, ke, ko, seen, scale)
    values = tl.load(qkv + start + 2 * inner + grid, mask=seen[:, None], other=0.0)
    source = gradient + batch.to(tl.int64) * tokens * inner + head * WIDTH
    given = tl.load(source + rows[:, None] * inner + columns[None, :], mask=seen[:, None], other=0.0)

    to_values = tl.dot(tl.trans(weights.to(kind)), given)
    tl.store(result + start + 2 * inner + grid, to_values.to(kind), mask=seen[:, None])
    own = sums + batch * 3 * inner + head * WIDTH + columns
    tl.store(own + 2 * inner, tl.sum(to_values, 0))
    to_weights = tl.dot(given, tl.trans(values))
    mean = tl.sum(weights * to_weights, 1)
    to_products = (weights * (to_weights - mean[:, None]) * scale).to(kind)
    dqe, dqo = tl.dot(to_products, ke), tl.dot(to_products, ko)
    dke, dko = tl.dot(tl.trans(to_products), qe), tl.dot(tl.trans(to_products), qo)
    dqe, dqo = _turned(dqe, dqo, cos, -sin, TURN)
    dke, dko = _turned(dke, dko, cos, -sin, TURN)
    dqe, dqo = _unnormed(dqe, dqo, q0e, q0o, q_inverse, q_weight, q_sums + program * WIDTH, WIDTH, NORM)
    dke, dko = _unnormed(dke, dko, k0e, k0o, k_inverse, k_weight, k_sums + program * WIDTH, WIDTH, NORM)
    dq = tl.reshape(tl.join(dqe, dqo), (TOKENS, WIDTH))
    dk = tl.reshape(tl.join(dke, dko), (TOKENS, WIDTH))
    tl.store(result + start + grid, dq.to(kind), mask=seen[:, None])
    tl.store(result + start + inner + grid, dk.to(kind), mask=seen[:, None])
    tl.store(own, tl.sum(dq, 0))
    tl.store(own + inner, tl.sum(dk, 0))


def _settings(qkv: Tensor, q_weight: Tensor | None, turn: Tensor | None, heads: int) -> dict[str, int | bool]:
    width = qkv.shape[-1] // (3 * heads)
    tokens = max(16, triton.next_power_of_2(qkv.shape[1]))
    return {"TOKENS": tokens, "WIDTH": width, "NORM": q_weight is not None, "TURN": turn is not None}


def _strides(turn: Tensor | None) -> tuple[int, int]:
    """From cosines to sines, and from the angles of one picture to those of the next."""
    if turn is None:
        return 0, 0
    return turn[0].numel(), (turn[0, 0].numel() if turn.shape[1] > 1 else 0)


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
    apart, between = _strides(turn)
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
    apart, between = _strides(turn)
    given = (qkv, *(qkv if one is None else one for one in (q_weight, k_weight, turn)), gradient)
    rest = tokens, heads, apart, between, scale, eps
    _backward[(batch * heads,)](*given, result, *norms, sums, *rest, **settings, num_warps=4)
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
