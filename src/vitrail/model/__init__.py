"""Pixels in, logits out: the model family of the paper and of those who came after it. Depends on torch alone."""

from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.resnet import ResNet
from vitrail.model.vit import Intermediates, ViT

__all__ = ["Intermediates", "ResNet", "ResNetConfig", "ViT", "ViTConfig"]
