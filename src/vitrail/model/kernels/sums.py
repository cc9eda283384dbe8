"""What programs of a kernel have each added up, added up over all of them: in one kernel, where a compiler has two."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 512, 16  # numbers that a program has before it


@triton.jit
def _add_up(parts, result, count, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    parts += tl.program_id(1).to(tl.int64) * count * columns
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in tl.range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)
        seen = (row < count)[:, None] & (column < columns)[None, :]
        total += tl.load(parts + row[:, None] * columns + column[None, :], mask=seen, other=0.0)
    tl.store(result + tl.program_id(1) * columns + column, tl.sum(total, 0), mask=column < columns)


@torch.library.custom_op("vitrail::added_up", mutates_args=())
def added_up(parts: Tensor) -> Tensor:
    """(kinds, columns) of (kinds, parts, columns), contiguous, in float32."""
    kinds, count, columns = parts.shape
    result = parts.new_empty(kinds, columns)
    _add_up[(triton.cdiv(columns, COLUMNS), kinds)](parts, result, count, columns, ROWS, COLUMNS, num_warps=4)
    return result


@added_up.register_fake
def _(parts: Tensor) -> Tensor:
    return parts.new_empty(parts.shape[0], parts.shape[2])
