"""Numbers of eight bits for products in training, each tensor the two ways round that products want.

A GPU multiplies eight-bit matrices only where both lie along the sum: the gradient of a weight, a sum over tokens,
wants tokens and gradients transposed. One kernel reads numbers once and writes them both ways round; the one between
the MLP's products on the way back does so with what it computes. Four rows at a time become words of 32 bits, and
words are what is transposed. Transposed copies have their rows filled up with zeros to a multiple of 16 numbers, as
products want them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitrail.model.kernels.gelu import INTERPRETED, passed

ROWS, COLUMNS, WARPS = 128, 64, 8  # of a block
MULTIPLE = 16  # to which rows of a transposed copy are filled up
TOKEN, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2

# four at a time; a pair of which Triton takes one is spoilt where NVIDIA's assembler has joined it to another pair
FOUR = (
    "{{ .reg .b16 low, high; cvt.rn.satfinite.{0}x2.f32 low, $2, $1; cvt.rn.satfinite.{0}x2.f32 high, $4, $3; "
    "mov.b32 $0, {{low, high}}; }}"
)
TO_TOKEN: tl.constexpr = tl.constexpr(FOUR.format("e4m3"))
TO_GRADIENT: tl.constexpr = tl.constexpr(FOUR.format("e5m2"))


@triton.jit
def _rounded(x, scale, to: tl.constexpr):  # type: ignore[no-untyped-def]
    """Eight bits, as integers; what is too large becomes the largest number there is, what is no number stays none."""
    x = x * scale
    if not INTERPRETED:
        return tl.inline_asm_elementwise(to, "=r,r,r,r,r", [x], dtype=tl.uint8, is_pure=True, pack=4)
    if to == TO_TOKEN:
        return tl.clamp(x, -448.0, 448.0, tl.PropagateNan.ALL).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return tl.clamp(x, -57344.0, 57344.0, tl.PropagateNan.ALL).to(tl.float8e5).to(tl.uint8, bitcast=True)


@triton.jit
def _block(columns, padded, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of this program's block, as it lies with every fourth row, and transposed in words: where it begins, places in
    it, and which of its columns and words there are; and these rows."""
    first, left = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    four, column = tl.arange(0, ROWS // 4), tl.arange(0, COLUMNS)
    words = padded // 4
    starts = first.to(tl.int64) * columns + left, left.to(tl.int64) * words + first // 4
    places = 4 * four[:, None] * columns + column[None, :], column[:, None] * words + four[None, :]
    here, there = left + column < columns, first // 4 + four < words
    return starts, places, (here[None, :], here[:, None] & there[None, :]), (first + 4 * four)[:, None]


@triton.jit
def _put_sums(sums, value, columns, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(sums + tl.program_id(0) * columns + column, tl.sum(value, 0), mask=column < columns)


@triton.jit
def _both_ways(  # type: ignore[no-untyped-def]
    x, scale, along, across, sums, rows, columns, padded,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TO: tl.constexpr, ADD_UP: tl.constexpr,
):  # fmt: skip
    starts, places, seen, row = _block(columns, padded, ROWS, COLUMNS)
    word = tl.zeros((ROWS // 4, COLUMNS), tl.uint32)
    total = tl.zeros((ROWS // 4, COLUMNS), tl.float32)
    for one in tl.static_range(4):
        place, here = starts[0] + one * columns + places[0], seen[0] & (row + one < rows)
        small = tl.load(x + place, mask=here, other=0)
        if TO is not None:
            value = small.to(tl.float32)
            small = _rounded(value, tl.load(scale), TO)
            tl.store(along + place, small, mask=here)
            total += value
        word |= small.to(tl.uint32) << (8 * one)
    if ADD_UP:
        _put_sums(sums, total, columns, COLUMNS)
    tl.store(across + starts[1] + places[1], tl.trans(word), mask=seen[1])


@triton.jit
def _gelu_backward(  # type: ignore[no-untyped-def]
    hidden, gradient, active_scale, before_scale, before, before_turned, active_turned, sums, rows, columns, padded,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    starts, places, seen, row = _block(columns, padded, ROWS, COLUMNS)
    to_active, to_before = tl.load(active_scale), tl.load(before_scale)
    word = tl.zeros((ROWS // 4, COLUMNS), tl.uint32)
    active_word = tl.zeros((ROWS // 4, COLUMNS), tl.uint32)
    total = tl.zeros((ROWS // 4, COLUMNS), tl.float32)
    for one in tl.static_range(4):
        place, here = starts[0] + one * columns + places[0], seen[0] & (row + one < rows)
        x = tl.load(hidden + place, mask=here, other=0.0).to(tl.float32)
        given = tl.load(gradient + place, mask=here, other=0.0).to(tl.float32)
        part = passed(x)
        found = given * (part + x * part * (1 - part) * (1.5957691216 + 0.2140644488 * x * x))
        total += found
        small = _rounded(found, to_before, TO_GRADIENT)
        tl.store(before + place, small, mask=here)
        word |= small.to(tl.uint32) << (8 * one)
        active_word |= _rounded(x * part, to_active, TO_TOKEN).to(tl.uint32) << (8 * one)
    _put_sums(sums, total, columns, COLUMNS)
    tl.store(before_turned + starts[1] + places[1], tl.trans(word), mask=seen[1])
    tl.store(active_turned + starts[1] + places[1], tl.trans(active_word), mask=seen[1])


def _turned(x: Tensor, kind: torch.dtype) -> Tensor:
    return x.new_empty(x.shape[1], -(-x.shape[0] // MULTIPLE) * MULTIPLE, dtype=kind)


def _launch(x: Tensor, scale: Tensor, along: Tensor, across: Tensor, sums: Tensor | None, to: Any) -> None:
    rows, columns = x.shape
    words = across.view(torch.uint32)
    tensors = x, scale, along.view(torch.uint8), words, words if sums is None else sums
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS))
    sizes = rows, columns, across.shape[1], ROWS, COLUMNS
    _both_ways[grid](*tensors, *sizes, to, sums is not None, num_warps=WARPS)


@torch.library.custom_op("vitrail::tokens_both_ways", mutates_args=())
def tokens_both_ways(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Of (rows, columns), contiguous: x times the scale in e4m3, as it lies and transposed."""
    along, across = torch.empty_like(x, dtype=TOKEN), _turned(x, TOKEN)
    _launch(x, scale, along, across, None, TO_TOKEN)
    return along, across


@tokens_both_ways.register_fake
def _(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, dtype=TOKEN), _turned(x, TOKEN)


@torch.library.custom_op("vitrail::gradient_both_ways", mutates_args=())
def gradient_both_ways(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same in e5m2, and sums of x over some rows: (programs, columns) in float32."""
    along, across, sums = _empty_gradient(x)
    _launch(x, scale, along, across, sums, TO_GRADIENT)
    return along, across, sums


def _empty_gradient(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sums = x.new_empty(triton.cdiv(x.shape[0], ROWS), x.shape[1], dtype=torch.float32)
    return torch.empty_like(x, dtype=GRADIENT), _turned(x, GRADIENT), sums


@gradient_both_ways.register_fake
def _(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_gradient(x)


@torch.library.custom_op("vitrail::turn_eight_bits", mutates_args=())
def turn_eight_bits(x: Tensor) -> Tensor:
    """The transposed copy of (rows, columns), contiguous, of eight bits."""
    across = _turned(x, x.dtype)
    plain = x.view(torch.uint8)
    _launch(plain, plain, plain, across, None, None)
    return across


@turn_eight_bits.register_fake
def _(x: Tensor) -> Tensor:
    return _turned(x, x.dtype)


@torch.library.custom_op("vitrail::gelu_backward_in_eight_bits", mutates_args=())
def gelu_backward_in_eight_bits(
    hidden: Tensor, gradient: Tensor, active_scale: Tensor, before_scale: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of (rows, columns), contiguous: the gradient before GELU times its scale in e5m2, as it lies and transposed, GELU
    itself times its scale in e4m3, transposed, and sums of the gradient over some rows: (programs, columns)."""
    before, before_turned, active_turned, sums = _empty_gelu(hidden)
    rows, columns = hidden.shape
    words = before_turned.view(torch.uint32), active_turned.view(torch.uint32)
    tensors = hidden, gradient, active_scale, before_scale, before.view(torch.uint8), *words, sums
    grid = (len(sums), triton.cdiv(columns, COLUMNS))
    sizes = rows, columns, before_turned.shape[1], ROWS, COLUMNS
    _gelu_backward[grid](*tensors, *sizes, num_warps=WARPS)
    return before, before_turned, active_turned, sums


def _empty_gelu(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sums = hidden.new_empty(triton.cdiv(hidden.shape[0], ROWS), hidden.shape[1], dtype=torch.float32)
    turned = _turned(hidden, GRADIENT), _turned(hidden, TOKEN)
    return torch.empty_like(hidden, dtype=GRADIENT), *turned, sums


@gelu_backward_in_eight_bits.register_fake
def _(hidden: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _empty_gelu(hidden)
