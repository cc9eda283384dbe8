"""A candidate: attention over some hundred tokens for heads of 80 channels, such as H/14's, on packed projections.

    python benchmarks/candidates/eighty_wide.py            # one GPU: errors, microseconds, whole steps of H/14
    TRITON_INTERPRET=1 python benchmarks/candidates/eighty_wide.py errors      # without one: its steps, in float32

Tiles have powers of two as sides, so the kernels there are take heads of 32 and 64. Here a head is 64 channels and 16
more, each with tiles, products and sums of their own: no product is of padding. Kernels are timed with a cold cache
beside torch's attention and what it packs; steps are forward, cross-entropy, backward and AdamW, compiled.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from vitrail.model.kernels.mid_attention import (
    COLUMNS,
    ROWS,
    WARPS,
    _apart,
    _empty_gradients,
    _fetch,
    _put,
    _settings,
    _tile,
    _tiles,
    _who,
)

WHOLE: tl.constexpr = tl.constexpr(80)
WIDTH: tl.constexpr = tl.constexpr(64)
MORE: tl.constexpr = tl.constexpr(16)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
BATCH, TOKENS, HEADS = 64, 257, 16  # H/14's


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv_rows, qkv_columns, out_rows, qkv_rows_more, qkv_columns_more, out_rows_more, lse, tokens, heads, scale,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    one, batch, head, block = _who(heads, BLOCKS, WHOLE)
    inner = heads * WHOLE
    first = block * ROWS
    factor = scale * LOG2E
    q = _tile(qkv_rows, batch, first, head, ROWS, WIDTH)
    q_more = _tile(qkv_rows_more, batch, first, head + WIDTH, ROWS, MORE)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDTH), tl.float32)
    mixed_more = tl.zeros((ROWS, MORE), tl.float32)
    for step in tl.range(0, STEPS):
        start = step * COLUMNS
        k = _tile(qkv_columns, batch, start, inner + head, COLUMNS, WIDTH)
        k_more = _tile(qkv_columns_more, batch, start, inner + head + WIDTH, COLUMNS, MORE)
        v = _tile(qkv_columns, batch, start, 2 * inner + head, COLUMNS, WIDTH)
        v_more = _tile(qkv_columns_more, batch, start, 2 * inner + head + WIDTH, COLUMNS, MORE)
        products = tl.dot(q_more, tl.trans(k_more), tl.dot(q, tl.trans(k)))
        products = tl.where((start + tl.arange(0, COLUMNS) < tokens)[None, :], products, float("-inf"))
        now = tl.maximum(best, tl.max(products, 1))
        weights = tl.exp2(products * factor - (now * factor)[:, None])
        less = tl.exp2((best - now) * factor)
        total = total * less + tl.sum(weights, 1)
        weights = weights.to(v.dtype)
        mixed = tl.dot(weights, v, mixed * less[:, None])
        mixed_more = tl.dot(weights, v_more, mixed_more * less[:, None])
        best = now
    _put(out_rows, batch, first, head, mixed * (1 / total)[:, None], ROWS, WIDTH)
    _put(out_rows_more, batch, first, head + WIDTH, mixed_more * (1 / total)[:, None], ROWS, MORE)
    rows = first + tl.arange(0, ROWS)
    tl.store(lse + one * tokens + rows, best * scale + tl.log2(total) * LN2, mask=rows < tokens)


@triton.jit
def _to_queries(  # type: ignore[no-untyped-def]
    gradient, out, qkv_rows, qkv_columns, result_rows, qkv_rows_more, qkv_columns_more, result_rows_more,
    lse, pairs, sums, largest, tokens, heads, scale,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    one, batch, head, block = _who(heads, BLOCKS, WHOLE)
    inner = heads * WHOLE
    first = block * ROWS
    rows = first + tl.arange(0, ROWS)
    low = tl.load(lse + one * tokens + rows, mask=rows < tokens, other=float("inf"))  # weights beyond the tokens are 0
    o = _fetch(out, batch, first, head, tokens, inner, ROWS, WIDTH)
    o_more = _fetch(out, batch, first, head + WIDTH, tokens, inner, ROWS, MORE)
    g = _fetch(gradient, batch, first, head, tokens, inner, ROWS, WIDTH)
    g_more = _fetch(gradient, batch, first, head + WIDTH, tokens, inner, ROWS, MORE)
    q = _tile(qkv_rows, batch, first, head, ROWS, WIDTH)
    q_more = _tile(qkv_rows_more, batch, first, head + WIDTH, ROWS, MORE)
    mean = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1) + tl.sum(g_more.to(tl.float32) * o_more.to(tl.float32), 1)
    pairs += 2 * (one * BLOCKS * ROWS + rows[:, None]) + tl.arange(0, 2)[None, :]
    tl.store(pairs, tl.join(-low / scale, -mean))
    low *= LOG2E
    dq = tl.zeros((ROWS, WIDTH), tl.float32)
    dq_more = tl.zeros((ROWS, MORE), tl.float32)
    for step in tl.range(0, STEPS):
        start = step * COLUMNS
        k = _tile(qkv_columns, batch, start, inner + head, COLUMNS, WIDTH)
        k_more = _tile(qkv_columns_more, batch, start, inner + head + WIDTH, COLUMNS, MORE)
        v = _tile(qkv_columns, batch, start, 2 * inner + head, COLUMNS, WIDTH)
        v_more = _tile(qkv_columns_more, batch, start, 2 * inner + head + WIDTH, COLUMNS, MORE)
        products = tl.dot(q_more, tl.trans(k_more), tl.dot(q, tl.trans(k)))
        to_weights = tl.dot(g_more, tl.trans(v_more), tl.dot(g, tl.trans(v)))
        weights = tl.exp2(products * (scale * LOG2E) - low[:, None])
        weights = tl.where((start + tl.arange(0, COLUMNS) < tokens)[None, :], weights, 0.0)
        small = (weights * (to_weights - mean[:, None])).to(k.dtype)
        dq = tl.dot(small, k, dq)
        dq_more = tl.dot(small, k_more, dq_more)
    dq *= scale
    dq_more *= scale
    _put(result_rows, batch, first, head, dq, ROWS, WIDTH)
    _put(result_rows_more, batch, first, head + WIDTH, dq_more, ROWS, MORE)
    sums += (batch * BLOCKS + block) * 3 * inner + head
    tl.store(sums + tl.arange(0, WIDTH), tl.sum(dq, 0))
    tl.store(sums + WIDTH + tl.arange(0, MORE), tl.sum(dq_more, 0))
    tl.store(largest + tl.program_id(0), tl.maximum(tl.max(tl.abs(dq)), tl.max(tl.abs(dq_more))))


@triton.jit
def _to_keys(  # type: ignore[no-untyped-def]
    qkv, qkv_rows, qkv_columns, gradient_columns, result_rows,
    qkv_rows_more, qkv_columns_more, gradient_columns_more, result_rows_more,
    pairs, sums, largest, tokens, heads, scale,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    one, batch, head, block = _who(heads, BLOCKS, WHOLE)
    inner = heads * WHOLE
    first = block * ROWS
    v = _fetch(qkv, batch, first, 2 * inner + head, tokens, 3 * inner, ROWS, WIDTH)
    v_more = _fetch(qkv, batch, first, 2 * inner + head + WIDTH, tokens, 3 * inner, ROWS, MORE)
    k = _tile(qkv_rows, batch, first, inner + head, ROWS, WIDTH)
    k_more = _tile(qkv_rows_more, batch, first, inner + head + WIDTH, ROWS, MORE)
    dk = tl.zeros((ROWS, WIDTH), tl.float32)
    dv = tl.zeros((ROWS, WIDTH), tl.float32)
    dk_more = tl.zeros((ROWS, MORE), tl.float32)
    dv_more = tl.zeros((ROWS, MORE), tl.float32)
    pairs += 2 * (one * BLOCKS * ROWS + tl.arange(0, COLUMNS)[:, None]) + tl.arange(0, 2 * TIMES)[None, :] % 2
    both = tl.load(pairs)
    for step in tl.range(0, STEPS):
        start = step * COLUMNS
        q = _tile(qkv_columns, batch, start, head, COLUMNS, WIDTH)
        q_more = _tile(qkv_columns_more, batch, start, head + WIDTH, COLUMNS, MORE)
        g = _tile(gradient_columns, batch, start, head, COLUMNS, WIDTH)
        g_more = _tile(gradient_columns_more, batch, start, head + WIDTH, COLUMNS, MORE)
        low, mean = _apart(both, COLUMNS, TIMES)
        both = tl.load(pairs + 2 * COLUMNS * tl.minimum(step + 1, STEPS - 1))
        products = tl.dot(k, tl.trans(q), tl.broadcast_to(low[None, :], (ROWS, COLUMNS)))
        products = tl.dot(k_more, tl.trans(q_more), products)
        to_weights = tl.dot(v, tl.trans(g), tl.broadcast_to(mean[None, :], (ROWS, COLUMNS)))
        to_weights = tl.dot(v_more, tl.trans(g_more), to_weights)
        weights = tl.exp2(products * (scale * LOG2E))
        small = (weights * to_weights).to(q.dtype)
        weights = weights.to(q.dtype)
        dv = tl.dot(weights, g, dv)
        dv_more = tl.dot(weights, g_more, dv_more)
        dk = tl.dot(small, q, dk)
        dk_more = tl.dot(small, q_more, dk_more)
    seen = (first + tl.arange(0, ROWS) < tokens)[:, None]
    dk, dk_more = tl.where(seen, dk * scale, 0.0), tl.where(seen, dk_more * scale, 0.0)
    dv, dv_more = tl.where(seen, dv, 0.0), tl.where(seen, dv_more, 0.0)
    _put(result_rows, batch, first, inner + head, dk, ROWS, WIDTH)
    _put(result_rows_more, batch, first, inner + head + WIDTH, dk_more, ROWS, MORE)
    _put(result_rows, batch, first, 2 * inner + head, dv, ROWS, WIDTH)
    _put(result_rows_more, batch, first, 2 * inner + head + WIDTH, dv_more, ROWS, MORE)
    sums += (batch * BLOCKS + block) * 3 * inner + head
    column, more = tl.arange(0, WIDTH), WIDTH + tl.arange(0, MORE)
    tl.store(sums + inner + column, tl.sum(dk, 0))
    tl.store(sums + inner + more, tl.sum(dk_more, 0))
    tl.store(sums + 2 * inner + column, tl.sum(dv, 0))
    tl.store(sums + 2 * inner + more, tl.sum(dv_more, 0))
    most = tl.max(tl.maximum(tl.abs(dk), tl.abs(dv)))
    most = tl.maximum(most, tl.max(tl.maximum(tl.abs(dk_more), tl.abs(dv_more))))
    tl.store(largest + tl.num_programs(0) + tl.program_id(0), most)


def settings(tokens: int) -> dict[str, Any]:
    return {key: value for key, value in _settings(tokens, 80).items() if key != "WIDTH"}


def both(tensor: Tensor, rows: int) -> tuple[Any, Any]:
    return _tiles(tensor, rows, 64), _tiles(tensor, rows, 16)


@torch.library.custom_op("candidates::eighty_wide", mutates_args=())
def eighty_wide(qkv: Tensor, heads: int, scale: float) -> tuple[Tensor, Tensor]:
    """As `mid_attention`."""
    batch, tokens, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out = qkv.new_empty(batch, tokens, inner)
    lse = qkv.new_empty(batch, heads, tokens, dtype=torch.float32)
    sizes = settings(tokens)
    tiles, more = zip(both(qkv, ROWS), both(qkv, COLUMNS), both(out, ROWS), strict=True)
    _forward[(batch * heads * sizes["BLOCKS"],)](*tiles, *more, lse, tokens, heads, scale, **sizes)
    return out, lse


@eighty_wide.register_fake
def _(qkv: Tensor, heads: int, scale: float) -> tuple[Tensor, Tensor]:
    batch, tokens, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    return qkv.new_empty(batch, tokens, inner), qkv.new_empty(batch, heads, tokens, dtype=torch.float32)


@torch.library.custom_op("candidates::eighty_wide_backward", mutates_args=())
def eighty_wide_backward(
    gradient: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As `mid_attention_backward`."""
    batch, tokens, _ = out.shape
    result, sums, largest = _empty_gradients(qkv, heads)
    sizes = settings(tokens)
    grid = (batch * heads * sizes["BLOCKS"],)
    pairs = lse.new_empty(grid[0] * ROWS, 2)
    rows, columns, gradients, results = both(qkv, ROWS), both(qkv, COLUMNS), both(gradient, COLUMNS), both(result, ROWS)
    tiles, more = zip(rows, columns, results, strict=True)
    _to_queries[grid](gradient, out, *tiles, *more, lse, pairs, sums, largest, tokens, heads, scale, **sizes)
    tiles, more = zip(rows, columns, gradients, results, strict=True)
    times = 32 * WARPS // (2 * COLUMNS)
    _to_keys[grid](qkv, *tiles, *more, pairs, sums, largest, tokens, heads, scale, **sizes, TIMES=times)
    return result, sums, largest


