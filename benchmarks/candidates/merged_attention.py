"""A candidate: attention's way back over up to 256 tokens in one kernel instead of two.

    python benchmarks/candidates/merged_attention.py            # one GPU: errors, microseconds

The kernels there are hold queries and pass by keys, and hold keys and pass by queries: products and exponentials are
computed twice. Here a program of 16 warps holds all keys of a head, passes by its queries, and writes their gradients
as it goes: five products instead of seven, one exponential instead of two; but a multiprocessor has one program.
Kernels are timed as 4 in a row played from a CUDA graph, beside those there are.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import triton
import triton.language as tl
from playing import microseconds
from torch import Tensor

from vitrail.model.kernels.mid_attention import _put, _tile, _tiles, mid_attention, mid_attention_backward

CASES = {"B/16": (256, 12), "S/16": (256, 6), "Ti/16": (256, 3), "L/16": (128, 16)}  # pictures, heads
COLUMNS = 32  # queries at a time
STAGES = 2
WIDTH = 64
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _back(  # type: ignore[no-untyped-def]
    gradient, out, qkv_all, gradient_columns, qkv_columns, result_all, result_columns, lse, pairs, sums, largest,
    tokens, heads, scale,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    one = tl.program_id(0)
    batch, head = one // heads, (one % heads) * WIDTH
    inner = heads * WIDTH
    rows, column = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    seen = rows < tokens
    k = _tile(qkv_all, batch, 0, inner + head, TOKENS, WIDTH)
    v = _tile(qkv_all, batch, 0, 2 * inner + head, TOKENS, WIDTH)
    low = tl.load(lse + one * tokens + rows, mask=seen, other=float("inf"))  # weights beyond the tokens are 0
    place = batch.to(tl.int64) * tokens * inner + head + rows[:, None] * inner + column[None, :]
    o = tl.load(out + place, mask=seen[:, None], other=0.0)
    given = tl.load(gradient + place, mask=seen[:, None], other=0.0)
    mean = tl.sum(given.to(tl.float32) * o.to(tl.float32), 1)
    pairs += 2 * one * TOKENS
    tl.store(pairs + 2 * rows[:, None] + tl.arange(0, 2)[None, :], tl.join(-low / scale, -mean))
    tl.debug_barrier()
    dk = tl.zeros((TOKENS, WIDTH), tl.float32)
    dv = tl.zeros((TOKENS, WIDTH), tl.float32)
    to_queries = tl.zeros((WIDTH, COLUMNS), tl.float32)
    most = tl.zeros((WIDTH, COLUMNS), tl.float32)
    # each pair is read so often that every thread gets one number: what is smaller, each thread would read as a whole
    pairs += 2 * tl.arange(0, COLUMNS)[:, None] + tl.arange(0, 2 * TIMES)[None, :] % 2
    both = tl.load(pairs)
    for step in tl.range(0, STEPS):
        start = step * COLUMNS
        q = _tile(qkv_columns, batch, start, head, COLUMNS, WIDTH)
        g = _tile(gradient_columns, batch, start, head, COLUMNS, WIDTH)
        now, less = tl.split(tl.max(tl.reshape(both, (COLUMNS, TIMES, 2)), 1))
        both = tl.load(pairs + 2 * COLUMNS * tl.minimum(step + 1, STEPS - 1))
        # what is to be taken off is what the products start from: it takes no registers of its own
        products = tl.dot(k, tl.trans(q), tl.broadcast_to(now[None, :], (TOKENS, COLUMNS)))
        to_weights = tl.dot(v, tl.trans(g), tl.broadcast_to(less[None, :], (TOKENS, COLUMNS)))
        weights = tl.exp2(products * (scale * LOG2E))
        dv = tl.dot(weights.to(q.dtype), g, dv)
        small = (weights * to_weights).to(q.dtype)
        dk = tl.dot(small, q, dk)
        dq = tl.dot(tl.trans(k), small) * scale  # (width, queries)
        to_queries += dq
        most = tl.maximum(most, tl.abs(dq))
        _put(result_columns, batch, start, head, tl.trans(dq), COLUMNS, WIDTH)
    dk = tl.where(seen[:, None], dk * scale, 0.0)
    dv = tl.where(seen[:, None], dv, 0.0)
    _put(result_all, batch, 0, inner + head, dk, TOKENS, WIDTH)
    _put(result_all, batch, 0, 2 * inner + head, dv, TOKENS, WIDTH)
    sums += batch * 3 * inner + head + column
    tl.store(sums, tl.sum(to_queries, 1))
    tl.store(sums + inner, tl.sum(dk, 0))
    tl.store(sums + 2 * inner, tl.sum(dv, 0))
    tl.store(largest + one, tl.max(tl.maximum(tl.abs(dk), tl.abs(dv))))
    tl.store(largest + tl.num_programs(0) + one, tl.max(most))


def merged_backward(
    gradient: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As `mid_attention_backward`, up to 256 tokens."""
    batch, tokens, inner = out.shape
    width = inner // heads
    result, sums = torch.empty_like(qkv), qkv.new_empty(batch, 3 * inner, dtype=torch.float32)
    largest = qkv.new_empty(2, batch * heads, dtype=torch.float32)
    everything = max(64, triton.next_power_of_2(tokens))
    warps = everything // 16
    pairs = lse.new_empty(batch * heads * everything, 2)
    given = gradient, out, _tiles(qkv, everything, width), _tiles(gradient, COLUMNS, width), _tiles(qkv, COLUMNS, width)
    taken = _tiles(result, everything, width), _tiles(result, COLUMNS, width), lse, pairs, sums, largest
    sizes = {"TOKENS": everything, "COLUMNS": COLUMNS, "STEPS": triton.cdiv(tokens, COLUMNS), "WIDTH": width}
    sizes |= {"TIMES": max(1, 32 * warps // (2 * COLUMNS)), "num_warps": warps, "num_stages": STAGES}
    _back[(batch * heads,)](*given, *taken, tokens, heads, scale, **sizes)
    return result, sums, largest


def errors(batch: int, tokens: int, heads: int, kind: torch.dtype, device: str) -> dict[str, float]:
    """How far gradients, their sums and the largest are from float64's, over the largest number."""
    torch.manual_seed(0)
    scale = WIDTH**-0.5
    qkv = torch.randn(batch, tokens, 3 * heads * WIDTH, device=device).to(kind)
    given = torch.randn(batch, tokens, heads * WIDTH, device=device).to(kind)
    exact = qkv.double().requires_grad_()
    q, k, v = exact.unflatten(-1, (3, heads, WIDTH)).permute(2, 0, 3, 1, 4)
    products = q @ k.mT * scale
    out = (products.softmax(-1) @ v).transpose(1, 2).flatten(2)
    (right,) = torch.autograd.grad(out, exact, given.double())
    lse = products.detach().logsumexp(-1).float()
    found, sums, largest = merged_backward(given, qkv, out.detach().to(kind), lse, heads, scale)
    whole = float(right.abs().max())
    return {
        "gradients": float((found - right).abs().max()) / whole,
        "sums": float((sums.double().sum(0) - right.sum((0, 1))).abs().max() / right.sum((0, 1)).abs().max()),
        "largest": abs(float(largest.max()) - whole) / whole,
    }


def main() -> None:
    global STAGES
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    for tokens in (64, 100, 197, 256):
        found = errors(2, tokens, 3, torch.bfloat16, "cuda")
        print(json.dumps({"tokens": tokens, "errors": {key: round(one, 5) for key, one in found.items()}}), flush=True)
    for name, (batch, heads) in CASES.items():
        qkv = torch.randn(batch, 197, 3 * heads * WIDTH, device="cuda").bfloat16()
        given = torch.randn(batch, 197, heads * WIDTH, device="cuda").bfloat16()
        out, lse = mid_attention(qkv, heads, 0.125)
        rest = given, qkv, out, lse, heads, 0.125
        row: dict[str, Any] = {"case": name}
        row["two"] = microseconds(lambda rest=rest: mid_attention_backward(*rest), 4)
        for STAGES in (3, 2, 1):
            row[f"one, {STAGES} stages"] = microseconds(lambda rest=rest: merged_backward(*rest), 4)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
