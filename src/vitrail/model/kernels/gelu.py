"""GELU of a hidden layer in one pass over memory, into numbers of the same type or of eight bits."""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 2048, 4
SMALL_BLOCK = 4096  # of numbers that come in eight bits
INTERPRETED: tl.constexpr = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")  # by a CPU, in tests


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
def passed_at_once(x):  # type: ignore[no-untyped-def]
    """The same by the GPU's own instruction for tanh, which is one slow instruction instead of two, and off by 2^-11 at
    most."""
    if INTERPRETED:
        return passed(x)
    inner = x * (0.7978845608 + 0.0356774081 * x * x)
    tanh = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [inner], dtype=tl.float32, is_pure=True, pack=1)
    return 0.5 + 0.5 * tanh


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
        part = passed_at_once(x)
    else:
        part = passed(x)  # in training, whose way back computes it again
    active = x * (1 / tl.load(scale)) * part
    active = tl.clamp(active, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    tl.store(result + place, active.to(result.dtype.element_ty), mask=place < count)


@torch.library.custom_op("vitrail::gelu", mutates_args=())
def gelu(hidden: Tensor) -> Tensor:
    """Of a contiguous tensor."""
    result = torch.empty_like(hidden)
    _forward[_programs(hidden, BLOCK)](hidden, result, hidden.numel(), BLOCK, num_warps=WARPS)
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
    block = BLOCK if hidden_scale is None else SMALL_BLOCK
    _in_eight_bits[_programs(hidden, block)](*given, largest, block, num_warps=WARPS)
    return result


@gelu_in_eight_bits.register_fake
def _(hidden: Tensor, scale: Tensor, hidden_scale: Tensor | None = None) -> Tensor:
    return torch.empty_like(hidden, dtype=torch.float8_e4m3fn)


def _programs(hidden: Tensor, block: int) -> tuple[int]:
    return (triton.cdiv(hidden.numel(), block),)
