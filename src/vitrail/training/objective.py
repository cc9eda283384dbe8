"""What is minimised: a loss on the model's answers. Another task is another objective for the same loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from vitrail.data.batch import Batch
from vitrail.pictures import Preprocessing

LossFunction = Callable[[Tensor, Tensor], Tensor]


class Objective(Protocol):
    """Prepares a batch on the device, and computes the loss of any part of it."""

    def prepare(self, batch: Batch, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the whole batch."""
        ...

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of some pictures, and how many of them were answered rightly."""
        ...


class Classification:
    """Labels, or mixed labels, against logits."""

    def __init__(self, loss: LossFunction, classes: int, *, multi_label: bool) -> None:
        self.loss, self.classes, self.multi_label = loss, classes, multi_label

    def prepare(self, batch: Batch, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
        return batch.inputs(preprocessing), batch.targets(self.classes)

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(inputs).float()
        loss = self.loss(logits, targets)
        with torch.no_grad():
            right = self._right(logits, targets)
        return loss, right

    def _right(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.multi_label:
            return ((logits > 0) == (targets > 0.5)).all(1).sum()
        wanted = targets if targets.ndim == 1 else targets.argmax(1)
        return (logits.argmax(1) == wanted).sum()
