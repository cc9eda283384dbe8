"""What a worker process does: a task in, a batch out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from vitrail.data.augmentation import on_picture
from vitrail.data.augmentation.mixing import draw_mix
from vitrail.data.augmentation.policy import Augmentation, Drawn, draw
from vitrail.data.batch import Bad, Batch, Erasing
from vitrail.data.samples import Integers
from vitrail.data.source import Subset
from vitrail.errors import DataError, PictureError, VitrailError
from vitrail.pictures import Preprocessing


class Task(NamedTuple):
    step: int
    epoch: int
    samples: Integers
    repeat: Integers
    place: Integers


@dataclass(frozen=True)
class Fetcher(Dataset[Any]):
    """Runs in the workers: a task in, a batch out. An error the user should see comes out as a value, since torch
    would wrap it in a traceback."""

    subset: Subset
    preprocessing: Preprocessing
    plan: Augmentation | None
    seed: int
    strict: bool

    def __getitem__(self, task: Task) -> Batch | VitrailError:
        try:
            return self._evaluation(task) if self.plan is None else self._training(task, self.plan)
        except VitrailError as error:
            return error

    def _evaluation(self, task: Task) -> Batch:
        pixels, bad = self._room(len(task.samples)), []
        valid = torch.ones(len(task.samples), dtype=torch.bool)
        for k, readable in enumerate(self.subset.read_many(task.samples)):
            try:
                pixels.numpy()[k] = self.preprocessing.pixels(readable)
            except PictureError as error:
                bad.append(self._bad(int(task.samples[k]), error))
                pixels[k], valid[k] = 0, False
        return Batch(
            torch.from_numpy(task.samples), pixels, self._labels(task.samples), task.step, valid=valid, bad=bad
        )

    def _training(self, task: Task, plan: Augmentation) -> Batch:
        size, bad = self.preprocessing.size, []
        samples = task.samples.copy()
        pixels = self._room(len(samples))
        drawn = self._draw(plan, task.epoch, samples, task.repeat)
        array = pixels.numpy()
        readables = self.subset.read_many(samples)
        for k, row in enumerate(on_picture.rows(drawn)):
            readable = readables[k]
            for _ in range(len(self.subset)):
                try:
                    array[k] = on_picture.augmented(readable, plan, row, self.preprocessing)
                    break
                except PictureError as error:
                    bad.append(self._bad(int(samples[k]), error))
                samples[k] = (samples[k] + 1) % len(self.subset)
                readable = self.subset.read(int(samples[k]))
                other = self._draw(plan, task.epoch, samples[k : k + 1], task.repeat[k : k + 1])
                row = on_picture.rows(other)[0]
                _replace(drawn, k, other)
            else:
                raise DataError(f"none of the {len(self.subset)} pictures of {self.subset.source.name} can be read")
        place = torch.from_numpy(task.place)
        return Batch(
            torch.from_numpy(samples),
            pixels,
            self._labels(samples),
            task.step,
            erasing=erasing(plan, drawn),
            mix=draw_mix(plan, self.seed, task.epoch, place, size) if plan.mixes else None,
            bad=bad,
        )

    def _draw(self, plan: Augmentation, epoch: int, samples: Integers, repeat: Integers) -> Drawn:
        index, again = torch.from_numpy(samples), torch.from_numpy(repeat)
        return draw(plan, self.seed, epoch, index, again, self.preprocessing.size)

    def _bad(self, sample: int, error: PictureError) -> Bad:
        if self.strict:
            raise error
        return Bad(self.subset.name_of(sample), str(error))

    def _labels(self, samples: Integers) -> Tensor:
        return labels_of(self.subset, samples)

    def _room(self, count: int) -> Tensor:
        shape = (count, *self.preprocessing.size, self.preprocessing.channels)
        if get_worker_info() is None:
            return torch.empty(shape, dtype=torch.uint8)
        # in memory that the other process reads too: it is written once and not copied
        shared = torch.UntypedStorage._new_shared(int(np.prod(shape)))  # type: ignore[no-untyped-call]
        return torch.empty(0, dtype=torch.uint8).set_(shared).view(shape)


def _replace(drawn: Drawn, row: int, other: Drawn) -> None:
    for name, column in vars(drawn).items():
        column[row] = getattr(other, name)[0]


def erasing(plan: Augmentation, drawn: Drawn) -> Erasing | None:
    boxes = [box for box, used in ((drawn.erase, plan.erase > 0), (drawn.cutout, plan.cutout > 0)) if used]
    noise = drawn.noise if plan.erase > 0 and plan.erase_fill == "noise" else None
    return Erasing(tuple(boxes), noise) if boxes else None


def labels_of(subset: Subset, samples: Integers) -> Tensor:
    """(n,) int64, or rows of targets where pictures have several labels."""
    if subset.source.samples.multi_label:
        return torch.from_numpy(subset.source.samples.targets(subset.rows[samples]))
    return torch.from_numpy(subset.labels[samples].astype(np.int64))
