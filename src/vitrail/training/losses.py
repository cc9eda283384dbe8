"""Losses: what is learned from labels, and from a teacher's answers.

Every loss is a mean over pictures, weighted or not, so that the losses of the parts of a batch, weighted by the number
of their pictures, add up to the loss of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import ConfigError
from vitrail.training.recipe import Distillation, Loss

LossFunction = Callable[[Tensor, Tensor], Tensor]
Heads = tuple[Tensor, Tensor]


def make_loss(loss: Loss, classes: int, counts: NDArray[Any] | None, multi_label: bool) -> LossFunction:
    """The loss of logits, (n, classes), and targets: labels, (n,), or rows of soft targets, (n, classes).

    `counts` has how many pictures each class has, for class weights.
    """
    if multi_label and loss.kind == "cross-entropy":
        raise ConfigError("pictures with several labels need loss.kind = 'binary' (or 'auto')")
    weights = None
    if loss.class_weights:
        if counts is None or len(counts) != classes:
            raise ConfigError("loss.class_weights needs to know how many pictures each class has")
        weights = class_weights(counts)
    if multi_label or loss.kind == "binary":
        return Binary(loss.smoothing, weights, classes, multi_label)
    return CrossEntropy(loss.smoothing, weights)


def class_weights(counts: NDArray[Any]) -> Tensor:
    """Inverse to the counts; their mean over all pictures is 1, so that the learning rate keeps its meaning."""
    numbers = np.asarray(counts, dtype=np.float64)
    present = numbers > 0
    weights = np.ones_like(numbers)  # of a class without pictures: no target has it, but smoothing does
    weights[present] = numbers.sum() / (present.sum() * numbers[present])
    return torch.from_numpy(weights).float()


class CrossEntropy:
    """Softmax cross-entropy; a class's weight multiplies its part of a target, the smoothed part too.

    This is torch's, but for labels with class weights: there torch divides by the sum of the labels' weights, which
    differs from one part of a batch to the next.
    """

    def __init__(self, smoothing: float, weights: Tensor | None) -> None:
        self.smoothing, self.weights = smoothing, weights

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        self.weights = _beside(self.weights, logits)
        losses = F.cross_entropy(
            logits.float(), targets, self.weights, reduction="none", label_smoothing=self.smoothing
        )
        return losses.mean()


class Binary:
    """Each class says yes or no by itself (sigmoid): the sum over classes.

    Smoothing mixes a row with 1 / classes, as in cross-entropy; with several labels to a picture, each with 1/2. A
    class's weight multiplies what its yes costs.
    """

    def __init__(self, smoothing: float, weights: Tensor | None, classes: int, multi_label: bool) -> None:
        self.smoothing, self.weights, self.classes = smoothing, weights, classes
        self.background = 0.5 if multi_label else 1 / classes

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        self.weights = _beside(self.weights, logits)
        rows = F.one_hot(targets, self.classes) if targets.ndim == 1 else targets
        rows = rows.float() * (1 - self.smoothing) + self.smoothing * self.background
        losses = F.binary_cross_entropy_with_logits(logits.float(), rows, pos_weight=self.weights, reduction="none")
        return losses.sum(dim=1).mean()


def _beside(weights: Tensor | None, logits: Tensor) -> Tensor | None:
    """On the device of the logits; to send them at every step would make it wait."""
    return weights if weights is None else weights.to(logits.device)


def distilled(loss: LossFunction, distillation: Distillation, heads: Heads, targets: Tensor, teacher: Tensor) -> Tensor:
    """DeiT's loss: (1 - weight) of the labels' for the first head, weight of the teacher's for the second.

    hard: cross-entropy with the class that the teacher gives; soft: T² KL of the softmaxes of logits / T.
    """
    first, second = heads
    if second.shape[1] != teacher.shape[1]:
        raise ConfigError(
            f"the teacher knows {teacher.shape[1]} classes, the data has {second.shape[1]}:"
            " take a teacher that was trained for these classes"
        )
    if distillation.kind == "hard":
        learned = F.cross_entropy(second.float(), teacher.argmax(dim=1))
    else:
        t = distillation.temperature
        ours, theirs = (F.log_softmax(logits.float() / t, dim=1) for logits in (second, teacher))
        learned = t * t * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
    return (1 - distillation.weight) * loss(first, targets) + distillation.weight * learned
