"""Tiny models with weights that hide nothing: a fresh model has a head of zeros, which makes every comparison true."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vitrail.model import ViT, ViTConfig

TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}


def randomise(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Fills every parameter with numbers that matter: matrices that keep the size of what they read, no zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.ndim >= 2 and "token" not in name and "pos" not in name and "latent" not in name:
                tensor.copy_(noise * tensor[0].numel() ** -0.5)
            else:
                tensor.copy_(noise * 0.5 + float("norm" in name and name.endswith("weight")))
    return model


@pytest.fixture(scope="session")
def build() -> Callable[..., ViT]:
    """Makes a tiny model in evaluation mode; what is given replaces the tiny model's fields."""

    def make(seed: int = 0, **changes: Any) -> ViT:
        return randomise(ViT(ViTConfig(**{**TINY, **changes})), seed).eval()

    return make


@pytest.fixture(scope="session")
def pictures() -> Callable[..., torch.Tensor]:
    """Random pictures that fit a model."""

    def make(model: ViT, batch: int = 2, seed: int = 1) -> torch.Tensor:
        size = (batch, model.config.in_chans, *model.config.img_size)
        return torch.randn(size, generator=torch.Generator().manual_seed(seed))

    return make
