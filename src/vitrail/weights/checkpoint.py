"""A checkpoint as it was understood, and a model made of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.positions import Resampling
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT
from vitrail.model.zoo import create
from vitrail.pictures import Preprocessing
from vitrail.weights.files import State


@dataclass
class Checkpoint:
    """Somebody's checkpoint, in our names."""

    family: str  # who wrote it
    config: ViTConfig | ResNetConfig
    state: State
    preprocessing: Preprocessing | None = None
    classes: list[str] | None = None
    resampling: Resampling = "timm"  # how its authors resize positions
    assumed: dict[str, Any] = field(default_factory=dict)  # what the file does not say and custom decided

    def build(self) -> ViT | ResNet:
        """The model, with these weights in float32."""
        with torch.device("meta"):
            model = create(self.config)
        state = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in self.state.items()}
        check_fit({name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, state, self.family)
        model.load_state_dict(state, assign=True)
        return model.eval()


def check_fit(expected: dict[str, tuple[int, ...]], state: dict[str, Tensor], family: str) -> None:
    """Raises one line that shows both sides, if the tensors are not those that the model has."""
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    missing, unexpected = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    shapes = [
        f"{name} is {found[name]} here and {shape} in the model"
        for name, shape in sorted(expected.items())
        if name in found and found[name] != shape
    ]
    if not missing and not unexpected and not shapes:
        return
    parts = [f"{len(missing)} missing ({_some(missing)})"] * bool(missing)
    parts += [f"{len(unexpected)} unexpected ({_some(unexpected)})"] * bool(unexpected)
    parts += [f"{len(shapes)} of another shape ({_some(shapes)})"] * bool(shapes)
    if shapes and not missing and not unexpected:
        cause = "likely cause: another image size, patch size, width or number of classes than the configuration says"
    elif unexpected and not missing:
        cause = "likely cause: the checkpoint has parts that the configuration leaves out"
    else:
        cause = "likely cause: the file is of another architecture, or two checkpoints are mixed"
    raise WeightsError(f"the {family} checkpoint does not fit: {'; '.join(parts)}; {cause}")


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:4]) + (f", and {len(names) - 4} more" if len(names) > 4 else "")
