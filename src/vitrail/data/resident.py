"""Batches from pixels that live on the device: the same samples and the same augmentation as through workers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augmentation.mixing import Mix, draw_mix
from vitrail.data.augmentation.on_batch import augmented
from vitrail.data.augmentation.on_picture import fill_colour
from vitrail.data.augmentation.policy import Augmentation, Drawn, draw
from vitrail.data.batch import Batch
from vitrail.data.cache import Decoded
from vitrail.data.fetching import erasing, labels_of
from vitrail.data.loading import check_pairs
from vitrail.data.samples import Integers
from vitrail.data.schedule import ALONE, Schedule, Share
from vitrail.data.source import Subset
from vitrail.pictures import Preprocessing

AHEAD = 2**16  # samples whose draws are made at once


class ResidentLoader:
    """Endless batches for training from `Decoded` pixels, like `TrainingLoader` and in place of it.

    Pictures that could not be read are replaced by the same rule: the next one of the subset that could.
    """

    def __init__(
        self,
        schedule: Schedule,
        decoded: Decoded,
        preprocessing: Preprocessing,
        plan: Augmentation,
        *,
        device: str | torch.device = "cpu",
        share: Share = ALONE,
    ) -> None:
        check_pairs(plan, schedule, share)
        self.schedule, self.share, self.plan, self.preprocessing = schedule, share, plan, preprocessing
        self.device = torch.device(device)
        self.pixels = torch.from_numpy(np.ascontiguousarray(decoded.pixels)).to(self.device).permute(0, 3, 1, 2)
        self.full = torch.from_numpy(np.array(decoded.full)).to(self.device)
        self.labels = all_labels(schedule.subset).to(self.device)
        self.readable = _next_good(decoded.valid)
        self.fill = fill_colour(preprocessing)

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        step, ahead = start, max(1, AHEAD // (self.schedule.batch_size // self.share.world))
        while stop is None or step < stop:
            epoch, number = divmod(step, self.schedule.steps_per_epoch)
            count = min(ahead, self.schedule.steps_per_epoch - number)
            count = count if stop is None else min(count, stop - step)
            yield from self._several(epoch, step, count)
            step += count

    def _several(self, epoch: int, first: int, count: int) -> Iterator[Batch]:
        """Batches of one epoch, whose draws are made together."""
        parts = [self.schedule.at(first + k, self.share) for k in range(count)]
        samples, repeat, place = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
        samples = torch.from_numpy(self.readable)[samples].to(self.device)
        repeat, place = repeat.to(self.device), place.to(self.device)
        seed, size = self.schedule.seed, self.preprocessing.size
        drawn = draw(self.plan, seed, epoch, samples, repeat, size)
        each = len(samples) // count
        for k in range(count):
            part = slice(k * each, (k + 1) * each)
            mix = draw_mix(self.plan, seed, epoch, place[part], size) if self.plan.mixes else None
            yield self.batch(samples[part], drawn[part], first + k, mix)

    def batch(self, samples: Tensor, drawn: Drawn, step: int, mix: Mix | None = None) -> Batch:
        """These samples, with what was drawn for them."""
        pixels = augmented(
            self.pixels[samples], self.full[samples], self.plan, drawn, self.preprocessing.size, self.fill
        )
        return Batch(
            samples,
            pixels,
            self.labels[samples],
            step,
            erasing=erasing(self.plan, drawn),
            mix=mix,
        )


def _next_good(valid: NDArray[np.bool_]) -> Integers:
    """For every sample the first readable one from it on, round the end."""
    good = np.flatnonzero(valid)
    at = np.searchsorted(good, np.arange(len(valid)))
    return good[at % len(good)]


def all_labels(subset: Subset) -> Tensor:
    return labels_of(subset, np.arange(len(subset)))
