"""Attention over some hundred tokens on packed projections, and its way back into packed gradients.

The usual kernels take queries, keys and values apart, so that their gradients are put together again in one more pass
over memory, and added up for the bias in yet another. Here tiles of one head are read where the linear map wrote them,
gradients are written where it wants them, and their sums over tokens leave with them. Each side of the way back has
its kernel: one holds queries and passes by all keys, one holds keys and passes by all queries, so nothing is added up
between programs. What remains of the tokens after whole steps, often a class token and little more, is a small tile of
its own, and it alone asks where they end: beyond the last token zeros are read, and nothing is written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 64  # tokens a program holds
WARPS = 4
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
LARGEST: tl.constexpr = tl.constexpr(448.0)  # of eight bits, e4m3


class Steps(NamedTuple):
    """How a kernel passes by tokens."""

    columns: int  # at a time
    stages: int  # of them on their way
    registers: int  # of a thread at most, so that four or three programs share a multiprocessor


FORWARD, TO_QUERIES, TO_KEYS = Steps(64, 2, 128), Steps(64, 2, 128), Steps(32, 3, 168)


@triton.jit
def _place(tensor, batch, row, column, tokens, columns, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where a tile of (batch, tokens, columns) lies, and which of its rows there are."""
    rows = row + tl.arange(0, ROWS)
    start = tensor + batch.to(tl.int64) * tokens * columns + column
    return start + rows[:, None] * columns + tl.arange(0, WIDTH)[None, :], (rows < tokens)[:, None]


