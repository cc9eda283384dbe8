"""Attention over some hundred tokens whose queries and keys are normed and turned before they are multiplied.

The kernels of `mid_attention` read tiles of one head many times, so one pass before them writes queries and keys that
are ready to be multiplied; values are read where the linear map wrote them. On the way back each gradient is finished
by the program that has it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitrail.model.kernels.mid_attention import (
    ROWS,
    Before,
    attend,
    attend_back,
    empty_gradients,
    empty_norms,
    empty_results,
)
from vitrail.model.kernels.ready import angles, put, ready, strides, tile

AT_A_TIME, AHEAD, WARPS = 16, 2, 4  # tokens; how many times that are being read


@triton.jit
def _make_ready(  # type: ignore[no-untyped-def]
    qkv, q_weight, k_weight, turn, result, tokens, heads, apart, between, eps,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, AT_A_TIME: tl.constexpr, AHEAD: tl.constexpr,
    WIDTH: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """A block of tokens of one head."""
    program = tl.program_id(0)
    head, batch, block = program % heads, program // heads // BLOCKS, program // heads % BLOCKS
    inner = heads * WIDTH
    qkv += batch.to(tl.int64) * tokens * 3 * inner + head * WIDTH
    result += batch.to(tl.int64) * tokens * 2 * inner + head * WIDTH
    for step in tl.range(ROWS // AT_A_TIME, num_stages=AHEAD):
        rows = block * ROWS + step * AT_A_TIME + tl.arange(0, AT_A_TIME)
        seen = rows < tokens
        cos, sin = angles(turn, batch, rows, seen, apart, between, WIDTH, TURN)
        q = tile(qkv, rows, 3 * inner, seen, WIDTH)
        k = tile(qkv + inner, rows, 3 * inner, seen, WIDTH)
        q = ready(q, q_weight, eps, cos, sin, AT_A_TIME, WIDTH, NORM, TURN)
        k = ready(k, k_weight, eps, cos, sin, AT_A_TIME, WIDTH, NORM, TURN)
        put(result, rows, 2 * inner, seen, q, WIDTH)
        put(result + inner, rows, 2 * inner, seen, k, WIDTH)


def _empty_ready(qkv: Tensor) -> Tensor:
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3 * 2)


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
    """As `mid_attention`, and queries and keys as they were multiplied: (batch, tokens, 2 * heads * width)."""
    made = _empty_ready(qkv)
    blocks = triton.cdiv(qkv.shape[1], ROWS)
    given = (qkv, q_weight, k_weight, turn, made, qkv.shape[1], heads, *strides(turn), eps)
    sizes = ROWS, blocks, AT_A_TIME, AHEAD, qkv.shape[-1] // (3 * heads), q_weight is not None, turn is not None
    _make_ready[(qkv.shape[0] * blocks * heads,)](*given, *sizes, num_warps=WARPS)
    return *attend(made, qkv, heads, scale), made


@turned_attention.register_fake
def _(qkv: Tensor, q_weight: Any, k_weight: Any, turn: Any, heads: int, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return *empty_results(qkv, heads), _empty_ready(qkv)


@torch.library.custom_op("vitrail::turned_attention_backward", mutates_args=())
def turned_attention_backward(
    gradient: Tensor,  # (batch, tokens, heads * width), contiguous, of the same kind as qkv
    qkv: Tensor,
    made: Tensor,  # queries and keys as they were multiplied
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
    before = Before(q_weight, k_weight, turn, eps)
    result, sums, _, norms = attend_back(gradient, made, qkv, out, lse, heads, scale, before)
    return result, norms, sums


@turned_attention_backward.register_fake
def _(
    gradient: Tensor, qkv: Tensor, made: Any, out: Any, lse: Any, q_weight: Any, k_weight: Any, turn: Any, heads: int,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    result, sums, _ = empty_gradients(qkv, heads)
    return result, empty_norms(qkv, q_weight, heads), sums
