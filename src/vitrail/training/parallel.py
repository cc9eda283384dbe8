"""One process or many: who this process is, and a model that learns with the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from vitrail.data.schedule import Share
from vitrail.errors import VitrailError


@dataclass(frozen=True)
class World:
    """The processes of a training. Rank 0 writes; the others only compute."""

    rank: int
    size: int
    device: torch.device

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

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


@lru_cache(maxsize=1)
def _talk() -> Any:
    """A line between the processes beside the GPUs', so that a word waits for no computation."""
    return dist.new_group(backend="gloo")


def choose_device(name: str | None, local_rank: int = 0) -> torch.device:
    """The device that was asked for, or the fastest there is."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name, local_rank) if name == "cuda" else torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:120]
        raise VitrailError(f"the device {name!r} cannot be used here: {reason}") from error
    return device


@contextmanager
def joined_world(device: str | None = None) -> Iterator[World]:
    """The world that torchrun made, or this process alone."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ or dist.is_initialized():
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        yield World(rank, size, choose_device(device, int(os.environ.get("LOCAL_RANK", "0"))))
        return
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=timedelta(minutes=10))
    try:
        yield World(dist.get_rank(), dist.get_world_size(), chosen)
    finally:
        _talk.cache_clear()
        dist.destroy_process_group()


def replicate(model: nn.Module, world: World) -> nn.Module:
    """The same weights in every process, gradients averaged (DDP)."""
    if world.size == 1:
        return model
    devices = [world.device] if world.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def shard(model: nn.Module, world: World) -> nn.Module:
    """Each process holds a part of the weights, gradients and state (FSDP2): block by block, then the rest."""
    for block in getattr(model, "blocks", []):
        fully_shard(block)
    fully_shard(model)
    return model
