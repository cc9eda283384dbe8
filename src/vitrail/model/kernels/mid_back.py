"""The kernels of the way back of `mid_attention`.

Each side has its own: one holds queries and passes by all keys, one holds keys and passes by all queries, so nothing is
added up between programs.

Where few tokens are left for the last program of a head, it holds `SHORT` instead of `ROWS`: of 144, 197 and 257 tokens
16, 5 and 1 are left of those that hold 64, and the rest would be padding.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vitrail.model.kernels.mid_kernels import LOG2E, box, put_box, who
from vitrail.model.kernels.ready import angles, before_ready, put, tile


@triton.jit
def _fetch(place, batch, row, column, tokens, columns, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile by plain loads, which need not arrive before the next is asked for."""
    rows = row + tl.arange(0, ROWS)
    place += batch.to(tl.int64) * tokens * columns + column
    tile = place + rows[:, None] * columns + tl.arange(0, WIDTH)[None, :]
    return tl.load(tile, mask=(rows < tokens)[:, None], other=0.0)


@triton.jit
def _hold(descriptor, place, batch, row, column, tokens, columns, HELD: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """What a program holds; by plain loads where there is a place, as a descriptor's tile has `ROWS` tokens always."""
    if place is None:
        held = box(descriptor, batch, row, column, HELD, WIDTH)
    else:
        held = _fetch(place, batch, row, column, tokens, columns, HELD, WIDTH)
    return held


@triton.jit
def _give(descriptor, place, batch, row, column, value, tokens, inner, HELD: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Gradients of what a program holds, the same way."""
    if place is None:
        put_box(descriptor, batch, row, column, value, HELD, WIDTH)
    else:
        rows = row + tl.arange(0, HELD)
        place += batch.to(tl.int64) * tokens * 3 * inner + column
        put(place, rows, 3 * inner, rows < tokens, value, WIDTH)


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
def _to_queries(  # type: ignore[no-untyped-def]
    gradient, out, qk_rows, qk_columns, v_columns, result_rows,
    qk_rows_more, qk_columns_more, v_columns_more, result_rows_more,
    lse, pairs, sums, largest, qkv, qk, result, weight, turn, norm_sums, tokens, heads, scale, apart, between, eps,
    HELD: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
    WIDTH: tl.constexpr, MORE: tl.constexpr, BESIDE: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries, and for the keys' side the two numbers it wants of each query."""
    one, batch, head, block = who(heads, BLOCKS, WIDTH + MORE)
    inner = heads * (WIDTH + MORE)
    first, across = block * ROWS, BESIDE * inner
    if v_columns is None:
        v_columns, v_columns_more = qk_columns, qk_columns_more
    rows = first + tl.arange(0, HELD)
    low = tl.load(lse + one * tokens + rows, mask=rows < tokens, other=float("inf"))  # weights beyond the tokens are 0
    o = _fetch(out, batch, first, head, tokens, inner, HELD, WIDTH)
    g = _fetch(gradient, batch, first, head, tokens, inner, HELD, WIDTH)
    q = _hold(qk_rows, qk, batch, first, head, tokens, across, HELD, WIDTH)
    mean = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    if MORE:
        o_more = _fetch(out, batch, first, head + WIDTH, tokens, inner, HELD, MORE)
        g_more = _fetch(gradient, batch, first, head + WIDTH, tokens, inner, HELD, MORE)
        q_more = _hold(qk_rows_more, qk, batch, first, head + WIDTH, tokens, across, HELD, MORE)
        mean += tl.sum(g_more.to(tl.float32) * o_more.to(tl.float32), 1)
        dq_more = tl.zeros((HELD, MORE), tl.float32)
    pairs += 2 * (one * BLOCKS * ROWS + rows[:, None]) + tl.arange(0, 2)[None, :]
    tl.store(pairs, tl.join(-low / scale, -mean))
    for after in tl.static_range(HELD, COLUMNS, HELD):  # the keys' side takes whole steps: there are no weights beyond
        none = tl.full((HELD,), float("-inf"), tl.float32)
        tl.store(pairs + 2 * after, tl.join(none, tl.zeros((HELD,), tl.float32)))
    low *= LOG2E
    dq = tl.zeros((HELD, WIDTH), tl.float32)
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
        if MORE:  # first: warps share out few rows as the last product can, and that of 16 channels cannot
            dq_more = tl.dot(to_products, k_more, dq_more)
        dq = tl.dot(to_products, k, dq)
    dq *= scale
    if NORM or TURN:
        dq = _unready(
            dq, qkv, head, weight, turn, norm_sums, batch, rows, tokens, inner, apart, between, eps,
            HELD, WIDTH, NORM, TURN,
        )  # fmt: skip
    _give(result_rows, result, batch, first, head, dq, tokens, inner, HELD, WIDTH)
    sums += (batch * BLOCKS + block) * 3 * inner + head
    tl.store(sums + tl.arange(0, WIDTH), tl.sum(dq, 0))
    most = tl.max(tl.abs(dq))
    if MORE:
        dq_more *= scale
        _give(result_rows_more, result, batch, first, head + WIDTH, dq_more, tokens, inner, HELD, MORE)
        tl.store(sums + WIDTH + tl.arange(0, MORE), tl.sum(dq_more, 0))
        most = tl.maximum(most, tl.max(tl.abs(dq_more)))
    tl.store(largest + tl.program_id(0), most)


@triton.jit
def to_queries(  # type: ignore[no-untyped-def]
    gradient, out, qk_rows, qk_columns, v_columns, result_rows,
    qk_rows_more, qk_columns_more, v_columns_more, result_rows_more,
    lse, pairs, sums, largest, qkv, qk, result, weight, turn, norm_sums, tokens, heads, scale, apart, between, eps,
    SHORT: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
    WIDTH: tl.constexpr, MORE: tl.constexpr, BESIDE: tl.constexpr, NORM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Gradients of queries; the last program of a head holds `SHORT` of them."""
    if SHORT < ROWS and tl.program_id(0) % BLOCKS == BLOCKS - 1:
        _to_queries(
            gradient, out, qk_rows, qk_columns, v_columns, result_rows,
            qk_rows_more, qk_columns_more, v_columns_more, result_rows_more,
            lse, pairs, sums, largest, qkv, qk, result, weight, turn, norm_sums, tokens, heads, scale, apart, between,
            eps, SHORT, ROWS, BLOCKS, COLUMNS, STEPS, WIDTH, MORE, BESIDE, NORM, TURN,
        )  # fmt: skip
    else:
        _to_queries(
            gradient, out, qk_rows, qk_columns, v_columns, result_rows,
            qk_rows_more, qk_columns_more, v_columns_more, result_rows_more,
            lse, pairs, sums, largest, qkv, None, None, weight, turn, norm_sums, tokens, heads, scale, apart, between,
            eps, ROWS, ROWS, BLOCKS, COLUMNS, STEPS, WIDTH, MORE, BESIDE, NORM, TURN,
        )  # fmt: skip


@triton.jit
def _apart(both, COLUMNS: tl.constexpr, TIMES: tl.constexpr):  # type: ignore[no-untyped-def]
    if TIMES > 1:
        both = tl.max(tl.reshape(both, (COLUMNS, TIMES, 2)), 1)
    return tl.split(both)


@triton.jit
def _to_keys(  # type: ignore[no-untyped-def]
    qk_rows, qk_columns, gradient_columns, result_rows,
    qk_rows_more, qk_columns_more, gradient_columns_more, result_rows_more,
    pairs, sums, largest, qkv, qk, result, weight, turn, norm_sums, tokens, heads, scale, apart, between, eps,
    HELD: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
    WIDTH: tl.constexpr, MORE: tl.constexpr, BESIDE: tl.constexpr,
    NORM: tl.constexpr, TURN: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values. Products lie the other way round: (keys, queries)."""
    one, batch, head, block = who(heads, BLOCKS, WIDTH + MORE)
    inner = heads * (WIDTH + MORE)
    first, across = block * ROWS, BESIDE * inner
    v = _fetch(qkv, batch, first, 2 * inner + head, tokens, 3 * inner, HELD, WIDTH)
    k = _hold(qk_rows, qk, batch, first, inner + head, tokens, across, HELD, WIDTH)
    dk = tl.zeros((HELD, WIDTH), tl.float32)
    dv = tl.zeros((HELD, WIDTH), tl.float32)
    if MORE:
        v_more = _fetch(qkv, batch, first, 2 * inner + head + WIDTH, tokens, 3 * inner, HELD, MORE)
        k_more = _hold(qk_rows_more, qk, batch, first, inner + head + WIDTH, tokens, across, HELD, MORE)
        dk_more = tl.zeros((HELD, MORE), tl.float32)
        dv_more = tl.zeros((HELD, MORE), tl.float32)
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
        products = tl.dot(k, tl.trans(q), tl.broadcast_to(low[None, :], (HELD, COLUMNS)))
        to_weights = tl.dot(v, tl.trans(g), tl.broadcast_to(mean[None, :], (HELD, COLUMNS)))
        if MORE:
            products = tl.dot(k_more, tl.trans(q_more), products)
            to_weights = tl.dot(v_more, tl.trans(g_more), to_weights)
        weights = tl.exp2(products * (scale * LOG2E))
        to_products = (weights * to_weights).to(q.dtype)
        weights = weights.to(q.dtype)
        if MORE:  # first, as in `_to_queries`: otherwise every warp computes all of few rows, and registers run out
            dv_more = tl.dot(weights, g_more, dv_more)
            dk_more = tl.dot(to_products, q_more, dk_more)
        dv = tl.dot(weights, g, dv)
        dk = tl.dot(to_products, q, dk)
    seen = (first + tl.arange(0, HELD) < tokens)[:, None]
    dk = tl.where(seen, dk * scale, 0.0)
    dv = tl.where(seen, dv, 0.0)
    if NORM or TURN:
        rows = first + tl.arange(0, HELD)
        dk = _unready(
            dk, qkv, inner + head, weight, turn, norm_sums, batch, rows, tokens, inner, apart, between, eps,
            HELD, WIDTH, NORM, TURN,
        )  # fmt: skip
    _give(result_rows, result, batch, first, inner + head, dk, tokens, inner, HELD, WIDTH)
    _give(result_rows, result, batch, first, 2 * inner + head, dv, tokens, inner, HELD, WIDTH)
    sums += (batch * BLOCKS + block) * 3 * inner + head
    tl.store(sums + inner + tl.arange(0, WIDTH), tl.sum(dk, 0))
    tl.store(sums + 2 * inner + tl.arange(0, WIDTH), tl.sum(dv, 0))
    most = tl.max(tl.maximum(tl.abs(dk), tl.abs(dv)))
    if MORE:
        dk_more = tl.where(seen, dk_more * scale, 0.0)
        dv_more = tl.where(seen, dv_more, 0.0)
        _give(result_rows_more, result, batch, first, inner + head + WIDTH, dk_more, tokens, inner, HELD, MORE)
        _give(result_rows_more, result, batch, first, 2 * inner + head + WIDTH, dv_more, tokens, inner, HELD, MORE)
        sums += WIDTH + tl.arange(0, MORE)
        tl.store(sums + inner, tl.sum(dk_more, 0))
        tl.store(sums + 2 * inner, tl.sum(dv_more, 0))
        most = tl.maximum(most, tl.max(tl.maximum(tl.abs(dk_more), tl.abs(dv_more))))
    tl.store(largest + tl.num_programs(0) + tl.program_id(0), most)


@triton.jit
def to_keys(  # type: ignore[no-untyped-def]
    qk_rows, qk_columns, gradient_columns, result_rows,
    qk_rows_more, qk_columns_more, gradient_columns_more, result_rows_more,
    pairs, sums, largest, qkv, qk, result, weight, turn, norm_sums, tokens, heads, scale, apart, between, eps,
    SHORT: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
    WIDTH: tl.constexpr, MORE: tl.constexpr, BESIDE: tl.constexpr,
    NORM: tl.constexpr, TURN: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values; the last program of a head holds `SHORT` of them."""
    if SHORT < ROWS and tl.program_id(0) % BLOCKS == BLOCKS - 1:
        _to_keys(
            qk_rows, qk_columns, gradient_columns, result_rows,
            qk_rows_more, qk_columns_more, gradient_columns_more, result_rows_more,
            pairs, sums, largest, qkv, qk, result, weight, turn, norm_sums, tokens, heads, scale, apart, between,
            eps, SHORT, ROWS, BLOCKS, COLUMNS, STEPS, WIDTH, MORE, BESIDE, NORM, TURN, TIMES,
        )  # fmt: skip
    else:
        _to_keys(
            qk_rows, qk_columns, gradient_columns, result_rows,
            qk_rows_more, qk_columns_more, gradient_columns_more, result_rows_more,
            pairs, sums, largest, qkv, None, None, weight, turn, norm_sums, tokens, heads, scale, apart, between,
            eps, ROWS, ROWS, BLOCKS, COLUMNS, STEPS, WIDTH, MORE, BESIDE, NORM, TURN, TIMES,
        )  # fmt: skip
