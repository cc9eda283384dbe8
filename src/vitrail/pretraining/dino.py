"""Self-distillation without labels (Caron et al. 2021): a student learns to answer to any crop of a picture as its own
moving average, the teacher, answers to the large ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.data.batch import Batch
from vitrail.errors import ConfigError
from vitrail.model.config import NOISE, ViTConfig
from vitrail.model.vit import ViT
from vitrail.pictures import Preprocessing
from vitrail.training.methods import Dino
from vitrail.training.objective import Objective
from vitrail.training.parallel import World
from vitrail.training.skipping import local


class Head(nn.Module):
    """Three layers, a point on the sphere, and the cosines of its angles to so many prototypes."""

    learns: Tensor  # 0: the last layer stays as it is

    def __init__(self, width: int, settings: Dino) -> None:
        super().__init__()
        hidden = settings.hidden_dim
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, settings.bottleneck_dim),
        )  # fmt: skip
        self.last_layer = nn.Linear(settings.bottleneck_dim, settings.out_dim, bias=False)
        self.register_buffer("learns", torch.ones(()), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear) and not module.weight.is_meta:
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.normalize(self.mlp(x), dim=-1)
        weight = self.last_layer.weight
        weight = weight.detach() + self.learns * (weight - weight.detach())
        return F.linear(x, F.normalize(weight, dim=-1))


class Pupil(ViT):
    """A ViT, whose features go through the head."""

    def __init__(self, config: ViTConfig, settings: Dino) -> None:
        super().__init__(config)
        self.dino_head = Head(config.pooled_dim, settings)

    def answers(self, pictures: Tensor) -> Tensor:
        """(n, prototypes)."""
        return self.dino_head(super().forward(pictures))


class SelfDistillation(Pupil):
    """The student, whose parameters are named as a ViT's, with its teacher inside. Both start alike."""

    centre: Tensor

    def __init__(self, config: ViTConfig, settings: Dino) -> None:
        if config.relative_bias or config.distilled:
            raise ConfigError("dino needs a plain encoder that reads any size: no relative_bias, not distilled")
        config = config.replace(dynamic_img_size=True)
        config.grid_of((settings.local_size, settings.local_size))
        super().__init__(config, settings)
        self.teacher = Pupil(config.replace(**dict.fromkeys(NOISE, 0.0)), settings)
        self.teacher.load_state_dict({name: t for name, t in self.state_dict().items() if "teacher." not in name})
        self.teacher.requires_grad_(False)
        self.register_buffer("centre", torch.zeros(settings.out_dim))

    def forward(self, large: Tensor, small: Tensor | None = None) -> Any:  # type: ignore[override]
        """Answers of the student to all crops, (n, 2 + local, prototypes), and of the teacher to the large ones.

        Crops are (n, crops of that size, channels, height, width). Pictures alone, (n, channels, height, width): what
        the teacher's encoder makes of them, pooled."""
        if small is None:
            return self.teacher(large)
        n = len(large)
        whole = large.flatten(0, 1)
        student = self.answers(whole).view(n, large.shape[1], -1)
        if small.shape[1]:
            parts = self.answers(small.flatten(0, 1)).view(n, small.shape[1], -1)
            student = torch.cat([student, parts], dim=1)
        with torch.no_grad():
            teacher = self.teacher.answers(whole).view(n, large.shape[1], -1)
        return student, teacher


def distillation_loss(
    student: Tensor, teacher: Tensor, centre: Tensor, student_temperature: float, teacher_temperature: Tensor | float
) -> Tensor:
    """The mean cross-entropy between the teacher's answer to each large crop and the student's to every other crop.

    Of the student's answers (n, crops, prototypes) the first are those to the teacher's crops (n, large, prototypes).
    A cross-entropy is linear in the logarithms, so those of all crops are added up before the product."""
    large, crops = teacher.shape[1], student.shape[1]
    wanted = ((teacher - centre) / teacher_temperature).softmax(-1)
    logarithms = (student / student_temperature).log_softmax(-1)
    others = logarithms.sum(1, keepdim=True) - logarithms[:, :large]
    return -(wanted * others).sum((1, 2)).mean() / (large * (crops - 1))


