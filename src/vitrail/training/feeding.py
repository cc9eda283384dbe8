"""From data to batches: which pictures train and which validate, and through which engine they come."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.data.augmentation.plan import Augmentation
from vitrail.data.cache import Decoded, Progress, decode_all, sampled_sizes, stored_size
from vitrail.data.loading import EvaluationLoader, TrainingLoader, check_pairs
from vitrail.data.resident import ResidentEvaluation, ResidentLoader
from vitrail.data.samples import UNSAID
from vitrail.data.schedule import Schedule
from vitrail.data.source import Source, Subset
from vitrail.data.splits import Splits
from vitrail.data.views import View
from vitrail.errors import DataError
from vitrail.pictures import Preprocessing
from vitrail.training.parallel import World
from vitrail.training.recipe import Recipe, augmentations
from vitrail.training.schedules import warmup_of
from vitrail.training.stages import Span, span_at

PART_OF_MEMORY = 0.3  # of the device's, that pixels may take
PART_IF_ASKED = 0.7  # the same, where the recipe asks for it
ON_CPU = 2**30  # bytes


@dataclass(frozen=True)
class Feeding:
    """Makes the loaders of a training."""

    recipe: Recipe
    splits: Splits
    preprocessing: Preprocessing
    world: World
    progress: Callable[[str], Progress] | None = None
    views: tuple[View, ...] = ()  # more crops of each picture

    @property
    def train(self) -> Subset:
        return self.splits.train

    @property
    def val(self) -> Subset | None:
        return self.splits.val if len(self.splits.val) else None

    @cached_property
    def schedule(self) -> Schedule:
        recipe = self.recipe
        weights = _balanced(self.train) if recipe.data.balanced else None
        return Schedule(
            self.train, recipe.batch_size, seed=recipe.seed, repeats=recipe.augmentation.repeats, weights=weights
        )

    def check(self) -> None:
        """Refuses batches that cannot be made."""
        recipe, size = self.recipe, self.recipe.batch_size
        if size > len(self.train):
            raise DataError(
                f"a batch of {size:,} is larger than the {len(self.train):,} pictures to train in"
                f" {self.train.source.name}: --batch-size {self.largest_batch()} works (batch_size, in a recipe)"
            )
        self.schedule.at(0, self.world.share)
        for plan in augmentations(recipe):
            check_pairs(plan, self.schedule, self.world.share)

    def largest_batch(self) -> int:
        """That divides into parts, and where there are enough pictures into pairs to mix."""
        most, parts = len(self.train), self.world.size * self.recipe.accumulate
        return most // (2 * parts) * 2 * parts or most // parts * parts or 1

    @property
    def total_steps(self) -> int:
        return total_steps(self.recipe, len(self.train))

    @cached_property
    def engine(self) -> str:
        """ "workers" or "resident", which falls back to workers where the device is too small."""
        return "resident" if self.recipe.data.engine != "workers" and self._needed <= self._room else "workers"

    @cached_property
    def _needed(self) -> int:
        """Bytes of all pixels."""
        height, width = self._stored
        return (len(self.train) * height * width + len(self.splits.val) * self._pixels) * 3

    @cached_property
    def _room(self) -> int:
        """Bytes that pixels may take on the device."""
        device = self.world.device
        if self.recipe.data.engine == "resident":
            return int(PART_IF_ASKED * memory_of(device))
        if device.type == "cuda":
            return int(PART_OF_MEMORY * memory_of(device))
        return ON_CPU if self._stored[0] * self._stored[1] <= 64 * 64 else 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What whoever trains should know of the data, and of what becomes of it."""
        _, cut = warmup_of(self.recipe.schedule, self.total_steps, self.schedule.steps_per_epoch)
        told = (*self.train.source.notes, *self.splits.notes, *self._resized(), *self._streamed())
        return told if cut is None else (*told, cut)

    def _resized(self) -> list[str]:
        size, own = self.preprocessing.size, sorted(self._sizes)
        if not own or own == [size]:
            return []
        others = "" if len(own) == 1 else " and other sizes"
        return [
            f"pictures of {own[0][0]} x {own[0][1]} pixels{others} are resized: the model reads {size[0]} x {size[1]}"
        ]

    def _streamed(self) -> list[str]:
        asked, device = self.recipe.data.engine, self.world.device
        expected = asked == "resident" or (asked == "auto" and device.type == "cuda")
        if self.engine == "resident" or not expected:
            return []
        return [
            f"the pixels take {self._needed / 1e9:,.3g} GB, and {device} has room for {self._room / 1e9:,.3g} GB: "
            "pictures are streamed through workers"
        ]

    @cached_property
    def _sizes(self) -> frozenset[tuple[int, int]]:
        return sampled_sizes(self.train)

    @cached_property
    def _stored(self) -> tuple[int, int]:
        return stored_size(self._sizes, self.preprocessing.size)

    @property
    def _pixels(self) -> int:
        return self.preprocessing.size[0] * self.preprocessing.size[1]

    def stage(self, step: int) -> tuple[Preprocessing, int]:
        """How pictures are at this step, and until which."""
        now, _, until = self._now(step)
        size = self.preprocessing.size if now.img_size is None else (now.img_size, now.img_size)
        return replace(self.preprocessing, size=size), until

    def patch_drop(self, step: int) -> float | None:
        """The part of the patches that this step leaves out; None: what the architecture says."""
        return self._now(step).stage.patch_drop

    def _now(self, step: int) -> Span:
        return span_at(self.recipe, self.total_steps, step)

    def loader(self, step: int) -> tuple[TrainingLoader | ResidentLoader, Preprocessing, int]:
        """The loader for this step, its preprocessing, and the step from which on there is another."""
        preprocessing, until = self.stage(step)
        plan, share = self._now(step).stage.augmentation or self.recipe.augmentation, self.world.share
        if self.engine == "resident":
            device, key = self.world.device, (preprocessing, plan)
            if key not in self._residents:
                self._residents.clear()  # one holds all pixels
                options = {"device": device, "share": share, "compiled": self.recipe.compile, "views": self.views}
                made = ResidentLoader(self.schedule, self._decoded, preprocessing, plan, **options)  # type: ignore[arg-type]
                self._residents[key] = made
            return self._residents[key], preprocessing, until
        pinned = self.world.device.type == "cuda"
        options = {"workers": self.recipe.data.workers, "strict": self.recipe.data.strict, "pin_memory": pinned}
        options |= {"share": share, "views": self.views}
        return TrainingLoader(self.schedule, preprocessing, plan, **options), preprocessing, until  # type: ignore[arg-type]

    @cached_property
    def _residents(self) -> dict[tuple[Preprocessing, Augmentation], ResidentLoader]:
        return {}

    @cached_property
    def _decoded(self) -> Decoded:
        squashed = replace(self.preprocessing, size=self._stored, fit="squash", crop_pct=1.0, interpolation="bicubic")
        if self.recipe.augmentation.crop == "none":
            squashed = self.preprocessing
        return self._decode(self.train, squashed, "decoding training pictures")

    def _decode(self, subset: Subset, preprocessing: Preprocessing, words: str) -> Decoded:
        shown = self.progress(words) if self.progress is not None else None
        decoded = decode_all(subset, preprocessing, workers=self.recipe.data.workers, progress=shown)
        if decoded.bad and self.recipe.data.strict:
            raise DataError(decoded.bad[0].reason)
        return decoded

    @cached_property
    def evaluation(self) -> EvaluationLoader | ResidentEvaluation:
        """Every validation picture once; the same batches each time it is gone through."""
        assert self.val is not None
        size = max(1, 2 * self.recipe.batch_size // self.recipe.accumulate // self.world.size)
        if self.engine == "resident":
            decoded = self._decode(self.val, self.preprocessing, "decoding validation pictures")
            return ResidentEvaluation(
                self.val, decoded, batch_size=size, device=self.world.device, share=self.world.share
            )
        return EvaluationLoader(
            self.val,
            self.preprocessing,
            batch_size=min(size, 256),
            workers=self.recipe.data.workers,
            share=self.world.share,
            strict=self.recipe.data.strict,
            pin_memory=self.world.device.type == "cuda",
        )


def total_steps(recipe: Recipe, pictures: int) -> int:
    """Of a training with so many pictures."""
    if recipe.steps is not None:
        return recipe.steps
    return max(1, round(recipe.epochs * (pictures // recipe.batch_size)))


def memory_of(device: torch.device) -> int:
    """All bytes of it, free or not: a run that is resumed must come to the same engine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_classes(source: Source) -> None:
    if len(source.classes) < 2 and not source.samples.multi_label:
        found = f"only one class, {source.classes[0]!r}" if source.classes else "no labels"
        raise DataError(f"{source.name} has {found}: a classifier needs two classes or more, one folder for each")


def check_labels(splits: Splits) -> None:
    source: Source = splits.train.source
    check_classes(source)
    for subset in (splits.train, splits.val):
        if not source.samples.multi_label and (subset.labels == UNSAID).any():
            raise DataError(
                f"some pictures of {subset.name} in {source.name} have no label: remove them, or label them"
            )


def _balanced(subset: Subset) -> NDArray[np.float32]:
    """A weight for each sample that makes all classes equally frequent."""
    if subset.source.samples.multi_label:
        raise DataError("pictures with several labels cannot be balanced: leave data.balanced out")
    counts = np.bincount(subset.labels, minlength=len(subset.classes))
    return (1 / counts[subset.labels]).astype(np.float32)
