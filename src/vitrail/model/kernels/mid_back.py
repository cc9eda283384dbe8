"""The kernels of the way back of `mid_attention`.

Each side has its own: one holds queries and passes by all keys, one holds keys and passes by all queries, so nothing is
added up between programs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vitrail.model.kernels.mid_kernels import LOG2E, box, put_box, who
from vitrail.model.kernels.ready import angles, before_ready, tile


@triton.jit
def _fetch(place, batch, row, column, tokens, columns, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile by plain loads, which need not arrive before the next is asked for."""
    rows = row + tl.arange(0, ROWS)
    place += batch.to(tl.int64) * tokens * columns + column
    tile = place + rows[:, None] * columns + tl.arange(0, WIDTH)[None, :]
    return tl.load(tile, mask=(rows < tokens)[:, None], other=0.0)


@triton.jit
def _unready(  # type: ignore[no-untyped-def]
    gradient, qkv, column, weight, turn, norm_sums, batch, rows, tokens, inner, apart, between, eps,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Gradients of queries or keys before their norm and rotation; what they add up to for the norm's weight is put
    by."""
    seen = rows < tokens
    cos, sin = angles(turn, batch, rows, seen, apart, between, WIDTH, TURN)
    x = tile(qkv + batch.to(tl.int64) * tokens * 3 * inner + column, rows, 3 * inner, seen, WIDTH)
    gradient, to_weight = before_ready(gradient, x, weight, eps, cos, sin, ROWS, WIDTH, NORM, TURN)
    if NORM:
        tl.store(norm_sums + tl.program_id(0) * WIDTH + tl.arange(0, WIDTH), tl.sum(to_weight, 0))
    return gradient


@triton.jit
def to_queries(  # type: ignore[no-untyped-def]
    gradient, out, qk_rows, qk_columns, v_columns, result_rows,
    qk_rows_more, qk_columns_more, v_columns_more, result_rows_more,
    lse, pairs, sums, largest, qkv, weight, turn, norm_sums, tokens, heads, scale, apart, between, eps,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
    WIDTH: tl.constexpr, MORE: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries, and for the keys' side the two numbers it wants of each query."""
    one, batch, head, block = who(heads, BLOCKS, WIDTH + MORE)
    inner = heads * (WIDTH + MORE)
    first = block * ROWS
    if v_columns is None:
        v_columns, v_columns_more = qk_columns, qk_columns_more
    rows = first + tl.arange(0, ROWS)
    low = tl.load(lse + one * tokens + rows, mask=rows < tokens, other=float("inf"))  # weights beyond the tokens are 0
    o = _fetch(out, batch, first, head, tokens, inner, ROWS, WIDTH)
    g = _fetch(gradient, batch, first, head, tokens, inner, ROWS, WIDTH)
    q = box(qk_rows, batch, first, head, ROWS, WIDTH)
    mean = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    if MORE:
        o_more = _fetch(out, batch, first, head + WIDTH, tokens, inner, ROWS, MORE)
        g_more = _fetch(gradient, batch, first, head + WIDTH, tokens, inner, ROWS, MORE)
        q_more = box(qk_rows_more, batch, first, head + WIDTH, ROWS, MORE)
        mean += tl.sum(g_more.to(tl.float32) * o_more.to(tl.float32), 1)
        dq_more = tl.zeros((ROWS, MORE), tl.float32)
    pairs += 2 * (one * BLOCKS * ROWS + rows[:, None]) + tl.arange(0, 2)[None, :]
    tl.store(pairs, tl.join(-low / scale, -mean))
    low *= LOG2E
    dq = tl.zeros((ROWS, WIDTH), tl.float32)
    for step in tl.range(0, STEPS):
        start = step * COLUMNS
        k = box(qk_columns, batch, start, inner + head, COLUMNS, WIDTH)
        v = box(v_columns, batch, start, 2 * inner + head, COLUMNS, WIDTH)
        if MORE:
            k_more = box(qk_columns_more, batch, start, inner + head + WIDTH, COLUMNS, MORE)
            v_more = box(v_columns_more, batch, start, 2 * inner + head + WIDTH, COLUMNS, MORE)
        products = tl.dot(q, tl.trans(k))
        to_weights = tl.dot(g, tl.trans(v))
        if MORE:
            products = tl.dot(q_more, tl.trans(k_more), products)
            to_weights = tl.dot(g_more, tl.trans(v_more), to_weights)
        weights = tl.exp2(products * (scale * LOG2E) - low[:, None])
        weights = tl.where((start + tl.arange(0, COLUMNS) < tokens)[None, :], weights, 0.0)
        to_products = (weights * (to_weights - mean[:, None])).to(k.dtype)
        dq = tl.dot(to_products, k, dq)
        if MORE:
            dq_more = tl.dot(to_products, k_more, dq_more)
    dq *= scale
    if NORM or TURN:
        dq = _unready(
            dq, qkv, head, weight, turn, norm_sums, batch, rows, tokens, inner, apart, between, eps,
            ROWS, WIDTH, NORM, TURN,
        )  # fmt: skip
    put_box(result_rows, batch, first, head, dq, ROWS, WIDTH)
    sums += (batch * BLOCKS + block) * 3 * inner + head
    tl.store(sums + tl.arange(0, WIDTH), tl.sum(dq, 0))
    most = tl.max(tl.abs(dq))
    if MORE:
        dq_more *= scale
        put_box(result_rows_more, batch, first, head + WIDTH, dq_more, ROWS, MORE)
        tl.store(sums + WIDTH + tl.arange(0, MORE), tl.sum(dq_more, 0))
        most = tl.maximum(most, tl.max(tl.abs(dq_more)))
    tl.store(largest + tl.program_id(0), most)


@triton.jit
def _apart(both, COLUMNS: tl.constexpr, TIMES: tl.constexpr):  # type: ignore[no-untyped-def]
    if TIMES > 1:
        both = tl.max(tl.reshape(both, (COLUMNS, TIMES, 2)), 1)
    return tl.split(both)


@triton.jit
def to_keys(  # type: ignore[no-untyped-def]
    qk_rows, qk_columns, gradient_columns, result_rows,
    qk_rows_more, qk_columns_more, gradient_columns_more, result_rows_more,
    pairs, sums, largest, qkv, weight, turn, norm_sums, tokens, heads, scale, apart, between, eps,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
    WIDTH: tl.constexpr, MORE: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values. Products lie the other way round: (keys, queries)."""
    one, batch, head, block = who(heads, BLOCKS, WIDTH + MORE)
    inner = heads * (WIDTH + MORE)
    first = block * ROWS
    v = _fetch(qkv, batch, first, 2 * inner + head, tokens, 3 * inner, ROWS, WIDTH)
    k = box(qk_rows, batch, first, inner + head, ROWS, WIDTH)
    dk = tl.zeros((ROWS, WIDTH), tl.float32)
    dv = tl.zeros((ROWS, WIDTH), tl.float32)
    if MORE:
        v_more = _fetch(qkv, batch, first, 2 * inner + head + WIDTH, tokens, 3 * inner, ROWS, MORE)
        k_more = box(qk_rows_more, batch, first, inner + head + WIDTH, ROWS, MORE)
        dk_more = tl.zeros((ROWS, MORE), tl.float32)
        dv_more = tl.zeros((ROWS, MORE), tl.float32)
    # each pair is read so often that every thread gets one number: what is smaller, each thread would read as a whole
    pairs += 2 * (one * BLOCKS * ROWS + tl.arange(0, COLUMNS)[:, None]) + tl.arange(0, 2 * TIMES)[None, :] % 2
    both = tl.load(pairs)
    for step in tl.range(0, STEPS):
        start = step * COLUMNS
        q = box(qk_columns, batch, start, head, COLUMNS, WIDTH)
        g = box(gradient_columns, batch, start, head, COLUMNS, WIDTH)
        if MORE:
            q_more = box(qk_columns_more, batch, start, head + WIDTH, COLUMNS, MORE)
            g_more = box(gradient_columns_more, batch, start, head + WIDTH, COLUMNS, MORE)
        low, mean = _apart(both, COLUMNS, TIMES)
        following = tl.minimum(step + 1, STEPS - 1)  # asked for early, so that the next step need not wait
        both = tl.load(pairs + 2 * COLUMNS * following)
        # what is to be taken off is what the products start from: it takes no registers of its own
        products = tl.dot(k, tl.trans(q), tl.broadcast_to(low[None, :], (ROWS, COLUMNS)))
        to_weights = tl.dot(v, tl.trans(g), tl.broadcast_to(mean[None, :], (ROWS, COLUMNS)))
        if MORE:
            products = tl.dot(k_more, tl.trans(q_more), products)
            to_weights = tl.dot(v_more, tl.trans(g_more), to_weights)
        weights = tl.exp2(products * (scale * LOG2E))
        to_products = (weights * to_weights).to(q.dtype)
        weights = weights.to(q.dtype)
        dv = tl.dot(weights, g, dv)
        dk = tl.dot(to_products, q, dk)
        if MORE:
            dv_more = tl.dot(weights, g_more, dv_more)
            dk_more = tl.dot(to_products, q_more, dk_more)
    seen = (first + tl.arange(0, ROWS) < tokens)[:, None]
    dk = tl.where(seen, dk * scale, 0.0)
    dv = tl.where(seen, dv, 0.0)
    if NORM or TURN:
        rows = first + tl.arange(0, ROWS)
        dk = _unready(
            dk, qkv, inner + head, weight, turn, norm_sums, batch, rows, tokens, inner, apart, between, eps,
            ROWS, WIDTH, NORM, TURN,
        )  # fmt: skip
    put_box(result_rows, batch, first, inner + head, dk, ROWS, WIDTH)
    put_box(result_rows, batch, first, 2 * inner + head, dv, ROWS, WIDTH)
    sums += (batch * BLOCKS + block) * 3 * inner + head
    tl.store(sums + inner + tl.arange(0, WIDTH), tl.sum(dk, 0))
    tl.store(sums + 2 * inner + tl.arange(0, WIDTH), tl.sum(dv, 0))
    most = tl.max(tl.maximum(tl.abs(dk), tl.abs(dv)))
    if MORE:
        dk_more = tl.where(seen, dk_more * scale, 0.0)
        dv_more = tl.where(seen, dv_more, 0.0)
        put_box(result_rows_more, batch, first, inner + head + WIDTH, dk_more, ROWS, MORE)
        put_box(result_rows_more, batch, first, 2 * inner + head + WIDTH, dv_more, ROWS, MORE)
        sums += WIDTH + tl.arange(0, MORE)
        tl.store(sums + inner, tl.sum(dk_more, 0))
        tl.store(sums + 2 * inner, tl.sum(dv_more, 0))
        most = tl.maximum(most, tl.max(tl.maximum(tl.abs(dk_more), tl.abs(dv_more))))
    tl.store(largest + tl.num_programs(0) + tl.program_id(0), most)
