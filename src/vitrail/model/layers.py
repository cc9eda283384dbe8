"""The small parts that everything else is made of: norms, activations, drop-path, LayerScale, the two kinds of MLP."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import ConfigError
from vitrail.model.config import Activation, ViTConfig
from vitrail.model.devices import half_on_gpu, kernel_type
from vitrail.model.fp8_training import MlpInEightBits, kind_of, linear, trains_in_eight_bits
from vitrail.model.halves import trained_weight

WIDEST_NORM = 4096  # channels that one program of a kernel holds


def make_norm(config: ViTConfig, width: int) -> nn.Module:
    """The norm that a configuration asks for."""
    if config.norm == "rms":
        return nn.RMSNorm(width, eps=config.norm_eps)
    return nn.LayerNorm(width, eps=config.norm_eps)


class Sum(NamedTuple):
    """Tokens and what a branch adds to them, not added yet: the norm that follows may do it in the same pass."""

    tokens: Tensor  # (batch, tokens, width)
    branch: Tensor
    bias: Tensor | None = None  # of the branch, if it is still to be added
    factor: Tensor | None = None  # of the branch with its bias, for each picture

    def to(self, kind: torch.dtype) -> Sum:
        return self._replace(tokens=self.tokens.to(kind))

    def added(self) -> Tensor:
        branch = self.branch if self.bias is None else self.branch + self.bias.to(self.branch.dtype)
        return self.tokens + (branch if self.factor is None else branch * self.factor.to(branch.dtype))


def added(x: Tensor | Sum) -> Tensor:
    return x.added() if isinstance(x, Sum) else x


def beside_norm(x: Tensor | Sum, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """What goes on as it is, and its norm. In training on a GPU in half precision, one kernel does all there is to do
    here on the way there, and another on the way back."""
    tokens = x.tokens if isinstance(x, Sum) else x
    kind = kernel_type(tokens) if norm.training and isinstance(norm, (nn.LayerNorm, nn.RMSNorm)) else None
    if kind is None or tokens.shape[-1] > WIDEST_NORM:
        x = added(x)
        x = x if torch.is_grad_enabled() else written(x)
        return x, norm(x)
    from vitrail.model.kernels.fused_norm import FusedNorm

    given = x if isinstance(x, Sum) else (x, None, None, None)
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    stream, normed = FusedNorm.apply(*given, norm.weight, bias, norm.eps, kind)
    return stream, normed


def written(x: Tensor) -> Tensor:
    """The same tensor; a compiler for a GPU writes it down here. Left to itself it adds up the residuals of several
    blocks again and again, and reads each branch as often."""
    if x.is_cuda and torch.compiler.is_dynamo_compiling():
        return x.as_strided(x.shape, x.stride())
    return x


def check_pictures(pictures: Tensor, in_chans: int) -> None:
    """Refuses what is no batch of pictures."""
    if pictures.ndim != 4:
        raise ConfigError(f"pictures must be (batch, channels, height, width), not {tuple(pictures.shape)}")
    if pictures.shape[1] != in_chans:
        raise ConfigError(f"the model reads {in_chans} channels, but the picture has {pictures.shape[1]}")


def check_image_size(pictures: Tensor, config: ViTConfig) -> None:
    """Refuses pictures of another size than the model's, unless it takes any that its patches divide."""
    size = (pictures.shape[-2], pictures.shape[-1])
    if size == config.img_size:
        return
    if not config.dynamic_img_size:
        raise ConfigError(
            f"the model reads {config.img_size[0]} x {config.img_size[1]} pixels, not {size[0]} x {size[1]}:"
            " resize the pictures, or call model.set_image_size(), or make it with dynamic_img_size=True"
        )
    config.grid_of(size)


def exchange(module: nn.Module, name: str, value: Tensor) -> None:
    """Puts another tensor in a parameter's place, frozen if it was; one that did not change stays as it is."""
    old = getattr(module, name)
    if value is not old:
        setattr(module, name, nn.Parameter(value, requires_grad=old.requires_grad))


