"""What is exported: the model as one function of pixels, with more outputs or more of the way to them inside."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitrail.errors import VitrailError
from vitrail.model.layers import twin
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT
from vitrail.pictures import Preprocessing

BATCH = "batch"
_TALKATIVE = (
    *("torch.onnx", "torch.export", "torch._dynamo", "torch._inductor", "torch.utils.cpp_extension"),
    *("onnxscript", "onnx_ir", "nncf", ""),  # ONNX Runtime speaks through the root
)


class _Seen:
    """What the heads of one pass were given."""

    def __init__(self) -> None:
        self.given: list[Tensor] = []


class _Watched(nn.Module):
    """A head that tells what it reads."""

    def __init__(self, head: nn.Module, seen: _Seen) -> None:
        super().__init__()
        self.head, self.seen = head, seen

    def forward(self, x: Tensor) -> Tensor:
        self.seen.given.append(x.flatten(1))
        return self.head(x)


class WithFeatures(nn.Module):
    """Logits and features, both of one pass: what a model says, and what its head reads.

    They leave the graph by ways of their own: joined in one tensor and cut apart again, OpenVINO would compute the
    whole residual stream in float32.
    """

    def __init__(self, model: ViT | ResNet) -> None:
        super().__init__()
        self.classes = model.config.num_classes
        self.seen = _Seen()
        self.model: Any = twin(model)
        if not self.classes:
            return  # its features are all it gives
        if isinstance(model, ResNet):
            self.model.head = twin(model.head)
            self.model.head.fc = _Watched(model.head.fc, self.seen)
            return
        self.model.head = _Watched(model.head, self.seen)
        if model.head_dist is not None:
            self.model.head_dist = _Watched(model.head_dist, self.seen)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        made = self.model(pixels)
        given, self.seen.given = self.seen.given, []
        if not self.classes:
            return made[:, :0], made
        return made, given[0] if len(given) == 1 else (given[0] + given[1]) / 2


class FromBytes(nn.Module):
    """The same for pixels as `Preprocessing.pixels` makes them: uint8 of (batch, height, width, channels)."""

    def __init__(self, inner: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.inner = inner
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(preprocessing.std).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...] | Tensor:
        values = pixels.permute(0, 3, 1, 2).to(self.mean.dtype) / 255
        return self.inner((values - self.mean) / self.std)


def program(module: nn.Module, example: Tensor, dynamic: dict[int, str] | None = None) -> ExportedProgram:
    """The module as a graph; `dynamic` names the axes of its input that may have any length."""
    axes = {0: BATCH} if dynamic is None else dynamic
    # a length of 1 would be taken for a constant
    example = example.repeat([2 if axis in axes and example.shape[axis] == 1 else 1 for axis in range(example.ndim)])
    shapes = {axis: Dim(name, min=1) if name == BATCH else Dim.DYNAMIC for axis, name in axes.items()}
    was_training = module.training
    module.eval()
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(module, (example,), dynamic_shapes=(shapes,), strict=False)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        words = " ".join(str(error).split())[:300]
        raise VitrailError(f"the model cannot be made a graph by torch.export: {words}") from error
    finally:
        module.train(was_training)


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters speak of their own affairs: warnings and log lines are left out, errors are not."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
