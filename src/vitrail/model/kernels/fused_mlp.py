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

from vitrail.model.layers import normal

ROWS, COLUMNS, STEPS = 16, 256, 8  # of a block; blocks that a program goes through, one below the other


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    hidden, gradient, result, active, sums, rows, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    kind = result.dtype.element_ty
    for step in range(STEPS):
        row = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        seen = (row < rows)[:, None] & (column < columns)[None, :]
        place = row.to(tl.int64)[:, None] * columns + column[None, :]
        x = tl.load(hidden + place, mask=seen, other=0.0).to(tl.float32)
        given = tl.load(gradient + place, mask=seen, other=0.0).to(tl.float32)
        # the normal distribution as in `layers.normal`
        bell = tl.exp(-0.5 * x * x)
        t = 1 / (1 + 0.23164188 * tl.abs(x))
        tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
        tail = 0.5 * tail * bell
        below = tl.where(x < 0, tail, 1 - tail)
        found = given * (below + x * bell * 0.3989422804014327)
        total += tl.sum(found, 0)
        tl.store(result + place, found.to(kind), mask=seen)
        tl.store(active + place, (x * below).to(kind), mask=seen)
    tl.store(sums + tl.program_id(0) * columns + column, total, mask=column < columns)


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
    _backward[grid](hidden, gradient, result, active, sums, rows, columns, ROWS, COLUMNS, STEPS, num_warps=4)
    return result, active, sums


@gelu_backward.register_fake
def _(hidden: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sums = hidden.new_empty(_programs(hidden), hidden.shape[1], dtype=torch.float32)
    return torch.empty_like(hidden), torch.empty_like(hidden), sums


class FusedMlp(torch.autograd.Function):
    """fc2(gelu(fc1(x))) for tokens, weights and biases of one half-precision type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        hidden = torch.addmm(bias1, tokens, weight1.T)
        ctx.save_for_backward(tokens, hidden, weight1, weight2)
        if torch.compiler.is_compiling():
            wide = hidden.float()
            active = (wide * normal(wide)[0]).to(hidden.dtype)
        else:
            active = F.gelu(hidden)
        return torch.addmm(bias2, active, weight2.T).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        tokens, hidden, weight1, weight2 = ctx.saved_tensors
        shape = gradient.shape
        gradient = gradient.flatten(0, -2)
        before, active, sums = gelu_backward(hidden, gradient @ weight2)
        return (
            (before @ weight1).view(*shape[:-1], -1),
            before.T @ tokens,
            sums.sum(0).to(before.dtype),
            gradient.T @ active,
            gradient.sum(0),
        )
