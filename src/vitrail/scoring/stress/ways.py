"""What is done to pictures in each trial, and how the model is asked about them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from vitrail.data.augmentation.draws import choice
from vitrail.model.vit import ViT
from vitrail.scoring.stress.adversary import attacked, squares
from vitrail.scoring.stress.corruptions import corrupt
from vitrail.scoring.stress.geometry import rotated, scaled
from vitrail.scoring.stress.panes import blanked, by_saliency, dropped, kept, shuffled
from vitrail.scoring.stress.plan import Plan, Trial
from vitrail.scoring.stress.style import restyled, statistics
from vitrail.scoring.stress.subject import Outcome, Seen, Subject

_BACKWARD = 4  # a way back through the model needs so many times the memory of a way forth


class Ways:
    """A model and a plan: `run` makes a trial."""

    def __init__(self, subject: Subject, plan: Plan) -> None:
        self.subject = subject
        self.plan = plan
        self._answers: dict[str, Callable[[Seen, Trial], Tensor]] = {
            "clean": lambda seen, _: subject.logits(seen.inputs),
            "occlusion": self._occlusion,
            "salient": self._salient,
            "shuffle": self._shuffle,
            "corruptions": self._corruptions,
            "style": self._style,
            "patch": self._patch,
            "rotation": self._rotation,
            "scale": lambda seen, trial: subject.logits(scaled(seen.inputs, trial.level)),
        }

    def run(self, trial: Trial, done: Callable[[], None]) -> Outcome:
        """`done` is called after each batch."""
        answer = self._answers[trial.test]
        return self.subject.run(lambda seen: answer(seen, trial), done)

    def _occlusion(self, seen: Seen, trial: Trial) -> Tensor:
        subject, dice = self.subject, seen.dice(trial)
        if trial.series == "blanked":
            gone = dropped(dice.order(self.plan.grid[0] * self.plan.grid[1]), trial.level)
            return subject.logits(blanked(seen.inputs, gone, self.plan.grid))
        grid, model = subject.own_grid, subject.classifier.model
        assert grid is not None
        assert isinstance(model, ViT)
        gone = dropped(dice.order(grid[0] * grid[1]), trial.level)
        # what stands before the patches would still see the pixels of those that leave
        hides = model.patch_embed.backbone is not None
        return subject.logits(blanked(seen.inputs, gone, grid) if hides else seen.inputs, kept(gone))

    def _salient(self, seen: Seen, trial: Trial) -> Tensor:
        order = self._by_saliency[seen.samples].to(seen.inputs.device)
        gone = dropped(order if trial.series == "most" else order.flip(1), trial.level)
        return self.subject.logits(blanked(seen.inputs, gone, self.plan.grid))

    @cached_property
    def _by_saliency(self) -> Tensor:
        model = self.subject.classifier.model
        return self.subject.table(lambda seen: by_saliency(model, seen.inputs, self.plan.grid))

    def _shuffle(self, seen: Seen, trial: Trial) -> Tensor:
        panes = round(trial.level)
        order = seen.dice(trial._replace(test=f"shuffle {panes}")).order(panes * panes)
        return self.subject.logits(shuffled(seen.inputs, order, (panes, panes)))

    def _corruptions(self, seen: Seen, trial: Trial) -> Tensor:
        pixels = corrupt(seen.pixels, trial.series, round(trial.level), seen.rows, trial.seed)
        return self.subject.logits(self.subject.normalised(pixels))

    def _style(self, seen: Seen, trial: Trial) -> Tensor:
        table, readable = self._styles
        number = choice(seen.dice(trial).uniform(1)[:, 0].cpu(), max(1, len(readable) - 1))
        # any other picture that can be read
        other = readable[(torch.searchsorted(readable, seen.samples) + 1 + number) % len(readable)]
        pictures = restyled(seen.pixels.float() / 255, table[other].to(seen.pixels.device), trial.level)
        return self.subject.logits((pictures - self.subject.mean) / self.subject.std)

    @cached_property
    def _styles(self) -> tuple[Tensor, Tensor]:
        """Statistics of all pictures, and which could be read."""
        table = self.subject.table(lambda seen: statistics(seen.pixels.float() / 255))
        valid = self.subject.table(lambda seen: seen.valid)
        return table, valid.nonzero()[:, 0]

    def _patch(self, seen: Seen, trial: Trial) -> Tensor:
        subject, model = self.subject, self.subject.classifier.model
        where = squares(seen.dice(trial), subject.picture_size, trial.level)
        inputs, labels, where = (x.to(subject.device) for x in (seen.inputs.to(subject.dtype), seen.labels, where))
        mean, std = subject.mean.to(inputs), subject.std.to(inputs)
        few = max(1, subject.size // _BACKWARD)
        parts = []
        for start in range(0, len(inputs), few):
            some = slice(start, start + few)
            parts.append(attacked(model, inputs[some], labels[some], where[some], mean, std, self.plan.attack))
        return subject.logits(torch.cat(parts))

    def _rotation(self, seen: Seen, trial: Trial) -> Tensor:
        left = seen.dice(trial).uniform(1)[:, 0] < 0.5
        return self.subject.logits(rotated(seen.inputs, torch.where(left, trial.level, -trial.level)))
