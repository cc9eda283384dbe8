"""The kernel of `mid_attention`, and what it shares with those of the way back (`mid_back`).

Tiles come and go by descriptors: beyond the last token zeros are read, and nothing is written.

Tiles have powers of two as sides. A head of 80 channels, such as H/14's, is one of 64 and 16 more, which have tiles,
products and sums of their own: no product is of padding.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
LARGEST: tl.constexpr = tl.constexpr(448.0)  # of eight bits, e4m3


@triton.jit
def box(descriptor, batch, row, column, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """(rows, width) of (batch, tokens, columns)."""
    return descriptor.load([batch, row, column]).reshape(ROWS, WIDTH)


@triton.jit
def put_box(descriptor, batch, row, column, tile, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    descriptor.store([batch, row, column], tile.to(descriptor.dtype).reshape(1, ROWS, WIDTH))


@triton.jit
def who(heads, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whom this program works for: head among all pictures', picture, first column of the head, block of tokens."""
    program = tl.program_id(0)
    one = program // BLOCKS
    return one, one // heads, (one % heads) * WIDTH, program % BLOCKS


@triton.jit
def _given_out(mixed, total, out_scale):  # type: ignore[no-untyped-def]
    mixed *= (1 / total)[:, None]
    if out_scale is not None:
        mixed = tl.clamp(mixed * (1 / tl.load(out_scale)), -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return mixed


@triton.jit
def forward(  # type: ignore[no-untyped-def]
    qk_rows, qk_columns, v_columns, out_rows, qk_rows_more, qk_columns_more, v_columns_more, out_rows_more,
    lse, out_scale, tokens, heads, scale,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
    WIDTH: tl.constexpr, MORE: tl.constexpr,
):  # fmt: skip
    """Results of a block of queries, over `out_scale` where there is one; the softmax is corrected as larger products
    turn up."""
    one, batch, head, block = who(heads, BLOCKS, WIDTH + MORE)
    inner = heads * (WIDTH + MORE)
    first = block * ROWS
    factor = scale * LOG2E
    if v_columns is None:
        v_columns, v_columns_more = qk_columns, qk_columns_more
    q = box(qk_rows, batch, first, head, ROWS, WIDTH)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDTH), tl.float32)
    if MORE:
        q_more = box(qk_rows_more, batch, first, head + WIDTH, ROWS, MORE)
        mixed_more = tl.zeros((ROWS, MORE), tl.float32)
    for step in tl.range(0, STEPS):
        start = step * COLUMNS
        k = box(qk_columns, batch, start, inner + head, COLUMNS, WIDTH)
        v = box(v_columns, batch, start, 2 * inner + head, COLUMNS, WIDTH)
        if MORE:  # all tiles are asked for before the first product
            k_more = box(qk_columns_more, batch, start, inner + head + WIDTH, COLUMNS, MORE)
            v_more = box(v_columns_more, batch, start, 2 * inner + head + WIDTH, COLUMNS, MORE)
        products = tl.dot(q, tl.trans(k))
        if MORE:
            products = tl.dot(q_more, tl.trans(k_more), products)
        products = tl.where((start + tl.arange(0, COLUMNS) < tokens)[None, :], products, float("-inf"))
        now = tl.maximum(best, tl.max(products, 1))
        weights = tl.exp2(products * factor - (now * factor)[:, None])
        less = tl.exp2((best - now) * factor)
        total = total * less + tl.sum(weights, 1)
        weights = weights.to(v.dtype)
        mixed = tl.dot(weights, v, mixed * less[:, None])
        if MORE:
            mixed_more = tl.dot(weights, v_more, mixed_more * less[:, None])
        best = now
    put_box(out_rows, batch, first, head, _given_out(mixed, total, out_scale), ROWS, WIDTH)
    if MORE:
        put_box(out_rows_more, batch, first, head + WIDTH, _given_out(mixed_more, total, out_scale), ROWS, MORE)
    if lse is not None:
        rows = first + tl.arange(0, ROWS)
        tl.store(lse + one * tokens + rows, best * scale + tl.log2(total) * LN2, mask=rows < tokens)
