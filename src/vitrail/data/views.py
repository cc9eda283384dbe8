"""Several crops of one picture in one batch: each kind has a size and an augmentation of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.data.augmentation.plan import Augmentation
from vitrail.data.augmentation.policy import Drawn, draw
from vitrail.pictures import Preprocessing

_APART = 2**32  # between the draws of one crop and the next: more than a picture is ever repeated


@dataclass(frozen=True)
class View:
    """So many crops of one kind. `first` is the number of the first among all crops of a picture, from 1 on: 0 is the
    one that every batch has."""

    plan: Augmentation
    size: tuple[int, int]
    count: int
    first: int

    def preprocessing(self, like: Preprocessing) -> Preprocessing:
        return replace(like, size=self.size)

    def draw(self, seed: int, epoch: int, index: Tensor, repeat: Tensor) -> Drawn:
        """For each sample all its crops, one after the other: n * count rows."""
        number = torch.arange(self.first, self.first + self.count, device=index.device)
        numbers = (repeat[:, None] + _APART * number).flatten()
        return draw(self.plan, seed, epoch, index.repeat_interleave(self.count), numbers, self.size)
