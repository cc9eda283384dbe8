"""GELU of a hidden layer in one pass over memory, into numbers of the same type or of eight bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 2048, 4


@triton.jit
def normal(x):  # type: ignore[no-untyped-def]
    """As `vitrail.model.layers.normal`."""
    bell = tl.exp(-0.5 * x * x)
    t = 1 / (1 + 0.23164188 * tl.abs(x))
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * tail * bell
    return tl.where(x < 0, tail, 1 - tail), bell


@triton.jit
def passed(x):  # type: ignore[no-untyped-def]
    """The part of x that GELU's tanh form lets pass: half as many steps, which would take longer than to carry the
    numbers. It is off by 5e-4 at most, where eight bits are by a thirtieth of the number."""
    return 1 / (1 + tl.exp2(x * (-2.302208198 - 0.1029432397 * x * x)))  # (1 + tanh) / 2


@triton.jit
def _forward(hidden, result, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(hidden + place, mask=place < count, other=0.0).to(tl.float32)
    below, _ = normal(x)
    tl.store(result + place, (x * below).to(result.dtype.element_ty), mask=place < count)


@triton.jit
def _in_eight_bits(hidden, result, scale, hidden_scale, count, LARGEST: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(hidden + place, mask=place < count, other=0.0).to(tl.float32)
    if hidden_scale is not None:
        x *= tl.load(hidden_scale)
    active = tl.clamp(x * passed(x) * (1 / tl.load(scale)), -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    tl.store(result + place, active.to(result.dtype.element_ty), mask=place < count)


@torch.library.custom_op("vitrail::gelu", mutates_args=())
def gelu(hidden: Tensor) -> Tensor:
    """Of a contiguous tensor."""
    result = torch.empty_like(hidden)
    _forward[_programs(hidden)](hidden, result, hidden.numel(), BLOCK, num_warps=WARPS)
    return result


@gelu.register_fake
def _(hidden: Tensor) -> Tensor:
    return torch.empty_like(hidden)


@torch.library.custom_op("vitrail::gelu_in_eight_bits", mutates_args=())
def gelu_in_eight_bits(hidden: Tensor, scale: Tensor, hidden_scale: Tensor | None = None) -> Tensor:
    """Of a contiguous tensor (times its own scale, if it has one), over the scale; what is too large becomes the
    largest number there is."""
    result = torch.empty_like(hidden, dtype=torch.float8_e4m3fn)
    largest = torch.finfo(result.dtype).max
    given = hidden, result, scale, hidden_scale, hidden.numel()
    _in_eight_bits[_programs(hidden)](*given, largest, BLOCK, num_warps=WARPS)
    return result


@gelu_in_eight_bits.register_fake
def _(hidden: Tensor, scale: Tensor, hidden_scale: Tensor | None = None) -> Tensor:
    return torch.empty_like(hidden, dtype=torch.float8_e4m3fn)


def _programs(hidden: Tensor) -> tuple[int]:
    return (triton.cdiv(hidden.numel(), BLOCK),)
