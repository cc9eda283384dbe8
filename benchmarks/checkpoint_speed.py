"""How long training waits for a checkpoint of 1.2 GB, and how long until it is on the disk, beside torch's own ways.

    uv run --all-extras python benchmarks/checkpoint_speed.py [--device cuda] [--folder DIR]

Rounds alternate. Training waits: from the call until the tensors may be overwritten. On the disk: flushed, and for
vitrail hashed, renamed, and the one before removed as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from vitrail.training.checkpoints import Checkpoints

State = dict[str, torch.Tensor]
Times = tuple[float, float]


def torch_save(state: State, folder: Path) -> Callable[[], Times]:
    def once() -> Times:
        start = time.perf_counter()
        with (folder / "state.pth").open("wb") as file:
            torch.save(state, file)
            os.fsync(file.fileno())
        return (time.perf_counter() - start,) * 2

    return once


def dcp_async(state: State, folder: Path) -> Callable[[], Times]:
    def once() -> Times:
        start = time.perf_counter()
        writing = dcp.async_save(state, checkpoint_id=str(folder / "dcp"))
        waited = time.perf_counter() - start
        writing.result()
        return waited, time.perf_counter() - start

    return once


def vitrail_save(state: State, folder: Path) -> Callable[[], Times]:
    checkpoints, step = Checkpoints(folder / "checkpoints", keep=1), iter(range(10**6))

    def once() -> Times:
        before, start = checkpoints.waited_seconds, time.perf_counter()
        checkpoints.save(next(step), state, {})
        waited = checkpoints.waited_seconds - before
        checkpoints.wait()
        return waited, time.perf_counter() - start

    return once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29599"}
    dist.init_process_group("gloo", rank=0, world_size=1)
    state = {f"tensor.{number}": torch.randn(500_000, device=options.device) for number in range(600)}
    size = sum(tensor.nbytes for tensor in state.values())
    ways = {"torch.save": torch_save, "dcp.async_save": dcp_async, "vitrail": vitrail_save}
    prepared = {name: way(state, folder) for name, way in ways.items()}
    times: dict[str, list[Times]] = {name: [] for name in ways}
    for _ in range(options.rounds + 1):  # the first is not counted: memory is taken then
        for name, once in prepared.items():
            times[name].append(once())
    hardware = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    print(json.dumps({"hardware": hardware, "torch": torch.__version__, "bytes": size, "rounds": options.rounds}))
    for name, measured in times.items():
        waits, totals = zip(*measured[1:], strict=True)
        figures = {
            "waits_first": measured[0][0],
            "waits": statistics.median(waits),
            "on_disk": statistics.median(totals),
            "share_of_5_minutes": statistics.median(waits) / 300,
        }
        print(json.dumps({"way": name, **{key: float(f"{value:.3g}") for key, value in figures.items()}}))
    dist.destroy_process_group()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
