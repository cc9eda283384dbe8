"""A candidate: attention whose last program of a head holds as few tokens as are left, instead of 64.

    python benchmarks/candidates/short_rows.py                      # one GPU: errors, microseconds beside what there is
    TRITON_INTERPRET=1 python benchmarks/candidates/short_rows.py   # no GPU: errors in float32

Of 144, 197 and 257 tokens the last of the programs that hold 64 each has 16, 5 and 1. Here it holds 16, by plain loads,
in the same launch, so that keys and values come to it from the cache. Heads are 64 wide; queries and keys are
multiplied as they come.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch
import triton
import triton.language as tl
from gelu_in_products import microseconds
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from vitrail.model.kernels.mid_attention import mid_attention, mid_attention_backward
from vitrail.model.kernels.mid_kernels import LN2, LOG2E, _apart, _fetch, _put, _tile, _who

ROWS, SHORT, COLUMNS, WIDTH, WARPS = 64, 16, 32, 64, 4
CASES = {  # batch, tokens, heads
    "48 x 48, batch 512": (512, 144, 4),
    "B/16, batch 256": (256, 197, 12),
    "L/16, batch 128": (128, 197, 16),
    "257 tokens, batch 64": (64, 257, 16),
    "B/16 at 384, batch 64": (64, 577, 12),
}


@triton.jit
def _keep(place, batch, row, column, tokens, columns, tile, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = row + tl.arange(0, ROWS)
    place += batch.to(tl.int64) * tokens * columns + column
    place += rows[:, None] * columns + tl.arange(0, WIDTH)[None, :]
    tl.store(place, tile.to(place.dtype.element_ty), mask=(rows < tokens)[:, None])


@triton.jit
def _mix(  # type: ignore[no-untyped-def]
    q, qkv_columns, lse, one, batch, head, inner, first, tokens, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    factor = scale * LOG2E
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDTH), tl.float32)
    for step in tl.range(0, STEPS):
        start = step * COLUMNS
        k = _tile(qkv_columns, batch, start, inner + head, COLUMNS, WIDTH)
        v = _tile(qkv_columns, batch, start, 2 * inner + head, COLUMNS, WIDTH)
        products = tl.dot(q, tl.trans(k))
        products = tl.where((start + tl.arange(0, COLUMNS) < tokens)[None, :], products, float("-inf"))
        now = tl.maximum(best, tl.max(products, 1))
        weights = tl.exp2(products * factor - (now * factor)[:, None])
        less = tl.exp2((best - now) * factor)
        total = total * less + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * less[:, None])
        best = now
    rows = first + tl.arange(0, ROWS)
    tl.store(lse + one * tokens + rows, best * scale + tl.log2(total) * LN2, mask=rows < tokens)
    return mixed * (1 / total)[:, None]


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv_rows, qkv_columns, out_rows, qkv, out, lse, tokens, heads, scale,
    ROWS: tl.constexpr, SHORT: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    one, batch, head, block = _who(heads, BLOCKS, WIDTH)
    inner, first = heads * WIDTH, block * ROWS
    if block < BLOCKS - 1:
        q = _tile(qkv_rows, batch, first, head, ROWS, WIDTH)
        mixed = _mix(q, qkv_columns, lse, one, batch, head, inner, first, tokens, scale, ROWS, COLUMNS, STEPS, WIDTH)
        _put(out_rows, batch, first, head, mixed, ROWS, WIDTH)
    else:
        few = _fetch(qkv, batch, first, head, tokens, 3 * inner, SHORT, WIDTH)
        some = _mix(few, qkv_columns, lse, one, batch, head, inner, first, tokens, scale, SHORT, COLUMNS, STEPS, WIDTH)
        _keep(out, batch, first, head, tokens, inner, some, SHORT, WIDTH)


@triton.jit
def _to_queries(  # type: ignore[no-untyped-def]
    q, qkv_columns, gradient, out, lse, pairs, one, batch, head, inner, first, tokens, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    rows = first + tl.arange(0, ROWS)
    low = tl.load(lse + one * tokens + rows, mask=rows < tokens, other=float("inf"))
    o = _fetch(out, batch, first, head, tokens, inner, ROWS, WIDTH)
    g = _fetch(gradient, batch, first, head, tokens, inner, ROWS, WIDTH)
    mean = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    pairs += 2 * (one * STEPS * COLUMNS + rows[:, None]) + tl.arange(0, 2)[None, :]
    seen = (rows < STEPS * COLUMNS)[:, None]
    tl.store(pairs, tl.join(-low / scale, -mean), mask=seen)
    low *= LOG2E
    dq = tl.zeros((ROWS, WIDTH), tl.float32)
    for step in tl.range(0, STEPS):
        start = step * COLUMNS
        k = _tile(qkv_columns, batch, start, inner + head, COLUMNS, WIDTH)
        v = _tile(qkv_columns, batch, start, 2 * inner + head, COLUMNS, WIDTH)
        products = tl.dot(q, tl.trans(k))
        to_weights = tl.dot(g, tl.trans(v))
        weights = tl.exp2(products * (scale * LOG2E) - low[:, None])
        weights = tl.where((start + tl.arange(0, COLUMNS) < tokens)[None, :], weights, 0.0)
        dq = tl.dot((weights * (to_weights - mean[:, None])).to(k.dtype), k, dq)
    return dq * scale


@triton.jit
def _back_to_queries(  # type: ignore[no-untyped-def]
    qkv_rows, qkv_columns, result_rows, qkv, gradient, out, result, lse, pairs, sums, tokens, heads, scale,
    ROWS: tl.constexpr, SHORT: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    one, batch, head, block = _who(heads, BLOCKS, WIDTH)
    inner, first = heads * WIDTH, block * ROWS
    sums += (batch * BLOCKS + block) * 3 * inner + head + tl.arange(0, WIDTH)
    if block < BLOCKS - 1:
        q = _tile(qkv_rows, batch, first, head, ROWS, WIDTH)
        dq = _to_queries(
            q, qkv_columns, gradient, out, lse, pairs, one, batch, head, inner, first, tokens, scale,
            ROWS, COLUMNS, STEPS, WIDTH,
        )  # fmt: skip
        _put(result_rows, batch, first, head, dq, ROWS, WIDTH)
        tl.store(sums, tl.sum(dq, 0))
    else:
        few = _fetch(qkv, batch, first, head, tokens, 3 * inner, SHORT, WIDTH)
        some = _to_queries(
            few, qkv_columns, gradient, out, lse, pairs, one, batch, head, inner, first, tokens, scale,
            SHORT, COLUMNS, STEPS, WIDTH,
        )  # fmt: skip
        _keep(result, batch, first, head, tokens, 3 * inner, some, SHORT, WIDTH)
        tl.store(sums, tl.sum(some, 0))
        # the keys' side passes by whole steps: queries beyond the last have no weight there
        rows = first + SHORT + tl.arange(0, COLUMNS)
        place = pairs + 2 * (one * STEPS * COLUMNS + rows[:, None]) + tl.arange(0, 2)[None, :]
        none = tl.join(tl.full((COLUMNS,), float("-inf"), tl.float32), tl.zeros((COLUMNS,), tl.float32))
        tl.store(place, none, mask=(rows < STEPS * COLUMNS)[:, None])


@triton.jit
def _to_keys(  # type: ignore[no-untyped-def]
    k, v, qkv_columns, gradient_columns, pairs, one, batch, head, first, tokens, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    dk = tl.zeros((ROWS, WIDTH), tl.float32)
    dv = tl.zeros((ROWS, WIDTH), tl.float32)
    pairs += 2 * (one * STEPS * COLUMNS + tl.arange(0, COLUMNS)[:, None]) + tl.arange(0, 2 * TIMES)[None, :] % 2
    both = tl.load(pairs)
    for step in tl.range(0, STEPS):
        start = step * COLUMNS
        q = _tile(qkv_columns, batch, start, head, COLUMNS, WIDTH)
        g = _tile(gradient_columns, batch, start, head, COLUMNS, WIDTH)
        low, mean = _apart(both, COLUMNS, TIMES)
        both = tl.load(pairs + 2 * COLUMNS * tl.minimum(step + 1, STEPS - 1))
        products = tl.dot(k, tl.trans(q), tl.broadcast_to(low[None, :], (ROWS, COLUMNS)))
        to_weights = tl.dot(v, tl.trans(g), tl.broadcast_to(mean[None, :], (ROWS, COLUMNS)))
        weights = tl.exp2(products * (scale * LOG2E))
        dk = tl.dot((weights * to_weights).to(q.dtype), q, dk)
        dv = tl.dot(weights.to(q.dtype), g, dv)
    seen = (first + tl.arange(0, ROWS) < tokens)[:, None]
    return tl.where(seen, dk * scale, 0.0), tl.where(seen, dv, 0.0)


@triton.jit
def _back_to_keys(  # type: ignore[no-untyped-def]
    qkv_rows, qkv_columns, gradient_columns, result_rows, qkv, result, pairs, sums, tokens, heads, scale,
    ROWS: tl.constexpr, SHORT: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
    WIDTH: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    one, batch, head, block = _who(heads, BLOCKS, WIDTH)
    inner, first = heads * WIDTH, block * ROWS
    sums += (batch * BLOCKS + block) * 3 * inner + head + tl.arange(0, WIDTH)
    if block < BLOCKS - 1:
        v = _fetch(qkv, batch, first, 2 * inner + head, tokens, 3 * inner, ROWS, WIDTH)
        k = _tile(qkv_rows, batch, first, inner + head, ROWS, WIDTH)
        dk, dv = _to_keys(
            k, v, qkv_columns, gradient_columns, pairs, one, batch, head, first, tokens, scale,
            ROWS, COLUMNS, STEPS, WIDTH, TIMES,
        )  # fmt: skip
        _put(result_rows, batch, first, inner + head, dk, ROWS, WIDTH)
        _put(result_rows, batch, first, 2 * inner + head, dv, ROWS, WIDTH)
        tl.store(sums + inner, tl.sum(dk, 0))
        tl.store(sums + 2 * inner, tl.sum(dv, 0))
    else:
        few = _fetch(qkv, batch, first, inner + head, tokens, 3 * inner, SHORT, WIDTH)
        worth = _fetch(qkv, batch, first, 2 * inner + head, tokens, 3 * inner, SHORT, WIDTH)
        some, more = _to_keys(
            few, worth, qkv_columns, gradient_columns, pairs, one, batch, head, first, tokens, scale,
            SHORT, COLUMNS, STEPS, WIDTH, TIMES,
        )  # fmt: skip
        _keep(result, batch, first, inner + head, tokens, 3 * inner, some, SHORT, WIDTH)
        _keep(result, batch, first, 2 * inner + head, tokens, 3 * inner, more, SHORT, WIDTH)
        tl.store(sums + inner, tl.sum(some, 0))
        tl.store(sums + 2 * inner, tl.sum(more, 0))


def settings(tokens: int, short: int) -> dict[str, Any]:
    assert 0 < tokens - tokens // ROWS * ROWS <= short
    sizes = {"ROWS": ROWS, "SHORT": short, "BLOCKS": triton.cdiv(tokens, ROWS), "COLUMNS": COLUMNS}
    return sizes | {"STEPS": triton.cdiv(tokens, COLUMNS), "WIDTH": WIDTH, "num_warps": WARPS, "num_stages": 3}


def tiles(tensor: Tensor, rows: int) -> TensorDescriptor:
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, rows, WIDTH])


def attend(qkv: Tensor, heads: int, scale: float, short: int = SHORT) -> tuple[Tensor, Tensor]:
    """As `mid_attention`."""
    batch, tokens, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out, lse = qkv.new_empty(batch, tokens, inner), qkv.new_empty(batch, heads, tokens, dtype=torch.float32)
    sizes = settings(tokens, short)
    given = tiles(qkv, ROWS), tiles(qkv, COLUMNS), tiles(out, ROWS), qkv, out, lse, tokens, heads, scale
    _forward[(batch * heads * sizes["BLOCKS"],)](*given, **sizes)
    return out, lse


def attend_back(
    gradient: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, heads: int, scale: float, short: int = SHORT
) -> tuple[Tensor, Tensor]:
    """As `mid_attention_backward`, without the largest numbers."""
    batch, tokens = qkv.shape[:2]
    sizes = settings(tokens, short)
    grid = (batch * heads * sizes["BLOCKS"],)
    result = torch.empty_like(qkv)
    sums = qkv.new_empty(batch * sizes["BLOCKS"], qkv.shape[2], dtype=torch.float32)
    pairs = lse.new_empty(batch * heads * sizes["STEPS"] * COLUMNS, 2)
    rows, columns, results = tiles(qkv, ROWS), tiles(qkv, COLUMNS), tiles(result, ROWS)
    numbers = tokens, heads, scale
    _back_to_queries[grid](rows, columns, results, qkv, gradient, out, result, lse, pairs, sums, *numbers, **sizes)
    given = rows, columns, tiles(gradient, COLUMNS), results, qkv, result, pairs, sums
    _back_to_keys[grid](*given, *numbers, **sizes, TIMES=32 * WARPS // (2 * COLUMNS))
    return result, sums


def by_definition(qkv: Tensor, gradient: Tensor, heads: int, scale: float) -> tuple[Tensor, Tensor]:
    """Result and gradients, by autograd, in float64."""
    qkv = qkv.double().requires_grad_()
    q, k, v = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in qkv.chunk(3, -1))
    out = (((q @ k.transpose(-2, -1)) * scale).softmax(-1) @ v).transpose(1, 2).flatten(2)
    (found,) = torch.autograd.grad(out, qkv, gradient.double())
    return out.detach(), found


def errors(batch: int, tokens: int, heads: int, device: str, dtype: torch.dtype) -> list[float]:
    """Of the result, the gradients of queries, keys and values, and their sums, over the norms."""
    qkv = torch.randn(batch, tokens, 3 * heads * WIDTH, device=device).to(dtype)
    gradient = torch.randn(batch, tokens, heads * WIDTH, device=device).to(dtype)
    out, lse = attend(qkv, heads, WIDTH**-0.5)
    result, sums = attend_back(gradient, qkv, out, lse, heads, WIDTH**-0.5)
    right, wanted = by_definition(qkv, gradient, heads, WIDTH**-0.5)
    pairs = [
        (out, right),
        *zip(result.chunk(3, -1), wanted.chunk(3, -1), strict=True),
        (sums.sum(0), wanted.sum((0, 1))),
    ]
    return [float((a.double() - b).norm() / b.norm()) for a, b in pairs]


def measure(batch: int, tokens: int, heads: int) -> dict[str, Any]:
    """Microseconds, in turns with what there is."""
    qkv = torch.randn(batch, tokens, 3 * heads * WIDTH, device="cuda", dtype=torch.bfloat16)
    gradient = torch.randn(batch, tokens, heads * WIDTH, device="cuda", dtype=torch.bfloat16)
    scale = WIDTH**-0.5
    out, lse = mid_attention(qkv, heads, scale)
    row: dict[str, Any] = {"there": [], "back": [], "there, short": [], "back, short": []}
    for _ in range(3):
        row["there"].append(microseconds(lambda: mid_attention(qkv, heads, scale)))
        row["there, short"].append(microseconds(lambda: attend(qkv, heads, scale)))
        row["back"].append(microseconds(lambda: mid_attention_backward(gradient, qkv, out, lse, heads, scale)))
        row["back, short"].append(microseconds(lambda: attend_back(gradient, qkv, out, lse, heads, scale)))
    return row


def main() -> None:
    torch.manual_seed(0)
    if os.environ.get("TRITON_INTERPRET") == "1":
        for tokens in (65, 80, 144, 197, 257):
            print(tokens, errors(2, tokens, 2, "cpu", torch.float32), flush=True)
        return
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    for name, (batch, tokens, heads) in CASES.items():
        found = errors(2, tokens, heads, "cuda", torch.bfloat16)
        print(json.dumps({"case": name, "errors": found, **measure(batch, tokens, heads)}), flush=True)


if __name__ == "__main__":
    main()