def temperature_at(settings: Dino, step: int, steps_per_epoch: int) -> float:
    """Of the teacher."""
    warmup = settings.warmup_temperature_epochs * steps_per_epoch
    part = min(1.0, step / warmup) if warmup else 1.0
    return settings.warmup_temperature + part * (settings.teacher_temperature - settings.warmup_temperature)


def momentum_at(settings: Dino, step: int, total_steps: int) -> float:
    """Of the teacher: a cosine from its setting to 1."""
    return 1 - (1 - settings.momentum) * 0.5 * (1 + math.cos(math.pi * step / total_steps))


class Distilling(Objective):
    """The objective. What differs between steps lies in tensors that are filled before the step."""

    answers = False

    def __init__(
        self, plain: SelfDistillation, settings: Dino, total_steps: int, steps_per_epoch: int, world: World
    ) -> None:
        self.plain, self.settings = plain, settings
        self.total_steps, self.steps_per_epoch = total_steps, steps_per_epoch
        self.temperature, self.part = (torch.zeros((), device=world.device) for _ in range(2))
        self.sums = torch.zeros(settings.out_dim, device=world.device)  # of the teacher's answers in this step
        self.counted = 0
        self._pairs: tuple[list[Tensor], list[Tensor]] | None = None

    def begin(self, step: int) -> None:
        self.temperature.fill_(temperature_at(self.settings, step, self.steps_per_epoch))
        self.part.fill_(1 - momentum_at(self.settings, step, self.total_steps))
        frozen = step < self.settings.freeze_epochs * self.steps_per_epoch
        self.plain.dino_head.learns.fill_(0.0 if frozen else 1.0)

    def prepare(self, batch: Batch, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
        """Large crops and small ones: (n, crops, channels, height, width)."""
        self.sums.zero_()
        self.counted = 0
        second, *rest = batch.crop_inputs(preprocessing)
        small = rest[0] if rest else second[:, :0]
        return torch.cat([batch.inputs(preprocessing)[:, None], second], dim=1), small

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        student, teacher = (answers.float() for answers in model(inputs, targets))
        loss = distillation_loss(
            student, teacher, self.plain.centre, self.settings.student_temperature, self.temperature
        )
        self.sums += teacher.sum((0, 1))
        self.counted += teacher.shape[0] * teacher.shape[1]
        return loss, torch.zeros((), device=loss.device)

    def example(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        (n, channels), side = pictures.shape[:2], self.settings.local_size
        small = torch.zeros(n, self.settings.local_crops, channels, side, side, device=pictures.device)
        return pictures[:, None].repeat(1, 2, 1, 1, 1), small

    @torch.no_grad()
    def finish(self, ok: Tensor, world: World) -> None:
        """The centre moves towards the mean of the teacher's answers, the teacher towards the student."""
        mean = world.summed(self.sums.clone()) / (self.counted * world.size)
        move = (1 - self.settings.centre_momentum) * (mean - self.plain.centre)
        self.plain.centre += torch.where(ok, move, 0.0)
        teacher, student = self._matched()
        moves = torch._foreach_sub(student, teacher)
        torch._foreach_mul_(moves, torch.where(ok, self.part, 0.0))
        torch._foreach_add_(teacher, moves)

    def _matched(self) -> tuple[list[Tensor], list[Tensor]]:
        """The teacher's parameters and the student's, in one order; of shards, what lies here."""
        if self._pairs is None:
            mine = dict(self.plain.named_parameters())
            teachers = [(name, one) for name, one in mine.items() if name.startswith("teacher.")]
            self._pairs = (
                local([one for _, one in teachers]),
                local([mine[name.removeprefix("teacher.")] for name, _ in teachers]),
            )
        return self._pairs
