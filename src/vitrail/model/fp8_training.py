"""Training in eight-bit floating point: the linear maps inside the blocks, on the way there and on both ways back.

Weights and tokens have three bits of mantissa (e4m3), gradients two and a wider exponent (e5m2), and each tensor is
multiplied by one power of two. It is found anew in every step, so that a step depends on nothing but weights and
pictures: from the largest number there is; for tokens on their way there from what they cannot exceed, which takes no
look at them. A bound may be some hundred times too high and costs nothing, as these numbers are floating. Sums, results
and all else are as with `bf16_residual`.

GPUs since Ada and Hopper have such products. Elsewhere numbers are rounded in the same way and multiplied in float32:
slower than bfloat16, and a way to see what accuracy it costs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.model.devices import HAS_TRITON, multiplies_eight_bits
from vitrail.model.halves import has_half, trained_weight

TOKEN, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
FEWEST = 1024  # tokens: of fewer, products are too short to gain by it
PARTS = {"qkv": ("attn.qkv",), "proj": ("attn.proj",), "mlp": ("mlp.fc1", "mlp.fc2")}
STEEPEST = 1.13  # GELU's slope
# whether sums stay in the tensor cores, with 14 bits: for some thousand terms that is finer than the terms are, for the
# fifty thousand tokens of a weight's gradient it is not
FAST_SUMS, FAST_SUMS_OVER_TOKENS = True, False


class Eight(NamedTuple):
    """A matrix of eight-bit numbers that lies along the sum of its product: values are `numbers * unit`."""

    numbers: Tensor
    unit: Tensor


class Weight(NamedTuple):
    """A weight both ways round."""

    along: Eight  # (out, in)
    across: Eight  # (in, out)


class EightBitLinear(nn.Linear):
    """A linear map that trains in eight bits, and answers as any other."""

    def forward(self, x: Tensor, largest: Tensor | None = None) -> Tensor:
        """`largest`: what no number of x exceeds, if that is known."""
        if not trains_in_eight_bits(self, x):
            return super().forward(x)
        return LinearInEightBits.apply(x.to(kind_of(x)), self.weight, self.bias, largest)


def use_eight_bits(blocks: nn.ModuleList, parts: Collection[str] = tuple(PARTS)) -> None:
    """Makes the linear maps of these blocks train so, in place; names, weights and answers stay as they are."""
    endings = {name for part in parts for name in PARTS[part]}
    for block in blocks:
        for name, linear in block.named_modules():
            if name in endings and isinstance(linear, nn.Linear):
                linear.__class__ = EightBitLinear


def trains_in_eight_bits(linear: nn.Module, x: Tensor) -> bool:
    """Whether a map takes these tokens in eight bits: in training, if there are enough, in widths that can be had."""
    if not isinstance(linear, EightBitLinear) or not linear.training:
        return False
    fits = linear.in_features % 16 == 0 and linear.out_features % 16 == 0
    return fits and x.numel() // x.shape[-1] >= FEWEST


def kind_of(x: Tensor) -> torch.dtype:
    """Of the numbers around: autocast's, or those that come."""
    place = x.device.type
    return torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else x.dtype


def scale_for(largest: Tensor, kind: torch.dtype) -> Tensor:
    """The highest power of two that leaves numbers up to `largest` within the kind's."""
    return torch.exp2(torch.floor(torch.log2(torch.finfo(kind).max / largest.detach().float().clamp(min=1e-30))))


def rounded(x: Tensor, scale: Tensor, kind: torch.dtype) -> Tensor:
    """To eight bits; what is too large becomes the largest number there is."""
    most = torch.finfo(kind).max
    return (x.float() * scale).clamp(-most, most).to(kind)


def linear(module: nn.Linear, x: Tensor, largest: Tensor | None = None) -> Tensor:
    """A linear map of numbers that do not exceed `largest`, if that is known."""
    if has_half(module):
        return F.linear(x, trained_weight(module), module.bias)
    return module(x, largest) if isinstance(module, EightBitLinear) else module(x)


def linear_as_ever(module: nn.Linear, x: Tensor) -> Tensor:
    """The same without eight bits, where gradients are mostly zeros: there they cost more than they save."""
    return F.linear(x, module.weight, module.bias) if isinstance(module, EightBitLinear) else linear(module, x)


