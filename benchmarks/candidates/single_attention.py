"""A candidate: attention of one picture or a few, when serving, with all keys before a program at once.

    python benchmarks/candidates/single_attention.py            # one GPU: errors, microseconds, whole models

The usual kernels pass by the keys step by step, and for one picture have too few programs for a GPU. Here a program has
few queries and all keys: it reads, multiplies, and is done. A compiler starts the kernel by itself, for which there
must be no descriptors. Kernels are timed as 12 in a row played from a CUDA graph, beside torch's attention on the same
packed projections; models compiled with CUDA graphs, with and without it. For many pictures the same kernel with more
queries stands beside the one for training.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from typing import Any

import torch
import triton
import triton.language as tl
from playing import microseconds
from torch import Tensor
from torch.nn import functional as F

import vitrail
from vitrail.model.attention import Attention
from vitrail.model.kernels.mid_attention import mid_attention

VARIANTS = ((16, 8), (16, 4), (32, 8), (32, 4), (64, 4))  # queries of a program, and its warps
MANY = ((64, 4), (64, 8), (128, 8))
ROWS, WARPS = VARIANTS[0]
HEADS = {"vit_ti16": 3, "vit_s16": 6, "vit_b16": 12}
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


def _as_it_is(kernel: Any) -> Any:
    return kernel


# what Triton interprets is no kernel to torch
wrap_triton: Any = _as_it_is if os.environ.get("TRITON_INTERPRET") == "1" else torch.library.wrap_triton


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv, out, tokens, read, heads, scale,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    one = tl.program_id(1)
    batch, head = one // heads, (one % heads) * WIDTH
    inner = heads * WIDTH
    key, column = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = key < tokens
    qkv += batch.to(tl.int64) * tokens * 3 * inner + head
    keys = qkv + inner + key[:, None] * 3 * inner + column[None, :]
    k = tl.load(keys, mask=there[:, None], other=0.0)
    v = tl.load(keys + inner, mask=there[:, None], other=0.0)
    q = tl.load(qkv + row[:, None] * 3 * inner + column[None, :], mask=(row < read)[:, None], other=0.0)
    products = tl.where(there[None, :], tl.dot(q, tl.trans(k)) * (scale * LOG2E), float("-inf"))
    weights = tl.exp2(products - tl.max(products, 1)[:, None])
    mixed = tl.dot(weights.to(v.dtype), v) * (1 / tl.sum(weights, 1))[:, None]
    out += batch.to(tl.int64) * read * inner + head
    place = out + row[:, None] * inner + column[None, :]
    tl.store(place, mixed.to(out.dtype.element_ty), mask=(row < read)[:, None])


@torch.library.triton_op("candidates::single_attention", mutates_args=())
def single_attention(
    qkv: Tensor,  # (batch, tokens, 3 * heads * width), contiguous, bfloat16 or float16; width 32, 64 or 128
    heads: int,
    scale: float,  # above 0
    read: int,  # only the first tokens' results are wanted
) -> Tensor:
    """(batch, read, heads * width)."""
    batch, tokens, inner = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out = qkv.new_empty(batch, read, inner)
    grid = (triton.cdiv(read, ROWS), batch * heads)
    sizes = {"ROWS": ROWS, "TOKENS": max(16, triton.next_power_of_2(tokens)), "WIDTH": inner // heads}
    wrap_triton(_forward)[grid](qkv, out, tokens, read, heads, scale, **sizes, num_warps=WARPS)
    return out


def torchs(qkv: Tensor, heads: int, scale: float, read: int) -> Tensor:
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).unbind(2)
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    return F.scaled_dot_product_attention(q[:, :, :read], k, v, scale=scale).transpose(1, 2).flatten(2)


def error(qkv: Tensor, heads: int, read: int) -> float:
    """How far it is from float64, over the largest number."""
    scale = (qkv.shape[2] // 3 // heads) ** -0.5
    right = torchs(qkv.double(), heads, scale, read)
    return float((single_attention(qkv, heads, scale, read) - right).abs().max() / right.abs().max())


def attend(self: Attention, x: Tensor, *given: Any, read: int | None = None, **options: Any) -> Tensor:
    """In place of `Attention.forward`, for plain models."""
    mixed = single_attention(self.qkv(x), self.num_heads, self.factor, read or x.shape[1])
    found: Tensor = self.proj(mixed)
    return found


def latency(name: str, batch: int) -> tuple[float, Tensor]:
    """Microseconds of a compiled model with CUDA graphs, and what it answers."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = vitrail.create(name, zero_head=False).cuda().bfloat16().eval()
    pictures = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    run = torch.compile(model, mode="reduce-overhead")
    times = []
    with torch.inference_mode():
        for turn in range(310):
            torch.cuda.synchronize()
            start = time.perf_counter()
            answers = run(pictures)
            torch.cuda.synchronize()
            if turn >= 10:
                times.append(1e6 * (time.perf_counter() - start))
        return statistics.median(times), answers.float().clone()


def main() -> None:
    global ROWS, WARPS
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "unit": "us"}))
    for name, heads in HEADS.items():
        for batch in (1, 4):
            qkv = torch.randn(batch, 197, 3 * heads * 64, device="cuda", dtype=torch.bfloat16)
            row: dict[str, Any] = {"model": name, "batch": batch}
            row["torch"] = microseconds(lambda qkv=qkv, heads=heads: torchs(qkv, heads, 0.125, 197))
            for ROWS, WARPS in VARIANTS:
                spent = microseconds(lambda qkv=qkv, heads=heads: single_attention(qkv, heads, 0.125, 197))
                row[f"{ROWS} rows, {WARPS} warps"] = spent
                row["error"] = max(row.get("error", 0.0), error(qkv, heads, 197), error(qkv, heads, 1))
            print(json.dumps(row), flush=True)
    qkv = torch.randn(256, 197, 3 * 12 * 64, device="cuda", dtype=torch.bfloat16)
    row = {"model": "vit_b16", "batch": 256, "torch": microseconds(lambda: torchs(qkv, 12, 0.125, 197), 4)}
    row["training's"] = microseconds(lambda: mid_attention(qkv, 12, 0.125), 4)
    for ROWS, WARPS in MANY:
        row[f"{ROWS} rows, {WARPS} warps"] = microseconds(lambda: single_attention(qkv, 12, 0.125, 197), 4)
    print(json.dumps(row), flush=True)
    ROWS, WARPS = VARIANTS[0]
    usual = Attention.forward
    for name in HEADS:
        for batch in (1, 4):
            spent, right = latency(name, batch)
            Attention.forward = attend  # type: ignore[method-assign,assignment]
            with_it, found = latency(name, batch)
            Attention.forward = usual  # type: ignore[method-assign]
            apart = float((found - right).abs().max() / right.std())
            row = {"model": name, "batch": batch, "compiled": round(spent, 1), "with it": round(with_it, 1)}
            print(json.dumps(row | {"apart": round(apart, 4)}), flush=True)


if __name__ == "__main__":
    main()