class ExactGELU(nn.GELU):
    """The paper's. Where a GPU trains compiled code in half precision, by a shorter way that is as exact there."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.dtype in (torch.bfloat16, torch.float16)
        if self.training and half and x.is_cuda and torch.compiler.is_compiling():
            return ShortGELU.apply(x)
        return super().forward(x)


class ShortGELU(torch.autograd.Function):
    """x times the normal distribution, which Abramowitz and Stegun (7.1.26) make of its density and a polynomial.

    An error function takes a GPU longer than to carry the numbers to it and back. This does not, and the density is
    what the derivative needs too. Written for a compiler, which makes one pass of it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.float()
        return (wide * normal(wide)[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        wide = x.float()
        below, bell = normal(wide)
        return (gradient.float() * (below + wide * bell * 0.3989422804014327)).to(x.dtype)


def normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """The normal distribution, and exp(-x² / 2)."""
    bell = torch.exp(-0.5 * x * x)
    t = torch.reciprocal(1 + (0.3275911 * 0.5**0.5) * x.abs())
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * tail * bell
    return torch.where(x < 0, tail, 1 - tail), bell


def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear map and GELU as one product of cuBLAS, in half precision. GELU is its tanh form there, but of float32
    sums: nearer to the exact one than that of sums which were rounded first."""
    found = torch._addmm_activation(bias, x.flatten(0, -2), weight.T, use_gelu=True)
    return found.view(*x.shape[:-1], -1)


# a compiler would take it apart again
linear_gelu = torch.library.custom_op("vitrail::linear_gelu", _linear_gelu, mutates_args=())


@linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


class QuickGELU(nn.Module):
    """The sigmoid form of GELU that CLIP was trained with."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


def make_activation(name: Activation) -> nn.Module:
    """The activation that a configuration asks for."""
    if name == "quick_gelu":
        return QuickGELU()
    if name == "relu":
        return nn.ReLU()
    return nn.GELU(approximate="tanh") if name == "gelu_tanh" else ExactGELU()


def make_dropout(rate: float) -> nn.Module:
    """Dropout, or nothing at all."""
    return nn.Dropout(rate) if rate > 0 else nn.Identity()


class DropPath(nn.Module):
    """Leaves a residual branch out, for whole samples at a time, and scales the others up; in training alone."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        factor = self.factor(x)
        return x if factor is None else x * factor

    def factor(self, x: Tensor) -> Tensor | None:
        """What each sample is multiplied by: (batch, 1, …)."""
        if not self.training:
            return None
        keep = 1 - self.rate
        kept = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return kept.div_(keep)

    def extra_repr(self) -> str:
        return f"{self.rate:g}"


class LayerScale(nn.Module):
    """A learned factor for each channel of a residual branch."""

    def __init__(self, width: int, value: float) -> None:
        super().__init__()
        self.value = value
        self.gamma = nn.Parameter(torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Mlp(nn.Module):
    """Two linear maps with an activation between."""

    def __init__(self, width: int, hidden: int, act: Activation, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = make_activation(act)
        self.drop1 = make_dropout(dropout)
        self.fc2 = nn.Linear(hidden, width)
        self.drop2 = make_dropout(dropout)

    def forward(self, x: Tensor, reach: Tensor | None = None, bare: bool = False) -> Tensor:
        """`reach`: how long a token can be, if that is known. `bare`: without the last bias, if `can_be_bare`."""
        if reach is not None and self._is_plain and all(trains_in_eight_bits(fc, x) for fc in (self.fc1, self.fc2)):
            weights = self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias
            return MlpInEightBits.apply(x.to(kind_of(x)), *weights, reach)
        if self.training and self._is_plain and (kind := kernel_type(x)) is not None:
            from vitrail.model.kernels.fused_mlp import FusedMlp

            first = trained_weight(self.fc1), self.fc1.bias
            return FusedMlp.apply(x.to(kind), *first, trained_weight(self.fc2), None if bare else self.fc2.bias)
        if self._is_served_in_half(x):
            product = linear_gelu if torch.compiler.is_dynamo_compiling() else _linear_gelu
            return self.fc2(product(x, self.fc1.weight, self.fc1.bias))
        return self.drop2(linear(self.fc2, self.drop1(self.act(linear(self.fc1, x)))))

    def can_be_bare(self, x: Tensor) -> bool:
        """Whether its last bias can be left to a norm that follows: where a kernel trains it."""
        return self.training and self._is_plain and type(self.fc2) is nn.Linear and kernel_type(x) is not None

    @property
    def _is_plain(self) -> bool:
        """Nothing but linear maps and GELU."""
        return isinstance(self.act, ExactGELU) and isinstance(self.drop1, nn.Identity)

    def _is_served_in_half(self, x: Tensor) -> bool:
        """Whether a GPU computes answers alone, all of it in half precision; what is exported has its parts."""
        if self.training or torch.is_grad_enabled() or half_on_gpu(x) != x.dtype or not isinstance(self.act, nn.GELU):
            return False
        if torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling():
            return False
        return isinstance(self.fc1, nn.Linear) and self.fc1.weight.dtype == x.dtype


class SwiGLU(nn.Module):
    """An MLP whose hidden layer is one half of `fc1`, gated by the SiLU of the other."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.drop1 = make_dropout(dropout)
        self.fc2 = nn.Linear(hidden // 2, width)
        self.drop2 = make_dropout(dropout)

    def forward(self, x: Tensor, reach: Tensor | None = None) -> Tensor:
        """`reach`: how long a token can be, if that is known."""
        gate, value = linear(self.fc1, x, reach).chunk(2, dim=-1)
        return self.drop2(linear(self.fc2, self.drop1(F.silu(gate) * value)))


def twin(module: nn.Module) -> nn.Module:
    """A module of its own with the same parts: one of them can be exchanged."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other
