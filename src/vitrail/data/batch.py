"""A batch on its way to the model: bytes while it travels, numbers once it is on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.data.augmentation.draws import normal, uniform
from vitrail.data.augmentation.mixing import Mix, inside
from vitrail.pictures import Preprocessing


class Bad(NamedTuple):
    """A picture that could not be read."""

    name: str
    reason: str


@dataclass(frozen=True)
class Erasing:
    """Boxes that are blotted out once pixels are numbers: (n, 4) of left, top, right, bottom."""

    boxes: tuple[Tensor, ...]
    noise: Tensor | None = None  # (n,), keys: the first of the boxes is filled with noise, not with the mean

    def __call__(self, values: Tensor) -> Tensor:
        for number, box in enumerate(self.boxes):
            fill = _noise(self.noise, values) if self.noise is not None and number == 0 else torch.zeros_like(values)
            values = torch.where(inside(box, values), fill, values)
        return values


def _noise(key: Tensor, values: Tensor) -> Tensor:
    """Standard normal numbers for each channel and pixel: a function of the sample's key."""
    count = values[0].numel()
    numbers = uniform(key, 2 * count).view(len(values), 2, count)
    return normal(numbers[:, 0], numbers[:, 1]).to(values.dtype).view_as(values)


@dataclass(frozen=True)
class Batch:
    """Some samples of a subset. `pixels` are augmented but for erasing and mixing, which `inputs` does."""

    samples: Tensor  # (n,), int64: which of the subset
    pixels: Tensor  # (n, channels, height, width), uint8, in any order of memory
    labels: Tensor  # (n,), int64; with several labels to a picture (n, classes), float32
    step: int = 0
    erasing: Erasing | None = None
    mix: Mix | None = None
    valid: Tensor | None = None  # (n,), bool: in evaluation, False for a picture that could not be read
    crops: tuple[Tensor, ...] = ()  # more views of each picture, (n, views, channels, height, width), uint8
    full: Tensor | None = None  # (n, 2): in evaluation, the width and height that each picture has
    bad: list[Bad] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.samples)

    def to(self, device: str | torch.device) -> Batch:
        # towards the CPU it must wait: nobody would know when the numbers have come
        waits = torch.device(device).type == "cpu"
        return self._each(lambda tensor: tensor.to(device, non_blocking=not waits))

    def pin_memory(self) -> Batch:
        return self._each(lambda tensor: tensor.pin_memory())

    def clone(self) -> Batch:
        return self._each(torch.clone)

    def repeated(self, count: int) -> Batch:
        """So many pictures: the first of these, or all of them again and again."""
        places = torch.arange(count, device=self.pixels.device) % len(self)
        new = self._each(lambda tensor: tensor[places])
        return new if new.mix is None else replace(new, mix=replace(new.mix, partner=new.mix.partner % count))

    def tensors(self) -> list[Tensor]:
        """All of them, in one order for all batches of a loader."""
        found: list[Tensor] = []

        def take(tensor: Tensor) -> Tensor:
            found.append(tensor)
            return tensor

        self._each(take)
        return found

    def inputs(self, preprocessing: Preprocessing) -> Tensor:
        """What the model takes: float32 of (n, channels, height, width)."""
        values = _normalised(self.pixels, preprocessing)
        if self.erasing is not None:
            values = self.erasing(values)
        return values if self.mix is None else self.mix.pixels(values)

    def crop_inputs(self, preprocessing: Preprocessing) -> tuple[Tensor, ...]:
        """The other views, as the model takes them: (n, views, channels, height, width)."""
        return tuple(_normalised(crops, preprocessing) for crops in self.crops)

    def targets(self, classes: int) -> Tensor:
        """What the loss takes: labels as they are, or where pictures were mixed (n, classes)."""
        return self.labels if self.mix is None else self.mix.targets(self.labels, classes)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        def of(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else change(tensor)

        erasing = self.erasing and Erasing(tuple(map(change, self.erasing.boxes)), of(self.erasing.noise))
        mix = self.mix and Mix(*(change(column) for column in vars(self.mix).values()))
        new = replace(self, erasing=erasing, mix=mix, valid=of(self.valid), full=of(self.full))
        samples, pixels, labels = map(change, (self.samples, self.pixels, self.labels))
        return replace(new, samples=samples, pixels=pixels, labels=labels, crops=tuple(map(change, self.crops)))


def _normalised(pixels: Tensor, preprocessing: Preprocessing) -> Tensor:
    values = torch.empty(pixels.shape, device=pixels.device).copy_(pixels)
    mean, std = _statistics(preprocessing, values.device)
    return values.div_(255).sub_(mean).div_(std)


@lru_cache(maxsize=8)
def _statistics(preprocessing: Preprocessing, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation on the device; to send them for every batch would make it wait."""
    mean, std = (torch.tensor(numbers).view(-1, 1, 1).to(device) for numbers in (preprocessing.mean, preprocessing.std))
    return mean, std
