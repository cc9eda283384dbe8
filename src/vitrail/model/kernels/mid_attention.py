"""Attention over some hundred tokens on packed projections, and its way back into packed gradients.

The usual kernels take queries, keys and values apart, so that their gradients are put together again in one more pass
over memory, and added up for the bias in yet another. Here tiles of one head are read where the linear map wrote them,
gradients are written where it wants them, and their sums over tokens leave with them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from vitrail.model.kernels.mid_back import to_keys, to_queries
from vitrail.model.kernels.mid_kernels import forward
from vitrail.model.kernels.ready import strides

ROWS, COLUMNS = 64, 32  # tokens a program holds; those it passes by at a time
SHORT = 16  # tokens the last program of a head holds on the way back, if no more are left
WARPS = 4


def _tiles(settings: dict[str, Any], *wanted: tuple[Tensor | None, int]) -> list[TensorDescriptor | None]:
    """Of each tensor tiles of so many tokens; then those of the channels beyond a power of two, if there are any."""
    return [
        TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, rows, width])
        if tensor is not None and width
        else None
        for width in (settings["WIDTH"], settings["MORE"])
        for tensor, rows in wanted
    ]


def _values_apart(qk: Tensor, qkv: Tensor) -> Tensor | None:
    """Where values are, if not beside the queries and keys: a descriptor more takes a CPU longer to start a kernel."""
    return None if qk is qkv else qkv


def _settings(tokens: int, width: int) -> dict[str, Any]:
    blocks, steps = triton.cdiv(tokens, ROWS), triton.cdiv(tokens, COLUMNS)
    whole = 1 << (width.bit_length() - 1)  # the largest power of two
    sizes = {"ROWS": ROWS, "BLOCKS": blocks, "COLUMNS": COLUMNS, "STEPS": steps, "WIDTH": whole, "MORE": width - whole}
    return sizes | {"num_warps": WARPS, "num_stages": 3}


def _short(tokens: int, blocks: int) -> int:
    """How many tokens the last program of a head holds on the way back. The way there gains nothing by holding few."""
    return SHORT if blocks > 1 and tokens - (blocks - 1) * ROWS <= SHORT else ROWS


def _attend(
    qk: Tensor, qkv: Tensor, out: Tensor, lse: Tensor | None, out_scale: Tensor | None, heads: int, scale: float
) -> None:
    """`qk`: queries and keys as they are multiplied, packed as in `qkv`, which has the values."""
    batch, tokens, inner = out.shape
    settings = _settings(tokens, inner // heads)
    tiles = _tiles(settings, (qk, ROWS), (qk, COLUMNS), (_values_apart(qk, qkv), COLUMNS), (out, ROWS))
    forward[(batch * heads * settings["BLOCKS"],)](*tiles, lse, out_scale, tokens, heads, scale, **settings)


def attend(qk: Tensor, qkv: Tensor, heads: int, scale: float) -> tuple[Tensor, Tensor]:
    """See `mid_attention`."""
    out, lse = empty_results(qkv, heads)
    _attend(qk, qkv, out, lse, None, heads, scale)
    return out, lse


def empty_results(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    batch, tokens, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    return qkv.new_empty(batch, tokens, inner), qkv.new_empty(batch, heads, tokens, dtype=torch.float32)


@torch.library.custom_op("vitrail::mid_attention", mutates_args=())
def mid_attention(
    qkv: Tensor,  # (batch, tokens, 3 * heads * width), contiguous, bfloat16 or float16; width 32, 64 or 80
    heads: int,
    scale: float,  # above 0
) -> tuple[Tensor, Tensor]:
    """(batch, tokens, heads * width), and the logarithms of the sums of exponentials: (batch, heads, tokens)."""
    return attend(qkv, qkv, heads, scale)


@mid_attention.register_fake
def _(qkv: Tensor, heads: int, scale: float) -> tuple[Tensor, Tensor]:
    return empty_results(qkv, heads)


@torch.library.custom_op("vitrail::mid_attention_in_eight_bits", mutates_args=())
def mid_attention_in_eight_bits(qkv: Tensor, heads: int, scale: float, out_scale: Tensor) -> Tensor:
    """The result alone, over `out_scale`, in e4m3; what is too large becomes the largest number there is."""
    out = qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3, dtype=torch.float8_e4m3fn)
    _attend(qkv, qkv, out, None, out_scale, heads, scale)
    return out


@mid_attention_in_eight_bits.register_fake
def _(qkv: Tensor, heads: int, scale: float, out_scale: Tensor) -> Tensor:
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3, dtype=torch.float8_e4m3fn)


@torch.library.custom_op("vitrail::mid_attention_backward", mutates_args=())
def mid_attention_backward(
    gradient: Tensor,  # (batch, tokens, heads * width), contiguous, of the same kind as qkv
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    heads: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Packed gradients of the projections, what they add up to by groups of tokens, (groups, columns) in float32, and
    the largest of each program."""
    result, sums, largest, _ = attend_back(gradient, qkv, qkv, out, lse, heads, scale, Before())
    return result, sums, largest


