"""The MLP of a block in training: its two linear maps with one kernel between them on the way back.

What an MLP costs beside its matrix products is carrying the hidden layer, four times as wide as the tokens, to and from
memory. On the way back one kernel reads it once, with its gradient, and writes the gradient before the activation, the
activation itself (which therefore need not be kept) and, for the bias, sums over some rows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from vitrail.model.kernels.gelu import gelu, normal
from vitrail.model.kernels.sums import added_up

ROWS, COLUMNS, STEPS = 16, 128, 8  # of a block; blocks that a program goes through, one below the other
AHEAD = 3  # blocks that are being read at a time


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    hidden, gradient, result, active, sums, rows, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    kind = result.dtype.element_ty
    for step in tl.range(STEPS, num_stages=AHEAD):
        row = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        seen = (row < rows)[:, None] & (column < columns)[None, :]
        place = row.to(tl.int64)[:, None] * columns + column[None, :]
        x = tl.load(hidden + place, mask=seen, other=0.0).to(tl.float32)
        given = tl.load(gradient + place, mask=seen, other=0.0).to(tl.float32)
        below, bell = normal(x)
        found = given * (below + x * bell * 0.3989422804014327)
        total += found
        tl.store(result + place, found.to(kind), mask=seen)
        tl.store(active + place, (x * below).to(kind), mask=seen)
    tl.store(sums + tl.program_id(0) * columns + column, tl.sum(total, 0), mask=column < columns)


def _programs(hidden: Tensor) -> int:
    return triton.cdiv(hidden.shape[0], ROWS * STEPS)


@torch.library.custom_op("vitrail::gelu_backward", mutates_args=())
def gelu_backward(hidden: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of (rows, columns), contiguous: the gradient before GELU, GELU itself, and sums of the gradient over some rows:
    (programs, columns) in float32."""
    result, active = torch.empty_like(hidden), torch.empty_like(hidden)
    rows, columns = hidden.shape
    sums = hidden.new_empty(_programs(hidden), columns, dtype=torch.float32)
    grid = (len(sums), triton.cdiv(columns, COLUMNS))
    _backward[grid](hidden, gradient, result, active, sums, rows, columns, ROWS, COLUMNS, STEPS, AHEAD, num_warps=4)
    return result, active, sums


@gelu_backward.register_fake
def _(hidden: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sums = hidden.new_empty(_programs(hidden), hidden.shape[1], dtype=torch.float32)
    return torch.empty_like(hidden), torch.empty_like(hidden), sums


class FusedMlp(torch.autograd.Function):
    """fc2(gelu(fc1(x))) for tokens of a half-precision type, in which weights and biases are taken; without the second
    bias if that is None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor | None) -> Tensor:
        tokens = x.flatten(0, -2)
        ctx.kinds = [None if one is None else one.dtype for one in (weight1, bias1, weight2, bias2)]
        weight1, bias1, weight2 = (one.to(x.dtype) for one in (weight1, bias1, weight2))
        hidden = torch.addmm(bias1, tokens, weight1.T)
        ctx.save_for_backward(tokens, hidden, weight1, weight2)
        return F.linear(gelu(hidden), weight2, None if bias2 is None else bias2.to(x.dtype)).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tokens, hidden, weight1, weight2 = ctx.saved_tensors
        shape = gradient.shape
        gradient = gradient.flatten(0, -2)
        before, active, sums = gelu_backward(hidden, gradient @ weight2)
        return (
            (before @ weight1).view(*shape[:-1], -1),
            (before.T @ tokens).to(ctx.kinds[0]),
            added_up(sums[None])[0].to(ctx.kinds[1]),
            (gradient.T @ active).to(ctx.kinds[2]),
            None if ctx.kinds[3] is None else gradient.sum(0, dtype=ctx.kinds[3]),
        )