def foretold(norm: nn.Module, branch: nn.Module) -> dict[str, Tensor]:
    """What is known of tokens after a norm, where a linear map of the branch behind it wants to know."""
    wanted = branch.training and any(isinstance(one, EightBitLinear) for one in branch.children())
    return {"reach": reach_after_norm(norm)} if wanted else {}


def reach_after_norm(norm: nn.Module) -> Tensor:
    """How long a token can be, whatever came in: sqrt(width) times the norm's largest weight, and so its bias."""
    assert isinstance(norm, (nn.LayerNorm, nn.RMSNorm))
    most = norm.weight.detach().abs().amax()
    if isinstance(norm, nn.LayerNorm) and norm.bias is not None:
        most = most + norm.bias.detach().abs().amax()
    return most * norm.weight.numel() ** 0.5


def reach_after(weight: Tensor, bias: Tensor | None, before: Tensor) -> Tensor:
    """What no number exceeds after a linear map of tokens not longer than `before`."""
    most = weight.detach().float().square().sum(1).amax().sqrt() * before
    return most if bias is None else most + bias.detach().abs().amax()


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda and HAS_TRITON and multiplies_eight_bits()


def tokens_both_ways(x: Tensor, scale: Tensor) -> tuple[Eight, Eight]:
    """A matrix of tokens or weights as it lies, and transposed."""
    if _has_kernels(x):
        from vitrail.model.kernels import eight_bits

        along, across = eight_bits.tokens_both_ways(x, scale)
    else:
        along = rounded(x, scale, TOKEN)
        across = turned(along)
    return Eight(along, 1 / scale), Eight(across, 1 / scale)


def gradient_both_ways(x: Tensor, largest: Tensor | None = None) -> tuple[Eight, Eight, Tensor]:
    """A matrix of gradients as it lies, transposed, and what its columns add up to."""
    scale = scale_for(x.abs().amax() if largest is None else largest, GRADIENT)
    if _has_kernels(x):
        from vitrail.model.kernels import eight_bits

        along, across, sums = eight_bits.gradient_both_ways(x, scale)
    else:
        along, sums = rounded(x, scale, GRADIENT), x.float()
        across = turned(along)
    return Eight(along, 1 / scale), Eight(across, 1 / scale), sums.sum(0)


def turned(x: Tensor) -> Tensor:
    """The transposed copy of a matrix of eight-bit numbers, its rows filled up with zeros to a multiple of 16."""
    if _has_kernels(x):
        from vitrail.model.kernels import eight_bits

        return eight_bits.turn_eight_bits(x)
    return F.pad(x.view(torch.uint8).T, (0, -len(x) % 16)).contiguous().view(x.dtype)


def in_eight_bits(weight: Tensor) -> Weight:
    """A weight as it is in this step."""
    weight = weight.detach()
    return Weight(*tokens_both_ways(weight, scale_for(weight.abs().amax(1).amax(), TOKEN)))


def product(a: Eight, b: Eight, kind: torch.dtype, bias: Tensor | None = None, *, fast: bool) -> Tensor:
    """a @ b.T, in numbers of another kind."""
    if a.numbers.is_cuda and multiplies_eight_bits():
        inside = None if bias is None or kind == torch.float32 else bias.to(kind)
        units = {"scale_a": a.unit, "scale_b": b.unit}
        found = torch._scaled_mm(a.numbers, b.numbers.T, **units, bias=inside, out_dtype=kind, use_fast_accum=fast)
        return found if bias is None or inside is not None else found + bias
    with torch.autocast(a.numbers.device.type, enabled=False):
        sums = a.numbers.float() @ b.numbers.float().T * (a.unit * b.unit)
    return (sums if bias is None else sums + bias.float()).to(kind)


def to_tokens(gradient: Eight, weight: Eight, kind: torch.dtype) -> Tensor:
    """The gradient of what a linear map was given."""
    return product(gradient, weight, kind, fast=FAST_SUMS)


def to_weight(gradient: Eight, tokens: Eight, kind: torch.dtype) -> Tensor:
    """The gradient of its weight, from both transposed."""
    return product(gradient, tokens, kind, fast=FAST_SUMS_OVER_TOKENS)


