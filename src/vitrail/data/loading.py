"""Batches from any source through worker processes, whose number changes no bit of what comes out."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from vitrail.data.augmentation import Augmentation
from vitrail.data.batch import Batch
from vitrail.data.ending import end, started
from vitrail.data.fetching import Fetcher, Task
from vitrail.data.leash import Leash
from vitrail.data.schedule import ALONE, Schedule, Share
from vitrail.data.source import Subset
from vitrail.data.views import View
from vitrail.data.workers import processors
from vitrail.errors import DataError, VitrailError
from vitrail.pictures import Preprocessing

MOST_WORKERS = 16
SMALL = 64 * 64  # pixels of pictures in memory that are prepared sooner than a process for them has begun


def default_workers() -> int:
    """One for each core that this process may use, within reason."""
    return min(processors(), MOST_WORKERS)


def _is_at_hand(subset: Subset) -> bool:
    """Whether pictures are small and in memory already."""
    array = getattr(subset.source.reader, "array", None)
    return array is not None and array.shape[1] * array.shape[2] <= SMALL


class _Workers:
    """A stream of tasks through worker processes, in order."""

    def __init__(self, fetcher: Fetcher, workers: int | None, pin_memory: bool) -> None:
        self.fetcher = fetcher
        self.workers = default_workers() if workers is None else workers
        self.pin_memory = pin_memory

    def run(self, tasks: Iterator[Task]) -> Iterator[Batch]:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="This DataLoader will create"
            )  # more workers than cores: as asked
            loader: DataLoader[Any] = DataLoader(
                self.fetcher,
                batch_size=None,
                sampler=_Tasks(tasks),
                num_workers=self.workers,
                collate_fn=_as_it_is,
                pin_memory=self.pin_memory,
                worker_init_fn=partial(_begin_worker, Leash.of_this_process()) if self.workers else None,
            )
            batches = started(loader)
        try:
            for batch in batches:
                if isinstance(batch, VitrailError):
                    raise batch
                yield batch
        finally:
            end(batches)  # at once, even where a traceback still refers to them


class _Tasks:
    def __init__(self, tasks: Iterator[Task]) -> None:
        self.tasks = tasks

    def __iter__(self) -> Iterator[Task]:
        return self.tasks


def _as_it_is(batch: object) -> object:
    return batch


def _begin_worker(leash: Leash, worker: int) -> None:
    """A terminal and a cluster send signals to all processes; the parent still needs the batches on their way."""
    leash.fasten()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class TrainingLoader:
    """Endless batches for training. Its whole state is the number of the step: `batches(start=step)` goes on there.

    A picture that cannot be read is replaced by the next one of the subset that can (the last is followed by the
    first), with that one's label and draws; `batch.bad` names it. With `strict` it stops the training instead.
    """

    def __init__(
        self,
        schedule: Schedule,
        preprocessing: Preprocessing,
        plan: Augmentation,
        *,
        workers: int | None = None,
        share: Share = ALONE,
        strict: bool = False,
        pin_memory: bool = False,
        views: tuple[View, ...] = (),
    ) -> None:
        check_pairs(plan, schedule, share)
        self.schedule = schedule
        self.share = share
        fetcher = Fetcher(schedule.subset, preprocessing, plan, schedule.seed, strict, views)
        self._workers = _Workers(fetcher, workers, pin_memory)

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        return self._workers.run(self._tasks(start, stop))

    def _tasks(self, start: int, stop: int | None) -> Iterator[Task]:
        step = start
        while stop is None or step < stop:
            epoch = step // self.schedule.steps_per_epoch
            yield Task(step, epoch, *self.schedule.at(step, self.share))
            step += 1


def check_pairs(plan: Augmentation, schedule: Schedule, share: Share) -> None:
    if plan.mixes and schedule.batch_size // share.world % 2:
        if share.world == 1:
            raise DataError(f"a batch of {schedule.batch_size} leaves half a pair to mix: choose an even batch size")
        each = f"a batch of {schedule.batch_size} over {share.world} processes leaves half a pair to mix"
        raise DataError(f"{each}: choose a batch size that {2 * share.world} divides")
    if plan.repeats != schedule.repeats:
        raise DataError(f"the schedule repeats {schedule.repeats} times, the augmentation {plan.repeats} times")


class EvaluationLoader:
    """Every sample of a subset exactly once, over all processes, in the order of the storage."""

    def __init__(
        self,
        subset: Subset,
        preprocessing: Preprocessing,
        *,
        batch_size: int,
        workers: int | None = None,
        share: Share = ALONE,
        strict: bool = False,
        pin_memory: bool = False,
    ) -> None:
        self.subset = subset
        self.batch_size = batch_size
        positions = subset.source.positions
        order = np.arange(len(subset)) if positions is None else np.argsort(positions[subset.rows], kind="stable")
        self._mine = np.array_split(order, share.world)[share.rank]
        workers = 0 if workers is None and _is_at_hand(subset) else workers
        self._workers = _Workers(Fetcher(subset, preprocessing, None, 0, strict), workers, pin_memory)

    def __len__(self) -> int:
        return -(-len(self._mine) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        nothing = np.zeros(0, np.int64)
        parts = (self._mine[k : k + self.batch_size] for k in range(0, len(self._mine), self.batch_size))
        return self._workers.run(Task(step, 0, part, nothing, nothing) for step, part in enumerate(parts))
