"""Attention in training with its projections computed in eight bits; see `vitrail.model.fp8_training`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitrail.model import fp8_training as eight
from vitrail.model.fp8_training import Eight
from vitrail.model.kernels.packed_attention import attend, attend_back


class AttentionInEightBits(torch.autograd.Function):
    """As `PackedAttention`, of normed tokens not longer than `reach`; the linear map's weight and bias as they are."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,  # of the linear map, (3 * heads * width, channels)
        bias: Tensor | None,
        reach: Tensor,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        turn: Tensor | None,
        heads: int,
        scale: float,
        eps: float,
    ) -> Tensor:
        factor = eight.scale_for(reach, eight.TOKEN)
        tokens = Eight(eight.rounded(x.flatten(0, 1), factor, eight.TOKEN), 1 / factor)
        small = eight.in_eight_bits(weight)
        qkv = eight.product(tokens, small.along, x.dtype, bias, fast=eight.FAST_SUMS).view(*x.shape[:2], -1)
        rest = heads, scale, eps
        out, kept = attend(qkv, q_weight, k_weight, turn, rest)
        ctx.save_for_backward(*tokens, *small.across, *kept)
        ctx.rest, ctx.kind, ctx.bias_kind = rest, weight.dtype, None if bias is None else bias.dtype
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tokens, weight, kept = Eight(*ctx.saved_tensors[:2]), Eight(*ctx.saved_tensors[2:4]), ctx.saved_tensors[4:]
        packed, to_norms, _, largest = attend_back(gradient.contiguous(), kept, ctx.rest)
        largest = None if largest is None else largest.amax()
        along, across, sums = eight.gradient_both_ways(packed.flatten(0, 1), largest)
        to_x = eight.to_tokens(along, weight, gradient.dtype).view(*gradient.shape[:2], -1)
        turned = Eight(eight.turned(tokens.numbers), tokens.unit)
        to_bias = None if ctx.bias_kind is None else sums.to(ctx.bias_kind)
        return to_x, eight.to_weight(across, turned, ctx.kind), to_bias, None, *to_norms, None, None, None, None