@mid_attention_backward.register_fake
def _(
    gradient: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return empty_gradients(qkv, heads)


class Before(NamedTuple):
    """What becomes of queries and keys before they are multiplied."""

    q_weight: Tensor | None = None  # of RMS norms, (width,) in float32; None: there are none
    k_weight: Tensor | None = None
    turn: Tensor | None = None  # RoPE: (2, 1 or batch, 1, tokens, width / 2) in float32
    eps: float = 0.0


def attend_back(
    gradient: Tensor, qk: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, heads: int, scale: float, before: Before
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `mid_attention_backward`; and of both norms' weights, by program: (2, programs, width)."""
    batch, tokens, inner = out.shape
    result, sums, largest = empty_gradients(qkv, heads)
    norms = empty_norms(qkv, before.q_weight, heads)
    settings = _settings(tokens, inner // heads)
    grid = (batch * heads * settings["BLOCKS"],)
    short = _short(tokens, settings["BLOCKS"])
    settings |= {"SHORT": short, "BESIDE": qk.shape[2] // inner}
    settings |= {"NORM": before.q_weight is not None, "TURN": before.turn is not None}
    pairs = lse.new_empty(grid[0] * ROWS, 2)
    numbers = tokens, heads, scale, *strides(before.turn), before.eps
    tiles = _tiles(settings, (qk, ROWS), (qk, COLUMNS), (_values_apart(qk, qkv), COLUMNS), (result, ROWS))
    rest = pairs, sums, largest, qkv, *((qk, result) if short < ROWS else (None, None))
    ahead = before.q_weight, before.turn, norms[0]
    to_queries[grid](gradient, out, *tiles, lse, *rest, *ahead, *numbers, **settings)
    tiles = _tiles(settings, (qk, ROWS), (qk, COLUMNS), (gradient, COLUMNS), (result, ROWS))
    ahead = before.k_weight, before.turn, norms[1]
    to_keys[grid](*tiles, *rest, *ahead, *numbers, **settings, TIMES=32 * WARPS // (2 * COLUMNS))
    return result, sums, largest, norms


def empty_gradients(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    groups = qkv.shape[0] * triton.cdiv(qkv.shape[1], ROWS)
    sums, largest = (qkv.new_empty(size, dtype=torch.float32) for size in ((groups, qkv.shape[2]), (2, groups * heads)))
    return torch.empty_like(qkv), sums, largest


def empty_norms(qkv: Tensor, q_weight: Tensor | None, heads: int) -> Tensor:
    programs = qkv.shape[0] * triton.cdiv(qkv.shape[1], ROWS) * heads if q_weight is not None else 0
    return qkv.new_empty(2, programs, qkv.shape[-1] // (3 * heads), dtype=torch.float32)
