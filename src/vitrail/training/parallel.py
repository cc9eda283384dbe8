"""One process or many: who this process is, and what it has to say to the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vitrail.data.schedule import Share
from vitrail.errors import VitrailError
from vitrail.model.devices import choose_device, made_current
from vitrail.training.meeting import meet
from vitrail.training.sharded import agree, gather_in

T = TypeVar("T")
PATIENCE = timedelta(minutes=10)  # with a process that says nothing; one that ends is noticed at once
DOWNLOAD = timedelta(hours=12)  # may be waited for


@dataclass(frozen=True)
class World:
    """The processes of a training. Rank 0 writes; the others only compute."""

    rank: int
    size: int
    device: torch.device
    local_rank: int = 0  # among those of this machine

    @property
    def share(self) -> Share:
        return Share(self.rank, self.size)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def summed(self, numbers: Tensor) -> Tensor:
        """Over all processes."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers

    def agreed(self, word: Any) -> Any:
        """What rank 0 says."""
        if self.size == 1:
            return word
        words = [word]
        dist.broadcast_object_list(words, src=0, group=_talk())
        return words[0]

    def any(self, flag: bool) -> bool:
        """Whether it is so for any of them."""
        if self.size == 1:
            return flag
        flags = torch.tensor(float(flag))
        dist.all_reduce(flags, group=_talk())
        return bool(flags > 0)

    def gathered(self, word: Any) -> list[Any]:
        """What each of them says, in order."""
        if self.size == 1:
            return [word]
        words: list[Any] = [None] * self.size
        dist.all_gather_object(words, word, group=_talk())
        return words

    def first(self, work: Callable[[], T]) -> T:
        """What `work` gives to rank 0, which alone does it. If it fails, it fails for all."""
        if self.size == 1:
            return work()
        results: list[Any] = agree(lambda: work() if self.is_first else None, self.gathered)
        return results[0]

    def one_then_all(self, work: Callable[[], T]) -> T:
        """`work` by every process, on each machine by one before the others: what it downloads, they find."""
        if self.size == 1:
            return work()
        group = dist.new_group(backend="gloo", timeout=DOWNLOAD)
        before = agree(lambda: work() if self.local_rank == 0 else None, _keeping_own(group))[0]
        done = before if self.local_rank == 0 else None
        after = agree(lambda: work() if self.local_rank != 0 else done, _keeping_own(group))[0]
        dist.destroy_process_group(group)
        return after  # type: ignore[return-value]


@lru_cache(maxsize=1)
def _talk() -> Any:
    """A line between the processes beside the GPUs', so that a word waits for no computation."""
    return dist.new_group(backend="gloo", timeout=PATIENCE)


def _keeping_own(group: Any) -> Callable[[Any], list[Any]]:
    """Gathers what went wrong; results stay where they are, as they may be large."""
    gather = gather_in(group)

    def errors(outcome: tuple[Any, Any]) -> list[Any]:
        result, error = outcome
        return [(result, error), *((None, other) for _, other in gather((None, error)))]

    return errors


@contextmanager
def joined_world(device: str | None = None) -> Iterator[World]:
    """The world that torchrun made, or this process alone."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = choose_device(device, local_rank)
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ or dist.is_initialized():
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        try:
            with made_current(chosen):
                yield World(rank, size, chosen, local_rank)
        finally:
            _talk.cache_clear()  # the next world has another line
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    try:
        store, rank, size = meet(PATIENCE)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        yield World(rank, size, chosen, local_rank)
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        raise VitrailError("the connection to another process is lost: its own message says why") from error
    finally:
        _talk.cache_clear()
        if dist.is_initialized():
            dist.destroy_process_group()


def _is_lost(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error)


@dataclass(frozen=True)
class Launch:
    """By what torchrun started these processes, and whether it starts them again because one was lost."""

    name: str | None = None
    again: bool = False

    @classmethod
    def of(cls, world: World) -> Launch:
        """The same on all processes: machines that lost none of theirs are not told that it is again."""
        again = world.any(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0)
        return cls(world.agreed(os.environ.get("TORCHELASTIC_RUN_ID")), again)

    def began(self, launch: str | None) -> bool:
        """Whether a run that another launch began is this one's to go on with. "none" is torchrun's word for a launch
        without a name, which only says something when processes are started again."""
        return launch is not None and launch == self.name and (self.again or launch != "none")
