"""Pixels in, logits out: the model family of the paper and of those who came after it. Depends on torch alone."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.model.config import ResNetConfig, ViTConfig
    from vitrail.model.resnet import ResNet
    from vitrail.model.vit import Intermediates, ViT
    from vitrail.model.zoo import create

__all__ = ["Intermediates", "ResNet", "ResNetConfig", "ViT", "ViTConfig", "create"]

_HOMES = {"ResNetConfig": "config", "ViTConfig": "config", "ResNet": "resnet", "Intermediates": "vit", "ViT": "vit"}


def __getattr__(name: str) -> Any:
    # configurations, the zoo and the walk need no torch, so that `vitrail models` answers at once
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'zoo')}"), name)
