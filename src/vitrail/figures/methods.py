"""Any of the maps by its name."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.figures.gradients import attention_gradient, attribution, grad_cam
from vitrail.figures.maps import rollout
from vitrail.figures.watching import Target, need_vit
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT

Method = Literal["attribution", "rollout", "attention_gradient", "grad_cam"]
METHODS: tuple[Method, ...] = get_args(Method)


def saliency(model: ViT | ResNet, pixels: Tensor, method: Method | None = None, target: Target = None) -> Tensor:
    """How much each patch matters by this method: (batch, rows, columns). By default, `attribution` for a ViT and
    `grad_cam` for a ResNet; rollout asks for no class."""
    if method is None:
        method = "grad_cam" if isinstance(model, ResNet) else "attribution"
    if method not in METHODS:
        raise VitrailError(f"there is no method {method!r}: choose one of {', '.join(METHODS)}")
    if method == "grad_cam":
        return grad_cam(model, pixels, target)
    vit = need_vit(model, method)
    if method == "rollout":
        return rollout(vit, pixels)
    return (attribution if method == "attribution" else attention_gradient)(vit, pixels, target)
