"""Attention of one picture or a few, when serving: a program has some queries and all keys at once.

The usual kernels pass by the keys step by step, and for one picture are too few programs for a GPU. A compiler starts
this one by itself, for which there must be no descriptors.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, WARPS = 16, 4  # queries of a program
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


@torch.library.triton_op("vitrail::single_attention", mutates_args=())
def single_attention(
    qkv: Tensor,  # (batch, tokens, 3 * heads * width), contiguous, bfloat16 or float16; width a power of 2 from 16 on
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
