"""Runs functions in processes of their own, forked from a server that has torch loaded already."""

import multiprocessing
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_SERVER = multiprocessing.get_context("forkserver")
_NEEDED = ("pytest", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict")
_SERVER.set_forkserver_preload(["vitrail.training.train", "vitrail.cli", "sklearn.datasets", *_NEEDED])


def start(function: Callable[..., None], *arguments: Any) -> multiprocessing.process.BaseProcess:
    process = _SERVER.Process(target=function, args=arguments)
    process.start()
    return process


def pipe() -> Any:
    return _SERVER.Pipe(duplex=False)


def run_ranks(world: int, folder: Path, function: Callable[..., None], *arguments: Any) -> None:
    """`function(rank, world, *arguments)` in processes that form a gloo group; all must end well."""
    meeting = folder / f"meeting-{uuid.uuid4().hex}"
    processes = [start(_join, rank, world, str(meeting), function, arguments) for rank in range(world)]
    for process in processes:
        process.join(60)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * world


def _join(rank: int, world: int, meeting: str, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    try:
        function(rank, world, *arguments)
    finally:
        dist.destroy_process_group()
