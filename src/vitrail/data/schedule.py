"""Which samples make the batch of a step, and which of them are this process's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.order import epoch_order, repeated, weighted_order
from vitrail.data.samples import Integers
from vitrail.data.source import Subset
from vitrail.errors import DataError


class Share(NamedTuple):
    """Which part of every batch is this process's."""

    rank: int = 0
    world: int = 1


ALONE = Share()


@dataclass(frozen=True, eq=False)
class Schedule:
    """Which samples come when, in training: a function of the step.

    `batch_size` counts all processes. The last samples of an epoch that do not fill a batch are left for the next
    epoch's order. `weights` draws samples in proportion to them; `run` overrides how many neighbours a source wants
    read together.
    """

    subset: Subset
    batch_size: int
    seed: int = 0
    repeats: int = 1
    run: int | None = None
    weights: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise DataError(f"a batch of {self.batch_size} pictures is none: choose a batch size of at least 1")
        if len(self.subset) < self.batch_size:
            few = f"{len(self.subset)} pictures in {self.subset.name} of {self.subset.source.name}"
            raise DataError(f"a batch of {self.batch_size} is larger than the {few}: choose a smaller batch size")

        if self.weights is not None and not (np.isfinite(self.weights).all() and (self.weights >= 0).all()):
            raise DataError("weights of samples must be finite numbers, none below 0")
        if self.weights is not None and not self.weights.sum() > 0:
            raise DataError("all weights of samples are 0: at least one must be above")

    @property
    def steps_per_epoch(self) -> int:
        return len(self.subset) // self.batch_size

    def at(self, step: int, share: Share = ALONE) -> tuple[Integers, Integers, Integers]:
        """Samples, the number of their repeat, and their places in the epoch, of one process's part of a step."""
        if self.batch_size % share.world:
            each = f"a batch of {self.batch_size} cannot be shared by {share.world} processes"
            raise DataError(f"{each}: choose a batch size that {share.world} divides")
        epoch, number = divmod(step, self.steps_per_epoch)
        order, repeat = _epoch(self, epoch)
        size = self.batch_size // share.world
        start = number * self.batch_size + share.rank * size
        part = slice(start, start + size)
        return order[part], repeat[part], np.arange(start, start + size)


@lru_cache(maxsize=2)
def _epoch(schedule: Schedule, epoch: int) -> tuple[Integers, Integers]:
    source, rows = schedule.subset.source, schedule.subset.rows
    if schedule.weights is not None:
        order = weighted_order(schedule.weights, schedule.seed, epoch)
    else:
        positions = None if source.positions is None else source.positions[rows]
        run = source.run if schedule.run is None else schedule.run
        order = epoch_order(len(rows), schedule.seed, epoch, run=run, positions=positions)
    return repeated(order, schedule.batch_size, schedule.repeats)
