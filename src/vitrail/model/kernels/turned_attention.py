"""Attention over some hundred tokens whose queries and keys are normed and turned before they are multiplied.

The kernels of `mid_attention` read tiles of one head many times, so that norms and rotations are not done there: one
pass before them writes projections that are ready to be multiplied, packed as they came, and one pass after them takes
the gradients of queries and keys back to those of the projections, where they lie.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitrail.model.kernels.mid_attention import ROWS, mid_attention, mid_attention_backward
from vitrail.model.kernels.short_attention import _angles, _inverse, _put, _ready, _strides, _tile, _turned

AT_A_TIME, AHEAD = 16, 2  # tokens; how many times that are being read
WARPS = 4


@triton.jit
def _make_ready(  # type: ignore[no-untyped-def]
    qkv, q_weight, k_weight, turn, result, tokens, heads, apart, between, eps,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, AT_A_TIME: tl.constexpr, AHEAD: tl.constexpr,
    WIDTH: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """A block of tokens of one head; values are copied."""
    program = tl.program_id(0)
    head, batch, block = program % heads, program // heads // BLOCKS, program // heads % BLOCKS
    inner = heads * WIDTH
    start = batch.to(tl.int64) * tokens * 3 * inner + head * WIDTH
    for step in tl.range(ROWS // AT_A_TIME, num_stages=AHEAD):
        rows = block * ROWS + step * AT_A_TIME + tl.arange(0, AT_A_TIME)
        seen = rows < tokens
        cos, sin = _angles(turn, batch, rows, seen, apart, between, WIDTH, TURN)
        q = _tile(qkv + start, rows, 3 * inner, seen, WIDTH)
        k = _tile(qkv + start + inner, rows, 3 * inner, seen, WIDTH)
        v = _tile(qkv + start + 2 * inner, rows, 3 * inner, seen, WIDTH)
        q = _ready(q, q_weight, eps, cos, sin, AT_A_TIME, WIDTH, NORM, TURN)
        k = _ready(k, k_weight, eps, cos, sin, AT_A_TIME, WIDTH, NORM, TURN)
        _put(result + start, rows, 3 * inner, seen, q, WIDTH)
        _put(result + start + inner, rows, 3 * inner, seen, k, WIDTH)
        _put(result + start + 2 * inner, rows, 3 * inner, seen, v, WIDTH)


@triton.jit
def _before(  # type: ignore[no-untyped-def]
    gradient, x, weight, eps, cos, sin, ROWS: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr
):  # fmt: skip
    """Gradients of a tile before its norm and rotation, and what each token adds to that of the norm's weight."""
    gradient = gradient.to(tl.float32)
    if TURN:
        gradient = _turned(gradient, cos, -sin, ROWS, WIDTH)
    to_weight = gradient
    if NORM:
        x = x.to(tl.float32)
        inverse = _inverse(x, eps, WIDTH)
        x *= inverse[:, None]
        to_weight = gradient * x
        gradient *= tl.load(weight + tl.arange(0, WIDTH))[None, :]
        along = tl.sum(gradient * x, 1) / WIDTH
        gradient = inverse[:, None] * (gradient - x * along[:, None])
    return gradient, to_weight