class LinearInEightBits(torch.autograd.Function):
    """x @ weight.T + bias for x in the numbers around and a weight as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, largest: Tensor | None) -> Tensor:
        tokens = x.flatten(0, -2).contiguous()
        along, across = tokens_both_ways(tokens, scale_for(tokens.abs().amax() if largest is None else largest, TOKEN))
        small = in_eight_bits(weight)
        ctx.save_for_backward(*across, *small.across)
        ctx.kind, ctx.bias_kind = weight.dtype, None if bias is None else bias.dtype
        return product(along, small.along, x.dtype, bias, fast=FAST_SUMS).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tokens, weight = Eight(*ctx.saved_tensors[:2]), Eight(*ctx.saved_tensors[2:])
        along, across, sums = gradient_both_ways(gradient.flatten(0, -2).contiguous())
        to_x = to_tokens(along, weight, gradient.dtype).view(*gradient.shape[:-1], -1)
        to_bias = None if ctx.bias_kind is None else sums.to(ctx.bias_kind)
        return to_x, to_weight(across, tokens, ctx.kind), to_bias, None


class MlpInEightBits(torch.autograd.Function):
    """fc2(gelu(fc1(x))) for normed tokens, not longer than `reach`, in the numbers around, and weights as they are.

    GELU is in its tanh form, which is nearer to the exact one than eight bits can show.
    Of the hidden layer only what fc1 gives is kept; on the way back one kernel makes both of it that products want, the
    gradient before GELU and GELU itself.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, reach: Tensor
    ) -> Tensor:
        scale = scale_for(reach, TOKEN)
        tokens = Eight(rounded(x.flatten(0, -2), scale, TOKEN), 1 / scale)
        first, second = in_eight_bits(weight1), in_eight_bits(weight2)
        hidden = product(tokens, first.along, x.dtype, bias1, fast=FAST_SUMS)
        scale = scale_for(reach_after(weight1, bias1, reach), TOKEN)  # GELU makes nothing larger
        ctx.save_for_backward(*tokens, hidden, *first.across, *second.across, scale)
        ctx.kinds = [one.dtype for one in (weight1, bias1, weight2, bias2)]
        active = Eight(_gelu(hidden, scale), 1 / scale)
        return product(active, second.along, x.dtype, bias2, fast=FAST_SUMS).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tokens, hidden = Eight(*ctx.saved_tensors[:2]), ctx.saved_tensors[2]
        first, second = Eight(*ctx.saved_tensors[3:5]), Eight(*ctx.saved_tensors[5:7])
        scale = ctx.saved_tensors[7]
        along, across, sums2 = gradient_both_ways(gradient.flatten(0, -2).contiguous())
        to_active = to_tokens(along, second, gradient.dtype)
        # no number of it exceeds so many products of the largest
        most = torch.finfo(TOKEN).max * second.unit * torch.finfo(GRADIENT).max * along.unit
        before_scale = scale_for(STEEPEST * len(across.numbers) * most, GRADIENT)
        numbers, numbers_turned, active, sums1 = _gelu_backward(hidden, to_active, scale, before_scale)
        before = Eight(numbers, 1 / before_scale)
        found = (
            to_weight(Eight(numbers_turned, before.unit), Eight(turned(tokens.numbers), tokens.unit), ctx.kinds[0]),
            sums1.to(ctx.kinds[1]),
            to_weight(across, Eight(active, 1 / scale), ctx.kinds[2]),
            sums2.to(ctx.kinds[3]),
        )
        return to_tokens(before, first, gradient.dtype).view(*gradient.shape[:-1], -1), *found, None


def _gelu(hidden: Tensor, scale: Tensor) -> Tensor:
    if _has_kernels(hidden):
        from vitrail.model.kernels.gelu import gelu_in_eight_bits

        return gelu_in_eight_bits(hidden, 1 / scale)
    return rounded(F.gelu(hidden.float(), approximate="tanh"), scale, TOKEN)


def _gelu_backward(hidden: Tensor, gradient: Tensor, scale: Tensor, before_scale: Tensor) -> tuple[Tensor, ...]:
    """The gradient before GELU as it lies and transposed, GELU itself transposed, and the gradient's sums."""
    if _has_kernels(hidden):
        from vitrail.model.kernels.eight_bits import gelu_backward_in_eight_bits

        *found, sums = gelu_backward_in_eight_bits(hidden, gradient, scale, before_scale)
        return *found, sums.sum(0)
    wide = hidden.float()
    part = torch.sigmoid(wide * (1.5957691216 + 0.0713548163 * wide * wide))
    found = gradient.float() * (part + wide * part * (1 - part) * (1.5957691216 + 0.2140644488 * wide * wide))
    before = rounded(found, before_scale, GRADIENT)
    return before, turned(before), turned(rounded(wide * part, scale, TOKEN)), found.sum(0)