@eighty_wide_backward.register_fake
def _(
    gradient: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_gradients(qkv, heads)


def torchs(qkv: Tensor, heads: int) -> Tensor:
    q, k, v = qkv.unflatten(-1, (3, heads, 80)).unbind(2)
    mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return mixed.transpose(1, 2).flatten(2)


def errors(batch: int, tokens: int, heads: int, kind: torch.dtype, device: str) -> dict[str, Any]:
    """How far results, gradients, their sums and the largest are from float64's, each over the largest number."""
    torch.manual_seed(0)
    scale = 80**-0.5
    qkv = torch.randn(batch, tokens, 3 * heads * 80, device=device).to(kind)
    given = torch.randn(batch, tokens, heads * 80, device=device).to(kind)
    exact = qkv.double().requires_grad_()
    right = torchs(exact, heads)
    (back,) = torch.autograd.grad(right, exact, given.double())
    out, lse = eighty_wide(qkv, heads, scale)
    packed, sums, largest = eighty_wide_backward(given, qkv, out, lse, heads, scale)
    pairs = [(out, right.detach()), (sums.sum(0), back.sum((0, 1))), (largest.amax(), back.abs().amax())]
    pairs += list(zip(packed.chunk(3, -1), back.chunk(3, -1), strict=True))
    found = [float((one.double() - two).abs().max() / two.abs().max()) for one, two in pairs]
    return {"tokens": tokens, "heads": heads, "kind": str(kind), "errors": [float(f"{one:.2g}") for one in found]}


def microseconds(call: Callable[[], Any]) -> float:
    """The median of 30, with a cold cache."""
    flush = torch.empty(2**27, device="cuda")
    times = []
    for turn in range(40):
        flush.zero_()
        torch.cuda._sleep(1_000_000)  # half a millisecond in which the CPU gets ahead
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        if turn >= 10:
            times.append(1000 * first.elapsed_time(last))
    return round(statistics.median(times), 1)


def kernels() -> dict[str, float]:
    scale = 80**-0.5
    qkv = torch.randn(BATCH, TOKENS, 3 * HEADS * 80, device="cuda").bfloat16()
    given = torch.randn(BATCH, TOKENS, HEADS * 80, device="cuda").bfloat16()
    out, lse = eighty_wide(qkv, HEADS, scale)
    learned = qkv.clone().requires_grad_()
    theirs = torchs(learned, HEADS)
    return {
        "forward": microseconds(lambda: eighty_wide(qkv, HEADS, scale)),
        "back": microseconds(lambda: eighty_wide_backward(given, qkv, out, lse, HEADS, scale)),
        "torch_forward": microseconds(lambda: torchs(qkv, HEADS)),
        "torch_back": microseconds(lambda: torch.autograd.grad(theirs, learned, given, retain_graph=True)),
        "torch_sums": microseconds(lambda: qkv.sum((0, 1), dtype=torch.float32)),
    }


def steps(wide: bool) -> dict[str, Any]:
    """Milliseconds of a step of H/14, the median of 5 times 10."""
    import vitrail
    from vitrail.model import attention
    from vitrail.model.kernels import packed_attention
    from vitrail.training.precision import Precision

    torch._dynamo.reset()
    attention.MID_WIDTHS = (32, 64, 80) if wide else (32, 64)
    packed_attention.mid_attention, packed_attention.mid_attention_backward = eighty_wide, eighty_wide_backward
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = vitrail.create("vit_h14", num_classes=1000).train()
        pictures, labels = torch.randn(BATCH, 3, 224, 224), torch.arange(BATCH)
    Precision("bf16_residual", torch.device("cuda")).prepare(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    compiled = torch.compile(model, dynamic=False)
    times, losses = [], []
    for turn in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(compiled(pictures).float(), labels)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
        torch.cuda.synchronize()
        losses.append(round(float(loss), 4))
        if turn:
            times.append(100 * (time.perf_counter() - start))
    return {"eighty_wide": wide, "ms": round(statistics.median(times), 2), "losses": losses}


def main() -> None:
    if torch.cuda.is_available():
        for kind in (torch.bfloat16, torch.float16):
            for tokens in (65, 197, 257, 577):
                print(json.dumps(errors(2, tokens, 3, kind, "cuda")), flush=True)
    else:
        for tokens in (65, 100, 257):
            print(json.dumps(errors(1, tokens, 2, torch.float32, "cpu")), flush=True)
    if "errors" in sys.argv[1:]:
        return
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "unit": "us"}
    print(json.dumps(about | kernels()), flush=True)
    for wide in (False, True):
        print(json.dumps(steps(wide)), flush=True)


if __name__ == "__main__":
    main()
