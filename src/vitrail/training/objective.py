"""What is minimised: a loss on the model's answers. Another task is another objective for the same loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.classifier import Classifier
from vitrail.data.batch import Batch
from vitrail.data.source import Subset
from vitrail.errors import ConfigError
from vitrail.pictures import Preprocessing
from vitrail.training import recipe
from vitrail.training.losses import distilled, make_loss
from vitrail.training.parallel import World

LossFunction = Callable[[Tensor, Tensor], Tensor]
Score = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Objective(ABC):
    """Prepares a batch on the device, and computes the loss of any part of it."""

    answers = True  # there are right and wrong ones
    asked: tuple[nn.Module, ...] = ()  # models beside the one that learns, which only answer

    def begin(self, step: int) -> None:  # noqa: B027
        """Before a step: what differs between steps is put into tensors here, since the rest may be recorded."""

    @abstractmethod
    def prepare(self, batch: Batch, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the whole batch."""

    @abstractmethod
    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of some pictures, and how many of them were answered rightly."""

    def finish(self, ok: Tensor, world: World) -> None:  # noqa: B027
        """After a step of these processes, which was taken if `ok`, on the device, is true."""

    @abstractmethod
    def example(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets in the shapes that `prepare` makes of so many pictures of this size."""


class Classification(Objective):
    """Labels, or mixed labels, against logits."""

    def __init__(self, loss: LossFunction, classes: int, *, multi_label: bool) -> None:
        self.loss, self.classes, self.multi_label = loss, classes, multi_label
        self._score: Score = self._scored

    def fuse(self, fused: Callable[[Score], Score]) -> None:
        """From now on a compiler makes a few passes of the dozens over the logits."""
        self._score = fused(self._scored)

    def prepare(self, batch: Batch, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
        return batch.inputs(preprocessing), batch.targets(self.classes)

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self._score(model(inputs), targets)

    def _scored(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits.float()
        loss = self.loss(logits, targets)
        with torch.no_grad():
            right = self._right(logits, targets)
        return loss, right

    def example(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        return pictures, torch.zeros(len(pictures), self.classes, device=pictures.device)

    def _right(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.multi_label:
            return ((logits > 0) == (targets > 0.5)).all(1).sum()
        wanted = targets if targets.ndim == 1 else targets.argmax(1)
        return (logits.argmax(1) == wanted).sum()


class Distillation(Classification):
    """Labels, and beside them the answers of a teacher (DeiT): a model with two heads learns one from each."""

    def __init__(
        self,
        loss: LossFunction,
        settings: recipe.Distillation,
        teacher: Classifier,
        student: Classifier,
    ) -> None:
        super().__init__(loss, len(student.classes), multi_label=False)
        self.settings, self.teacher, self.size = settings, teacher.model.eval(), teacher.preprocessing.size
        self.asked = (self.teacher,)
        self.two_heads = bool(getattr(student.model.config, "distilled", False))
        missing = [name for name in student.classes if name not in teacher.classes]
        if missing:
            known = f"the teacher does not know {len(missing)} of {len(student.classes)} classes, first {missing[0]!r}"
            raise ConfigError(f"distillation: {known}: take one that was trained for them")
        channels, ours = teacher.model.config.in_chans, student.model.config.in_chans
        if channels != ours:
            raise ConfigError(f"distillation: the teacher reads {channels} channels, the model {ours}: take another")
        self.columns = torch.tensor([teacher.classes.index(name) for name in student.classes])
        self.factor, self.shift = _from_pixels(student.preprocessing, teacher.preprocessing)

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (model(inputs, heads=True) if self.two_heads else model(inputs).expand(2, -1, -1)).float()
        loss = distilled(self.loss, self.settings, (first, second), targets, self._taught(inputs))
        with torch.no_grad():
            right = self._right((first + second) / 2, targets)
        return loss, right

    @torch.no_grad()
    def _taught(self, inputs: Tensor) -> Tensor:
        """The teacher's logits for the student's classes, of the same pictures in the teacher's own pixels."""
        if self.columns.device != inputs.device:  # once: a step that is recorded brings nothing to the device
            self.teacher.to(inputs.device)
            moved = (one.to(inputs.device) for one in (self.columns, self.factor, self.shift))
            self.columns, self.factor, self.shift = moved
        seen = inputs * self.factor + self.shift
        if seen.shape[2:] != self.size:
            seen = functional.interpolate(seen, self.size, mode="bicubic", antialias=True, align_corners=False)
        logits: Tensor = self.teacher(seen)[:, self.columns].float()
        return logits


def make_objective(settings: recipe.Recipe, train: Subset, student: Classifier) -> Classification:
    """What this recipe minimises on these pictures; a teacher is loaded, and refused if it does not fit."""
    multi_label = train.source.samples.multi_label
    loss = make_loss(settings.loss, len(train.classes), train.counts(), multi_label)
    if not settings.distillation.teacher:
        return Classification(loss, len(train.classes), multi_label=multi_label)
    if multi_label:
        raise ConfigError("distillation: pictures with several labels cannot be learned from a teacher: leave it out")
    return Distillation(loss, settings.distillation, Classifier.load(settings.distillation.teacher), student)


def _from_pixels(ours: Preprocessing, theirs: Preprocessing) -> tuple[Tensor, Tensor]:
    """By what to multiply and what to add, for each channel, so that pictures normalised as ours are as theirs."""
    numbers = torch.tensor([ours.mean, ours.std, theirs.mean, theirs.std], dtype=torch.float64)
    mean, std, their_mean, their_std = numbers[..., None, None]
    return (std / their_std).float(), ((mean - their_mean) / their_std).float()