@triton.jit
def _whole(tensor, batch, row, column, tokens, columns, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile all of whose rows there are."""
    return tl.load(_place(tensor, batch, row, column, tokens, columns, ROWS, WIDTH)[0])


@triton.jit
def _fetch(tensor, batch, row, column, tokens, columns, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    place, there = _place(tensor, batch, row, column, tokens, columns, ROWS, WIDTH)
    return tl.load(place, mask=there, other=0.0)


@triton.jit
def _put(tensor, batch, row, column, tokens, columns, tile, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    place, there = _place(tensor, batch, row, column, tokens, columns, ROWS, WIDTH)
    tl.store(place, tile.to(tensor.dtype.element_ty), mask=there)


@triton.jit
def _who(heads, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whom this program works for: head among all pictures', picture, first column of the head, block of tokens."""
    program = tl.program_id(0)
    one = program // BLOCKS
    return one, one // heads, (one % heads) * WIDTH, program % BLOCKS


@triton.jit
def _mix(products, v, best, total, mixed, factor):  # type: ignore[no-untyped-def]
    """Some more values; what was mixed before is corrected where larger products turn up."""
    now = tl.maximum(best, tl.max(products, 1))
    weights = tl.exp2(products * factor - (now * factor)[:, None])
    less = tl.exp2((best - now) * factor)
    total = total * less + tl.sum(weights, 1)
    return now, total, tl.dot(weights.to(v.dtype), v, mixed * less[:, None])


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv, out, lse, out_scale, tokens, heads, scale,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, REST: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Results of a block of queries, over `out_scale` where there is one."""
    one, batch, head, block = _who(heads, BLOCKS, WIDTH)
    inner = heads * WIDTH
    first = block * ROWS
    last: tl.constexpr = STEPS * COLUMNS
    factor = scale * LOG2E
    q = _fetch(qkv, batch, first, head, tokens, 3 * inner, ROWS, WIDTH)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDTH), tl.float32)
    for step in tl.range(0, STEPS):
        k = _whole(qkv, batch, step * COLUMNS, inner + head, tokens, 3 * inner, COLUMNS, WIDTH)
        v = _whole(qkv, batch, step * COLUMNS, 2 * inner + head, tokens, 3 * inner, COLUMNS, WIDTH)
        best, total, mixed = _mix(tl.dot(q, tl.trans(k)), v, best, total, mixed, factor)
    if REST > 0:
        k = _fetch(qkv, batch, last, inner + head, tokens, 3 * inner, REST, WIDTH)
        v = _fetch(qkv, batch, last, 2 * inner + head, tokens, 3 * inner, REST, WIDTH)
        there = (last + tl.arange(0, REST) < tokens)[None, :]
        products = tl.where(there, tl.dot(q, tl.trans(k)), float("-inf"))
        best, total, mixed = _mix(products, v, best, total, mixed, factor)
    mixed *= (1 / total)[:, None]
    if lse is not None:
        rows = first + tl.arange(0, ROWS)
        tl.store(lse + one * tokens + rows, best * scale + tl.log2(total) * LN2, mask=rows < tokens)
    if out_scale is not None:
        mixed = tl.clamp(mixed * (1 / tl.load(out_scale)), -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    _put(out, batch, first, head, tokens, inner, mixed, ROWS, WIDTH)


@triton.jit
def _add_queries(dq, q, k, g, v, low, mean, factor, there):  # type: ignore[no-untyped-def]
    """What some keys give to the gradients of queries."""
    products = tl.dot(q, tl.trans(k))
    to_weights = tl.dot(g, tl.trans(v))
    weights = tl.exp2(products * factor - low[:, None])
    if there is not None:
        weights = tl.where(there, weights, 0.0)
    return tl.dot((weights * (to_weights - mean[:, None])).to(k.dtype), k, dq)


@triton.jit
def _to_queries(  # type: ignore[no-untyped-def]
    gradient, out, qkv, result, lse, pairs, sums, largest, tokens, heads, scale,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, REST: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries, and for the keys' side the two numbers it wants of each query."""
    one, batch, head, block = _who(heads, BLOCKS, WIDTH)
    inner = heads * WIDTH
    first = block * ROWS
    last: tl.constexpr = STEPS * COLUMNS
    rows = first + tl.arange(0, ROWS)
    low = tl.load(lse + one * tokens + rows, mask=rows < tokens, other=float("inf"))  # weights beyond the tokens are 0
    o = _fetch(out, batch, first, head, tokens, inner, ROWS, WIDTH)
    g = _fetch(gradient, batch, first, head, tokens, inner, ROWS, WIDTH)
    q = _fetch(qkv, batch, first, head, tokens, 3 * inner, ROWS, WIDTH)
    mean = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    pairs += 2 * (one * BLOCKS * ROWS + rows[:, None]) + tl.arange(0, 2)[None, :]
    tl.store(pairs, tl.join(-low / scale, -mean))
    low *= LOG2E
    factor = scale * LOG2E
    dq = tl.zeros((ROWS, WIDTH), tl.float32)
    for step in tl.range(0, STEPS):
        k = _whole(qkv, batch, step * COLUMNS, inner + head, tokens, 3 * inner, COLUMNS, WIDTH)
        v = _whole(qkv, batch, step * COLUMNS, 2 * inner + head, tokens, 3 * inner, COLUMNS, WIDTH)
        dq = _add_queries(dq, q, k, g, v, low, mean, factor, None)
    if REST > 0:
        k = _fetch(qkv, batch, last, inner + head, tokens, 3 * inner, REST, WIDTH)
        v = _fetch(qkv, batch, last, 2 * inner + head, tokens, 3 * inner, REST, WIDTH)
        dq = _add_queries(dq, q, k, g, v, low, mean, factor, (last + tl.arange(0, REST) < tokens)[None, :])
    dq *= scale
    _put(result, batch, first, head, tokens, 3 * inner, dq, ROWS, WIDTH)
    tl.store(sums + (batch * BLOCKS + block) * 3 * inner + head + tl.arange(0, WIDTH), tl.sum(dq, 0))
    tl.store(largest + tl.program_id(0), tl.max(tl.abs(dq)))


@triton.jit
def _pairs(pairs, row, COLUMNS: tl.constexpr, THREADS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The two numbers of some queries, read so often that every thread gets one: of less, each would read all."""
    times: tl.constexpr = THREADS // (2 * COLUMNS)
    place = 2 * (row + tl.arange(0, COLUMNS)[:, None]) + tl.arange(0, 2 * times)[None, :] % 2
    return tl.load(pairs + place)


@triton.jit
def _add_keys(dk, dv, both, k, v, q, g, factor, ROWS: tl.constexpr, COLUMNS: tl.constexpr, THREADS: tl.constexpr):  # type: ignore[no-untyped-def]
    """What some queries give to the gradients of keys and values. Products lie the other way round: (keys, queries)."""
    low, mean = tl.split(tl.max(tl.reshape(both, (COLUMNS, THREADS // (2 * COLUMNS), 2)), 1))
    # what is to be taken off is what the products start from: it takes no registers of its own
    products = tl.dot(k, tl.trans(q), tl.broadcast_to(low[None, :], (ROWS, COLUMNS)))
    to_weights = tl.dot(v, tl.trans(g), tl.broadcast_to(mean[None, :], (ROWS, COLUMNS)))
    weights = tl.exp2(products * factor)
    dv = tl.dot(weights.to(q.dtype), g, dv)
    return tl.dot((weights * to_weights).to(q.dtype), q, dk), dv


@triton.jit
def _to_keys(  # type: ignore[no-untyped-def]
    qkv, gradient, result, pairs, sums, largest, tokens, heads, scale,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, REST: tl.constexpr,
    WIDTH: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values."""
    one, batch, head, block = _who(heads, BLOCKS, WIDTH)
    inner = heads * WIDTH
    first = block * ROWS
    last: tl.constexpr = STEPS * COLUMNS
    factor = scale * LOG2E
    v = _fetch(qkv, batch, first, 2 * inner + head, tokens, 3 * inner, ROWS, WIDTH)
    k = _fetch(qkv, batch, first, inner + head, tokens, 3 * inner, ROWS, WIDTH)
    dk = tl.zeros((ROWS, WIDTH), tl.float32)
    dv = tl.zeros((ROWS, WIDTH), tl.float32)
    pairs += 2 * one * BLOCKS * ROWS
    both = _pairs(pairs, 0, COLUMNS, THREADS)
    for step in tl.range(0, STEPS):
        q = _whole(qkv, batch, step * COLUMNS, head, tokens, 3 * inner, COLUMNS, WIDTH)
        g = _whole(gradient, batch, step * COLUMNS, head, tokens, inner, COLUMNS, WIDTH)
        now = both
        both = _pairs(
            pairs, tl.minimum(step + 1, STEPS - 1) * COLUMNS, COLUMNS, THREADS
        )  # early: the next need not wait
        dk, dv = _add_keys(dk, dv, now, k, v, q, g, factor, ROWS, COLUMNS, THREADS)
    if REST > 0:
        q = _fetch(qkv, batch, last, head, tokens, 3 * inner, REST, WIDTH)
        g = _fetch(gradient, batch, last, head, tokens, inner, REST, WIDTH)
        both = _pairs(pairs, last, REST, THREADS)
        dk, dv = _add_keys(dk, dv, both, k, v, q, g, factor, ROWS, REST, THREADS)
    seen = (first + tl.arange(0, ROWS) < tokens)[:, None]
    dk = tl.where(seen, dk * scale, 0.0)
    dv = tl.where(seen, dv, 0.0)
    _put(result, batch, first, inner + head, tokens, 3 * inner, dk, ROWS, WIDTH)
    _put(result, batch, first, 2 * inner + head, tokens, 3 * inner, dv, ROWS, WIDTH)
    sums += (batch * BLOCKS + block) * 3 * inner + head + tl.arange(0, WIDTH)
    tl.store(sums + inner, tl.sum(dk, 0))
    tl.store(sums + 2 * inner, tl.sum(dv, 0))
    tl.store(largest + tl.num_programs(0) + tl.program_id(0), tl.max(tl.maximum(tl.abs(dk), tl.abs(dv))))


def _settings(tokens: int, width: int, by: Steps) -> dict[str, Any]:
    steps, rest = divmod(tokens, by.columns)
    rest = max(16, triton.next_power_of_2(rest)) if rest else 0
    sizes = {"ROWS": ROWS, "BLOCKS": triton.cdiv(tokens, ROWS), "WIDTH": width}
    passing = {"COLUMNS": by.columns, "STEPS": steps, "REST": rest}
    return sizes | passing | {"num_warps": WARPS, "num_stages": by.stages, "maxnreg": by.registers}


def _attend(qkv: Tensor, out: Tensor, lse: Tensor | None, out_scale: Tensor | None, heads: int, scale: float) -> None:
    batch, tokens, inner = out.shape
    settings = _settings(tokens, inner // heads, FORWARD)
    _forward[(batch * heads * settings["BLOCKS"],)](qkv, out, lse, out_scale, tokens, heads, scale, **settings)


@torch.library.custom_op("vitrail::mid_attention", mutates_args=())
def mid_attention(
    qkv: Tensor,  # (batch, tokens, 3 * heads * width), contiguous, bfloat16 or float16; width 32 or 64
    heads: int,
    scale: float,  # above 0
) -> tuple[Tensor, Tensor]:
    """(batch, tokens, heads * width), and the logarithms of the sums of exponentials: (batch, heads, tokens)."""
    batch, tokens, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out = qkv.new_empty(batch, tokens, inner)
    lse = qkv.new_empty(batch, heads, tokens, dtype=torch.float32)
    _attend(qkv, out, lse, None, heads, scale)
    return out, lse


@mid_attention.register_fake
def _(qkv: Tensor, heads: int, scale: float) -> tuple[Tensor, Tensor]:
    batch, tokens, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    return qkv.new_empty(batch, tokens, inner), qkv.new_empty(batch, heads, tokens, dtype=torch.float32)


@torch.library.custom_op("vitrail::mid_attention_in_eight_bits", mutates_args=())
def mid_attention_in_eight_bits(qkv: Tensor, heads: int, scale: float, out_scale: Tensor) -> Tensor:
    """The result alone, over `out_scale`, in e4m3; what is too large becomes the largest number there is."""
    out = qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3, dtype=torch.float8_e4m3fn)
    _attend(qkv, out, None, out_scale, heads, scale)
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
    batch, tokens, inner = out.shape
    width = inner // heads
    result, sums, largest = _empty_gradients(qkv, heads)
    grid = (batch * heads * triton.cdiv(tokens, ROWS),)
    pairs = lse.new_empty(grid[0] * ROWS, 2)
    queries_side, keys_side = _settings(tokens, width, TO_QUERIES), _settings(tokens, width, TO_KEYS)
    _to_queries[grid](gradient, out, qkv, result, lse, pairs, sums, largest, tokens, heads, scale, **queries_side)
    keys_side["THREADS"] = 32 * WARPS
    _to_keys[grid](qkv, gradient, result, pairs, sums, largest, tokens, heads, scale, **keys_side)
    return result, sums, largest


def _empty_gradients(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    groups = qkv.shape[0] * (-(-qkv.shape[1] // ROWS))
    sums, largest = (qkv.new_empty(size, dtype=torch.float32) for size in ((groups, qkv.shape[2]), (2, groups * heads)))
    return torch.empty_like(qkv), sums, largest


@mid_attention_backward.register_fake
def _(
    gradient: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_gradients(qkv, heads)
