"""What a worker process does: a task in, a batch out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from vitrail.data.augmentation import on_picture
from vitrail.data.augmentation.mixing import draw_mix
from vitrail.data.augmentation.plan import Augmentation
from vitrail.data.augmentation.policy import Drawn, draw
from vitrail.data.batch import Bad, Batch, Erasing
from vitrail.data.samples import Integers
from vitrail.data.source import Readable, Subset
from vitrail.data.views import View
from vitrail.errors import DataError, PictureError, VitrailError
from vitrail.pictures import Preprocessing, as_picture


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
    views: tuple[View, ...] = ()

    def __getitem__(self, task: Task) -> Batch | VitrailError:
        try:
            return self._evaluation(task) if self.plan is None else self._training(task, self.plan)
        except VitrailError as error:
            return error

    def _evaluation(self, task: Task) -> Batch:
        n, bad = len(task.samples), []
        pixels, full, valid = (
            self._room(n, planar=False),
            torch.zeros(n, 2, dtype=torch.int32),
            torch.ones(n, dtype=torch.bool),
        )
        array = pixels.permute(0, 2, 3, 1).numpy()
        for k, readable in enumerate(self.subset.read_many(task.samples)):
            try:
                array[k], size = self.preprocessing.measured_pixels(readable)
                full[k] = torch.tensor(size)
            except PictureError as error:
                bad.append(self._bad(int(task.samples[k]), error))
                array[k], valid[k] = 0, False
        samples, labels = torch.from_numpy(task.samples), self._labels(task.samples)
        return Batch(samples, pixels, labels, task.step, valid=valid, full=full, bad=bad)

    def _training(self, task: Task, plan: Augmentation) -> Batch:
        size, bad = self.preprocessing.size, []
        samples = task.samples.copy()
        pixels = self._room(len(samples), planar=plan.crop == "random-resized" and not plan.possible_ops())
        crops = [self._room(len(samples) * view.count, planar=False, size=view.size) for view in self.views]
        drawn = self._draw(plan, task.epoch, samples, task.repeat)
        readables = self.subset.read_many(samples)
        for k, row in enumerate(on_picture.rows(drawn)):
            readable = readables[k]
            for _ in range(len(self.subset)):
                try:
                    if self.views:
                        readable = as_picture(readable)  # once for all crops
                        self._crop(readable, samples[k : k + 1], task.repeat[k : k + 1], task.epoch, k, crops)
                    pixels[k] = on_picture.augmented(readable, plan, row, self.preprocessing)
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
            crops=tuple(some.reshape(len(samples), -1, *some.shape[1:]) for some in crops),
            bad=bad,
        )

    def _crop(
        self, picture: Readable, sample: Integers, repeat: Integers, epoch: int, k: int, crops: list[Tensor]
    ) -> None:
        """Fills in the other views of a picture, the one at place k of the batch."""
        for view, room in zip(self.views, crops, strict=True):
            drawn = view.draw(self.seed, epoch, torch.from_numpy(sample), torch.from_numpy(repeat))
            preprocessing = view.preprocessing(self.preprocessing)
            for number, row in enumerate(on_picture.rows(drawn)):
                room[k * view.count + number] = on_picture.augmented(picture, view.plan, row, preprocessing)

    def _draw(self, plan: Augmentation, epoch: int, samples: Integers, repeat: Integers) -> Drawn:
        index, again = torch.from_numpy(samples), torch.from_numpy(repeat)
        return draw(plan, self.seed, epoch, index, again, self.preprocessing.size)

    def _bad(self, sample: int, error: PictureError) -> Bad:
        if self.strict:
            raise error
        return Bad(self.subset.name_of(sample), str(error))

    def _labels(self, samples: Integers) -> Tensor:
        return labels_of(self.subset, samples)

    def _room(self, count: int, *, planar: bool, size: tuple[int, int] | None = None) -> Tensor:
        """Room for pixels (count, channels, height, width), channel by channel, or with a pixel's channels together."""
        (height, width), channels = size or self.preprocessing.size, self.preprocessing.channels
        shape = (count, channels, height, width) if planar else (count, height, width, channels)
        if get_worker_info() is None:
            room = torch.empty(shape, dtype=torch.uint8)
        else:  # in memory that the other process reads too: written once, and not copied
            shared = torch.UntypedStorage._new_shared(math.prod(shape))  # type: ignore[no-untyped-call]
            room = torch.empty(0, dtype=torch.uint8).set_(shared).view(shape)
        return room if planar else room.permute(0, 3, 1, 2)


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
