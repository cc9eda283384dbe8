"""Tiny models of every kind, with weights that hide nothing, and pictures for them."""

from typing import Any

import torch

from tests.model.conftest import TINY, randomise
from vitrail.model import ResNet, ResNetConfig, ViT, ViTConfig

KINDS: dict[str, dict[str, Any]] = {
    "class token": {},
    "distilled": {"distilled": True},
    "registers": {"registers": 3},
    "mean": {"pool": "mean", "class_token": False},
    "mean beside a class token": {"pool": "mean", "final_norm": "pooled"},
    "token and mean": {"pool": "token_mean"},
    "pooled by attention": {"pool": "map", "class_token": False},
    "rope, qk-norm, rms": {"rope": True, "qk_norm": True, "norm": "rms", "positions": "none", "pool": "mean"},
    "relative bias": {"relative_bias": True},
    "levels": {"levels": (0, 2), "pool": "token_mean"},
    "not square": {"img_size": (24, 40)},
    "overlapping": {"stride": 4},
    "convolutions first": {"conv_stem": (16,), "patch_size": 4},
}
SMALL_RESNET = {"img_size": 32, "layers": (1, 1), "width": 32, "num_classes": 5, "groups": 8}


def make(kind: str = "class token", **changes: Any) -> ViT:
    return randomise(ViT(ViTConfig(**{**TINY, "depth": 3, **KINDS[kind], **changes})))


def make_resnet(**changes: Any) -> ResNet:
    return randomise(ResNet(ResNetConfig(**{**SMALL_RESNET, **changes})))


def pictures_for(model: ViT | ResNet, batch: int = 2) -> torch.Tensor:
    size = (batch, model.config.in_chans, *model.config.img_size)
    return torch.randn(size, generator=torch.Generator().manual_seed(1)).to(next(model.parameters()).dtype)
