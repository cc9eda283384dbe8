"""A step of AdamW for a weight of which a copy in half precision is multiplied: the gradient comes in the copy's
numbers, and the copy is written anew in the same pass."""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

AT_ONCE, WARPS = 2048, 4  # numbers that a program takes


@triton.jit
def _step(  # type: ignore[no-untyped-def]
    weight, half, gradient, mean, square, count, rate, factor, found_inf,
    numbers, decay, fresh1, fresh2, log_beta1, log_beta2, eps,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
    if found_inf is not None:
        numbers = tl.where(tl.load(found_inf) == 0.0, numbers, 0)
    seen = place < numbers
    steps, lr = tl.maximum(tl.load(count), 1.0).to(tl.float64), tl.load(rate).to(tl.float32)
    correction1 = (1.0 - tl.exp(steps * log_beta1)).to(tl.float32)
    correction2 = tl.sqrt(1.0 - tl.exp(steps * log_beta2)).to(tl.float32)
    g = tl.load(gradient + place, mask=seen, other=0.0).to(tl.float32)
    if factor is not None:
        g *= tl.load(factor).to(tl.float32)
    m = tl.load(mean + place, mask=seen, other=0.0)
    v = tl.load(square + place, mask=seen, other=0.0)
    w = tl.load(weight + place, mask=seen, other=0.0)
    m += fresh1 * (g - m)
    v += fresh2 * (g * g - v)
    w -= lr * decay * w
    w -= lr / correction1 * m / (tl.sqrt(v) / correction2 + eps)
    tl.store(mean + place, m, mask=seen)
    tl.store(square + place, v, mask=seen)
    tl.store(weight + place, w, mask=seen)
    tl.store(half + place, w.to(half.dtype.element_ty), mask=seen)


def adamw_step(
    weight: Tensor,
    half: Tensor,
    gradient: Tensor,  # of the half, in its numbers
    mean: Tensor,
    square: Tensor,
    count: Tensor,  # of steps, with this one
    rate: Tensor,
    *,
    factor: Tensor | None,  # of the gradient
    found_inf: Tensor | None,  # not 0: nothing changes
    decay: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """In place. All but the half and its gradient are in float32; single numbers lie on the device."""
    tensors = (weight, half, gradient, mean, square, count, rate, factor, found_inf)
    fresh, logs = [1 - beta for beta in betas], [math.log(beta) if beta > 0 else -math.inf for beta in betas]
    grid = (triton.cdiv(weight.numel(), AT_ONCE),)
    _step[grid](*tensors, weight.numel(), decay, *fresh, *logs, eps, AT_ONCE, num_warps=WARPS)
