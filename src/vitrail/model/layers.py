"""The small parts that everything else is made of: norms, activations, drop-path, LayerScale, the two kinds of MLP."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import ConfigError
from vitrail.model.config import Activation, ViTConfig


def make_norm(config: ViTConfig, width: int) -> nn.Module:
    """The norm that a configuration asks for."""
    if config.norm == "rms":
        return nn.RMSNorm(width, eps=config.norm_eps)
    return nn.LayerNorm(width, eps=config.norm_eps)


def check_pictures(pictures: Tensor, in_chans: int) -> None:
    """Refuses what is no batch of pictures."""
    if pictures.ndim != 4:
        raise ConfigError(f"pictures must be (batch, channels, height, width), not {tuple(pictures.shape)}")
    if pictures.shape[1] != in_chans:
        raise ConfigError(f"the model reads {in_chans} channels, but the picture has {pictures.shape[1]}")


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
        return (wide * _normal(wide)[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        wide = x.float()
        below, bell = _normal(wide)
        return (gradient.float() * (below + wide * bell * 0.3989422804014327)).to(x.dtype)


def _normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """The normal distribution, and exp(-x² / 2)."""
    bell = torch.exp(-0.5 * x * x)
    t = torch.reciprocal(1 + (0.3275911 * 0.5**0.5) * x.abs())
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * tail * bell
    return torch.where(x < 0, tail, 1 - tail), bell


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
        if not self.training:
            return x
        keep = 1 - self.rate
        kept = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * kept.div_(keep)

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

    def forward(self, x: Tensor) -> Tensor:
        return self.drop2(self.fc2(self.drop1(self.act(self.fc1(x)))))


class SwiGLU(nn.Module):
    """An MLP whose hidden layer is one half of `fc1`, gated by the SiLU of the other."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.drop1 = make_dropout(dropout)
        self.fc2 = nn.Linear(hidden // 2, width)
        self.drop2 = make_dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.drop2(self.fc2(self.drop1(F.silu(gate) * value)))


def twin(module: nn.Module) -> nn.Module:
    """A module of its own with the same parts: one of them can be exchanged."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other