@triton.jit
def _take_back(  # type: ignore[no-untyped-def]
    qkv, q_weight, k_weight, turn, result, q_sums, k_sums, sums, tokens, heads, apart, between, eps,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, AT_A_TIME: tl.constexpr, AHEAD: tl.constexpr,
    WIDTH: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """In `result`, gradients of what was multiplied become those of the projections; for a block of tokens of one head,
    with what they add up to."""
    program = tl.program_id(0)
    head, group = program % heads, program // heads
    batch, block = group // BLOCKS, group % BLOCKS
    inner = heads * WIDTH
    start = batch.to(tl.int64) * tokens * 3 * inner + head * WIDTH
    q_total = tl.zeros((AT_A_TIME, WIDTH), tl.float32)
    k_total = tl.zeros((AT_A_TIME, WIDTH), tl.float32)
    q_norm = tl.zeros((AT_A_TIME, WIDTH), tl.float32)
    k_norm = tl.zeros((AT_A_TIME, WIDTH), tl.float32)
    for step in tl.range(ROWS // AT_A_TIME, num_stages=AHEAD):
        rows = block * ROWS + step * AT_A_TIME + tl.arange(0, AT_A_TIME)
        seen = rows < tokens
        cos, sin = _angles(turn, batch, rows, seen, apart, between, WIDTH, TURN)
        q = _tile(qkv + start, rows, 3 * inner, seen, WIDTH)
        k = _tile(qkv + start + inner, rows, 3 * inner, seen, WIDTH)
        to_q = _tile(result + start, rows, 3 * inner, seen, WIDTH)
        to_k = _tile(result + start + inner, rows, 3 * inner, seen, WIDTH)
        to_q, to_weight = _before(to_q, q, q_weight, eps, cos, sin, AT_A_TIME, WIDTH, NORM, TURN)
        q_total += to_q
        q_norm += to_weight
        to_k, to_weight = _before(to_k, k, k_weight, eps, cos, sin, AT_A_TIME, WIDTH, NORM, TURN)
        k_total += to_k
        k_norm += to_weight
        _put(result + start, rows, 3 * inner, seen, to_q.to(q.dtype), WIDTH)
        _put(result + start + inner, rows, 3 * inner, seen, to_k.to(k.dtype), WIDTH)
    column = tl.arange(0, WIDTH)
    sums += group * 3 * inner + head * WIDTH + column
    tl.store(sums, tl.sum(q_total, 0))
    tl.store(sums + inner, tl.sum(k_total, 0))
    if NORM:
        tl.store(q_sums + program * WIDTH + column, tl.sum(q_norm, 0))
        tl.store(k_sums + program * WIDTH + column, tl.sum(k_norm, 0))


def _settings(qkv: Tensor, q_weight: Tensor | None, turn: Tensor | None, heads: int) -> dict[str, Any]:
    return {
        "ROWS": ROWS,
        "BLOCKS": triton.cdiv(qkv.shape[1], ROWS),
        "AT_A_TIME": AT_A_TIME,
        "AHEAD": AHEAD,
        "WIDTH": qkv.shape[-1] // (3 * heads),
        "NORM": q_weight is not None,
        "TURN": turn is not None,
        "num_warps": WARPS,
    }


def _given(qkv: Tensor, *others: Tensor | None) -> list[Tensor]:
    """Where there is none, a kernel gets something that it does not read."""
    return [qkv, *(qkv if one is None else one for one in others)]


@torch.library.custom_op("vitrail::turned_attention", mutates_args=())
def turned_attention(
    qkv: Tensor,  # (batch, tokens, 3 * heads * width), contiguous, bfloat16 or float16; width 32 or 64
    q_weight: Tensor | None,  # of the RMS norms, (width,) in float32; None: there are none
    k_weight: Tensor | None,
    turn: Tensor | None,  # RoPE: (2, 1 or batch, 1, tokens, width / 2) in float32
    heads: int,
    scale: float,  # above 0
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `mid_attention`, and the projections as they were multiplied."""
    ready = torch.empty_like(qkv)
    settings = _settings(qkv, q_weight, turn, heads)
    grid = (qkv.shape[0] * settings["BLOCKS"] * heads,)
    rest = qkv.shape[1], heads, *_strides(turn), eps
    _make_ready[grid](*_given(qkv, q_weight, k_weight, turn), ready, *rest, **settings)
    return *mid_attention(ready, heads, scale), ready


@turned_attention.register_fake
def _(qkv: Tensor, q_weight: Any, k_weight: Any, turn: Any, heads: int, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, tokens, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    lse = qkv.new_empty(batch, heads, tokens, dtype=torch.float32)
    return qkv.new_empty(batch, tokens, inner), lse, torch.empty_like(qkv)


@torch.library.custom_op("vitrail::turned_attention_backward", mutates_args=())
def turned_attention_backward(
    gradient: Tensor,  # (batch, tokens, heads * width), contiguous, of the same kind as qkv
    qkv: Tensor,
    ready: Tensor,
    out: Tensor,
    lse: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    turn: Tensor | None,
    heads: int,
    scale: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Packed gradients of the projections; of both norms' weights by program, (2, programs, width); and sums of the
    first by groups of tokens, (groups, columns) in float32."""
    result, sums, _ = mid_attention_backward(gradient, ready, out, lse, heads, scale)
    norms = _empty_norms(qkv, q_weight, heads)
    rest = qkv.shape[1], heads, *_strides(turn), eps
    settings = _settings(qkv, q_weight, turn, heads)
    given = _given(qkv, q_weight, k_weight, turn)
    _take_back[(len(sums) * heads,)](*given, result, *norms, sums, *rest, **settings)
    return result, norms, sums


def _empty_norms(qkv: Tensor, q_weight: Tensor | None, heads: int) -> Tensor:
    programs = qkv.shape[0] * triton.cdiv(qkv.shape[1], ROWS) * heads if q_weight is not None else 0
    return qkv.new_empty(2, programs, qkv.shape[-1] // (3 * heads), dtype=torch.float32)


@turned_attention_backward.register_fake
def _(
    gradient: Tensor, qkv: Tensor, ready: Any, out: Any, lse: Any, q_weight: Any, k_weight: Any, turn: Any, heads: int,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    groups = qkv.shape[0] * triton.cdiv(qkv.shape[1], ROWS)
    sums = qkv.new_empty(groups, qkv.shape[2], dtype=torch.float32)
    return torch.empty_like(qkv), _empty_norms(qkv, q_weight, heads), sums
