"""A model that takes pictures of any size that patches fill: its positions are resized in the graph."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.layers import twin
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT


class _Unlike(tuple[int, ...]):
    """Two lengths that equal no others: a graph then has no branch for the size that the model was trained at, where
    resizing changes nothing."""

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    __hash__ = tuple.__hash__


class _AnySize(ViTConfig):
    @property
    def grid(self) -> Any:
        return _Unlike(super().grid)


def for_any_size(model: ViT | ResNet) -> ViT | ResNet:
    """The same model, with the same weights, for `torch.export` with a dynamic height and width."""
    if isinstance(model, ResNet):
        return model
    config = model.config
    if config.relative_bias:
        raise VitrailError("a model with relative biases has one picture size: export without --dynamic-size")
    if config.positions == "learned_2d":
        raise VitrailError("positions of rows and columns have one size in a graph: export without --dynamic-size")
    if config.backbone is not None or config.conv_stem:
        raise VitrailError("a hybrid has one picture size in a graph: export without --dynamic-size")
    made = object.__new__(_AnySize)
    for item in fields(config):
        object.__setattr__(made, item.name, getattr(config, item.name))
    object.__setattr__(made, "dynamic_img_size", True)
    object.__setattr__(made, "img_size", _Unlike(config.img_size))
    other: Any = twin(model)
    other.config = made
    return other
