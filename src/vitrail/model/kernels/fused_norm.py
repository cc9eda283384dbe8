"""Norms of a block in training: on the way there and on the way back one kernel for all that happens to the residual
stream at a norm.

There, a branch is added to the stream, with the bias of its last linear map and drop-path's factor; what comes of it
goes on, and its norm goes into the next branch. Back, the stream's gradient is the sum of the norm's and of what comes
from beyond; it is the branch's as well, adds up to the bias's, and the norm's weights get theirs from the same numbers.
Each kernel reads each of them once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from vitrail.model.kernels.sums import added_up
from vitrail.model.layers import written

AT_ONCE, WARPS = 4096, 4  # numbers that a program has before it
# on the way back: numbers, programs at most, four for each multiprocessor of an H100 or H200, and how many groups of
# rows are being read at a time
AT_ONCE_BACK, PROGRAMS, AHEAD = 2048, 528, 3


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x, branch, bias, factor, weight, norm_bias, stream, normed, rows, width, tokens, eps,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDTH)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    seen = (row < rows)[:, None] & (column < width)[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + place, mask=seen, other=0.0).to(tl.float32)
    added = tl.load(branch + place, mask=seen, other=0.0).to(tl.float32)
    if bias is not None:
        added += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    if factor is not None:
        added *= tl.load(factor + row // tokens, mask=row < rows, other=0.0).to(tl.float32)[:, None]
    wide = (value + added).to(stream.dtype.element_ty)
    tl.store(stream + place, wide, mask=seen)
    value = wide.to(tl.float32)  # the way back knows no other
    if norm_bias is not None:
        value = tl.where(seen, value - (tl.sum(value, 1) / width)[:, None], 0.0)
    value *= tl.rsqrt(tl.sum(value * value, 1) / width + eps)[:, None]
    value *= tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    if norm_bias is not None:
        value += tl.load(norm_bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    tl.store(normed + place, value.to(normed.dtype.element_ty), mask=seen)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    x, factor, weight, to_normed, beyond, result, to_branch, weight_sums, bias_sums, branch_sums,
    rows, width, tokens, eps,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDTH)
    scale = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    to_weight = tl.zeros((ROWS, WIDTH), tl.float32)
    to_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    to_branch_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=AHEAD):
        row = first + tl.arange(0, ROWS)
        seen = (row < rows)[:, None] & (column < width)[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(x + place, mask=seen, other=0.0).to(tl.float32)
        given = tl.load(to_normed + place, mask=seen, other=0.0).to(tl.float32)
        if bias_sums is not None:
            value = tl.where(seen, value - (tl.sum(value, 1) / width)[:, None], 0.0)
        inverse = tl.rsqrt(tl.sum(value * value, 1) / width + eps)[:, None]
        value = value * inverse
        to_weight += given * value
        given_scaled = given * scale[None, :]
        found = given_scaled - value * (tl.sum(given_scaled * value, 1) / width)[:, None]
        if bias_sums is not None:
            to_bias += given
            found = found - (tl.sum(given_scaled, 1) / width)[:, None]
        found = found * inverse + tl.load(beyond + place, mask=seen, other=0.0).to(tl.float32)
        tl.store(result + place, found.to(result.dtype.element_ty), mask=seen)
        if factor is not None:
            found *= tl.load(factor + row // tokens, mask=row < rows, other=0.0).to(tl.float32)[:, None]
        if to_branch is not None:
            tl.store(to_branch + place, found.to(to_branch.dtype.element_ty), mask=seen)
        if branch_sums is not None:
            to_branch_bias += found
    own = tl.program_id(0) * width + column
    tl.store(weight_sums + own, tl.sum(to_weight, 0), mask=column < width)
    if bias_sums is not None:
        tl.store(bias_sums + own, tl.sum(to_bias, 0), mask=column < width)
    if branch_sums is not None:
        tl.store(branch_sums + own, tl.sum(to_branch_bias, 0), mask=column < width)


def _sizes(width: int, at_once: int) -> tuple[int, int]:
    """Rows and columns that a program has before it."""
    block = triton.next_power_of_2(width)
    return max(1, at_once // block), block


@torch.library.custom_op("vitrail::sum_and_norm", mutates_args=())
def sum_and_norm(
    x: Tensor,  # (batch, tokens, width), contiguous, as is the branch
    branch: Tensor,
    bias: Tensor | None,  # of the branch, (width,)
    factor: Tensor | None,  # of the branch with its bias, (batch,)
    weight: Tensor,
    norm_bias: Tensor | None,  # None: an RMS norm
    eps: float,
    kind: torch.dtype,  # of the norm
) -> tuple[Tensor, Tensor]:
    """x + factor * (branch + bias), and its norm."""
    stream, normed = torch.empty_like(x), torch.empty_like(x, dtype=kind)
    rows, (tokens, width) = x.shape[0] * x.shape[1], x.shape[1:]
    sizes = _sizes(width, AT_ONCE)
    given = x, branch, bias, factor, weight, norm_bias, stream, normed, rows, width, tokens, eps, *sizes
    _forward[(triton.cdiv(rows, sizes[0]),)](*given, num_warps=WARPS)
    return stream, normed


@sum_and_norm.register_fake
def _(
    x: Tensor, branch: Tensor, bias: Tensor | None, factor: Tensor | None, weight: Tensor, norm_bias: Tensor | None,
    eps: float, kind: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(x), torch.empty_like(x, dtype=kind)


def _empty(x: Tensor, branch: torch.dtype | None, kinds: int) -> tuple[Tensor, Tensor, Tensor]:
    programs = min(PROGRAMS, triton.cdiv(x.shape[0] * x.shape[1], _sizes(x.shape[2], AT_ONCE_BACK)[0]))
    to_branch = x.new_empty(0) if branch is None else torch.empty_like(x, dtype=branch)
    return torch.empty_like(x), to_branch, x.new_empty(kinds, programs, x.shape[2], dtype=torch.float32)


@torch.library.custom_op("vitrail::norm_backward", mutates_args=())
def norm_backward(
    x: Tensor,  # the stream, (batch, tokens, width), contiguous, as are the gradients
    factor: Tensor | None,
    weight: Tensor,
    to_normed: Tensor,
    beyond: Tensor,
    eps: float,
    rms: bool,
    branch: torch.dtype | None,  # of the branch's gradient, if it is not the stream's
    has_bias: bool,  # whether the branch has
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of stream and branch, and sums over some rows for the norm's weight, its bias if it has one, and
    the branch's: (kinds, programs, width) in float32."""
    result, to_branch, sums = _empty(x, branch, 2 - rms + has_bias)
    rows, (tokens, width) = x.shape[0] * x.shape[1], x.shape[1:]
    given = x, factor, weight, to_normed, beyond, result, None if branch is None else to_branch
    places = sums[0], None if rms else sums[1], sums[-1] if has_bias else None
    sizes = _sizes(width, AT_ONCE_BACK)
    warps = max(2, sizes[1] // 1024)
    _backward[(sums.shape[1],)](*given, *places, rows, width, tokens, eps, *sizes, AHEAD, num_warps=warps)
    return result, to_branch, sums


@norm_backward.register_fake
def _(
    x: Tensor, factor: Tensor | None, weight: Tensor, to_normed: Tensor, beyond: Tensor, eps: float, rms: bool,
    branch: torch.dtype | None, has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty(x, branch, 2 - rms + has_bias)


class FusedNorm(torch.autograd.Function):
    """x + factor * (branch + bias), or without a branch x as it is, and its norm in numbers of a half-precision type:
    layer norm, or without a bias of its own RMS norm."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor | None,
        bias: Tensor | None,  # of the branch
        factor: Tensor | None,  # of the branch, one for each picture: (batch, 1, 1)
        weight: Tensor,
        norm_bias: Tensor | None,
        eps: float,
        kind: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        factor = None if factor is None else factor.flatten()
        if branch is None:
            x = written(x)
            stream, normed = x.view_as(x), _norm(x.float(), weight, norm_bias, eps).to(kind)
        else:
            given = x.contiguous(), branch.contiguous(), bias, factor
            stream, normed = sum_and_norm(*given, weight, norm_bias, eps, kind)
        ctx.save_for_backward(x if branch is None else stream, factor, weight)
        ctx.eps, ctx.rms = eps, norm_bias is None
        ctx.branch, ctx.bias = None if branch is None else branch.dtype, None if bias is None else bias.dtype
        return stream, normed

    @staticmethod
    def backward(ctx: Any, beyond: Tensor, to_normed: Tensor) -> tuple[Tensor | None, ...]:
        x, factor, weight = ctx.saved_tensors
        own = ctx.branch if factor is not None or ctx.branch != x.dtype else None
        given = x.contiguous(), factor, weight, to_normed.contiguous(), beyond.contiguous()
        result, to_branch, sums = norm_backward(*given, ctx.eps, ctx.rms, own, ctx.bias is not None)
        total = added_up(sums)
        return (
            result,
            None if ctx.branch is None else result if own is None else to_branch,
            None if ctx.bias is None else total[-1].to(ctx.bias),
            None,
            total[0].to(weight.dtype),
            None if ctx.rms else total[1].to(weight.dtype),
            None,
            None,
        )


def _norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    if bias is None:
        return F.rms_norm(x, x.shape[-1:], weight.float(), eps)
    return F.layer_norm(x, x.shape[-1:], weight.float(), bias.float(), eps)
