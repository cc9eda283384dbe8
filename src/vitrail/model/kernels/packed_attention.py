"""Attention in training with queries, keys and values left as one linear map packs them.

The map and the kernel are one function to autograd: so the kernel that computes the gradients also adds them up for the
map's bias, and neither way is anything copied to be packed or unpacked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.model.kernel_sizes import SHORT
from vitrail.model.kernels.mid_attention import mid_attention, mid_attention_backward
from vitrail.model.kernels.short_attention import short_attention, short_attention_backward


class PackedAttention(torch.autograd.Function):
    """(batch, tokens, heads * width) of (batch, tokens, channels); all but norms and rotations of one half-precision
    type."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,  # of the linear map, (3 * heads * width, channels)
        bias: Tensor | None,
        q_weight: Tensor | None,  # of the RMS norms, (width,) in float32; None: there are none
        k_weight: Tensor | None,
        turn: Tensor | None,  # RoPE: (2, 1 or batch, 1, tokens, width / 2) in float32
        heads: int,
        scale: float,
        eps: float,
    ) -> Tensor:
        qkv = F.linear(x, weight, bias)
        lse = None
        if x.shape[1] <= SHORT:
            out = short_attention(qkv, q_weight, k_weight, turn, heads, scale, eps)
        else:
            out, lse = mid_attention(qkv, heads, scale)
        kept = None if lse is None else out
        ctx.save_for_backward(x, weight, qkv, q_weight, k_weight, turn, kept, lse)
        ctx.rest, ctx.has_bias = (heads, scale, eps), bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, qkv, q_weight, k_weight, turn, out, lse = ctx.saved_tensors
        gradient, to_norms = gradient.contiguous(), (None, None)
        if out is not None:
            packed, sums = mid_attention_backward(gradient, qkv, out, lse, *ctx.rest[:2])
        else:
            packed, norms, sums = short_attention_backward(gradient, qkv, q_weight, k_weight, turn, *ctx.rest)
            to_norms = norms.sum(1) if q_weight is not None else to_norms
        to_bias = sums.sum(0).to(packed.dtype) if ctx.has_bias else None
        to_weight = packed.flatten(0, 1).T @ x.flatten(0, 1)
        return packed @ weight, to_weight, to_bias, *to_norms, None, None, None, None
