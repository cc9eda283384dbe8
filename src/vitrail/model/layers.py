"""The small parts that everything else is made of: norms, activations, drop-path, LayerScale, the two kinds of MLP."""

from __future__ import annotations

import copy

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
    return nn.GELU(approximate="tanh" if name == "gelu_tanh" else "none")


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
