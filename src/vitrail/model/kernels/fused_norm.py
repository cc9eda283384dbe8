"""Norms of a block in training: on the way back one kernel for all that happens to the residual stream there.

The stream goes into a norm, whose result goes into a branch, and goes on beside it. Back, its gradient is the sum of
the norm's and of what comes from beyond; and the norm's weights get theirs from the same numbers. One kernel reads each
of them once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from vitrail.model.layers import written

AT_ONCE = 2048  # numbers that a program has before it
PROGRAMS = 528  # at most: four for each multiprocessor of an H100 or H200
AHEAD = 3  # groups of rows that are being read at a time


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    x, weight, to_normed, beyond, result, weight_sums, bias_sums, rows, width, eps,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, RMS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDTH)
    scale = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    to_weight = tl.zeros((ROWS, WIDTH), tl.float32)
    to_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=AHEAD):
        row = first + tl.arange(0, ROWS)
        seen = (row < rows)[:, None] & (column < width)[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(x + place, mask=seen, other=0.0).to(tl.float32)
        given = tl.load(to_normed + place, mask=seen, other=0.0).to(tl.float32)
        if not RMS:
            value = tl.where(seen, value - (tl.sum(value, 1) / width)[:, None], 0.0)
        inverse = tl.rsqrt(tl.sum(value * value, 1) / width + eps)[:, None]
        value = value * inverse
        to_weight += given * value
        given_scaled = given * scale[None, :]
        found = given_scaled - value * (tl.sum(given_scaled * value, 1) / width)[:, None]
        if not RMS:
            to_bias += given
            found = found - (tl.sum(given_scaled, 1) / width)[:, None]
        found = found * inverse + tl.load(beyond + place, mask=seen, other=0.0).to(tl.float32)
        tl.store(result + place, found.to(result.dtype.element_ty), mask=seen)
    own = tl.program_id(0) * width + column
    tl.store(weight_sums + own, tl.sum(to_weight, 0), mask=column < width)
    if not RMS:
        tl.store(bias_sums + own, tl.sum(to_bias, 0), mask=column < width)


def _sizes(width: int) -> tuple[int, int]:
    """Rows and columns that a program has before it."""
    block = triton.next_power_of_2(width)
    return max(1, AT_ONCE // block), block


def _empty(x: Tensor) -> tuple[Tensor, Tensor]:
    programs = min(PROGRAMS, triton.cdiv(x.shape[0], _sizes(x.shape[1])[0]))
    return torch.empty_like(x), x.new_empty(2, programs, x.shape[1], dtype=torch.float32)


@torch.library.custom_op("vitrail::norm_backward", mutates_args=())
def norm_backward(
    x: Tensor, weight: Tensor, to_normed: Tensor, beyond: Tensor, eps: float, rms: bool
) -> tuple[Tensor, Tensor]:
    """Of (rows, width), contiguous: the gradient of the stream, and sums over some rows for the norm's weight and bias,
    (2, programs, width) in float32; without a bias the second are undefined."""
    result, sums = _empty(x)
    rows, width = x.shape
    sizes = _sizes(width)
    tensors = x, weight, to_normed, beyond, result, *sums
    warps = max(2, sizes[1] // 1024)
    _backward[(sums.shape[1],)](*tensors, rows, width, eps, *sizes, rms, AHEAD, num_warps=warps)
    return result, sums


@norm_backward.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _empty(x)


class FusedNorm(torch.autograd.Function):
    """The stream as it is, and its norm in numbers of a half-precision type: layer norm, or without a bias RMS norm."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, kind: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        x = written(x)
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.rms = eps, bias is None
        wide = x.float()
        if bias is None:
            normed = F.rms_norm(wide, wide.shape[-1:], weight.float(), eps)
        else:
            normed = F.layer_norm(wide, wide.shape[-1:], weight.float(), bias.float(), eps)
        return x.view_as(x), normed.to(kind)

    @staticmethod
    def backward(ctx: Any, beyond: Tensor, to_normed: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flat = [one.contiguous().flatten(0, -2) for one in (x, to_normed, beyond)]
        result, sums = norm_backward(flat[0], weight, flat[1], flat[2], ctx.eps, ctx.rms)
        to_bias = None if ctx.rms else sums[1].sum(0).to(weight.dtype)
        return result.view(x.shape), sums[0].sum(0).to(weight.dtype), to_bias, None, None
