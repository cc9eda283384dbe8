"""Attention in training with queries, keys and values left as one linear map packs them.

The map and the kernel are one function to autograd: so the kernel that computes the gradients also adds them up for the
map's bias, and neither way is anything copied to be packed or unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.model.kernel_sizes import SHORT
from vitrail.model.kernels.mid_attention import mid_attention, mid_attention_backward
from vitrail.model.kernels.short_attention import short_attention, short_attention_backward
from vitrail.model.kernels.sums import added_up
from vitrail.model.kernels.turned_attention import turned_attention, turned_attention_backward

Rest = tuple[int, float, float]  # heads, the factor of products, the norms' epsilon


def attend(
    qkv: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, turn: Tensor | None, rest: Rest
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Attention by the kernel for so many tokens, and what its way back wants."""
    if qkv.shape[1] <= SHORT:
        out = short_attention(qkv, q_weight, k_weight, turn, *rest)
        return out, (qkv, q_weight, k_weight, turn, None, None, None)
    if q_weight is not None or turn is not None:
        out, lse, made = turned_attention(qkv, q_weight, k_weight, turn, *rest)
        return out, (qkv, q_weight, k_weight, turn, out, lse, made)
    out, lse = mid_attention(qkv, *rest[:2])
    return out, (qkv, None, None, None, out, lse, None)


def attend_back(gradient: Tensor, kept: Sequence[Any], rest: Rest) -> tuple[Tensor, Any, Tensor, Tensor | None]:
    """Packed gradients, those of both norms, sums of the packed over some tokens, and the largest of some programs', if
    the kernel tells."""
    qkv, q_weight, k_weight, turn, out, lse, made = kept
    before = q_weight, k_weight, turn
    if made is not None:
        packed, norms, sums = turned_attention_backward(gradient, qkv, made, out, lse, *before, *rest)
    elif out is not None:
        packed, sums, largest = mid_attention_backward(gradient, qkv, out, lse, *rest[:2])
        return packed, (None, None), sums, largest
    else:
        packed, norms, sums = short_attention_backward(gradient, qkv, *before, *rest)
    return packed, (None, None) if q_weight is None else norms.sum(1), sums, None


class PackedAttention(torch.autograd.Function):
    """(batch, tokens, heads * width) of (batch, tokens, channels) in a half-precision type, in which the linear map is
    taken."""

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
        ctx.kinds = weight.dtype, None if bias is None else bias.dtype
        weight = weight.to(x.dtype)
        qkv = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
        ctx.rest = heads, scale, eps
        out, kept = attend(qkv, q_weight, k_weight, turn, ctx.rest)
        ctx.save_for_backward(x, weight, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *kept = ctx.saved_tensors
        packed, to_norms, sums, _ = attend_back(gradient.contiguous(), kept, ctx.rest)
        to_bias = None if ctx.kinds[1] is None else added_up(sums[None])[0].to(ctx.kinds[1])
        to_weight = (packed.flatten(0, 1).T @ x.flatten(0, 1)).to(ctx.kinds[0])
        return packed @ weight, to_weight, to_bias, *to_norms, None, None, None, None
