"""How long a step of a recipe takes in the real loop, and in which kernels: for finding what to make faster.

    python benchmarks/step_speed.py cifar10-94 [--set precision='"bf16_residual"'] [--without-kernels] [--kernels 30]
                                    [--trace steps.json] [--inductor combo_kernels=true]

The pictures are random and lie on the device, as CIFAR-10's would; the loop is that of training, with its optimiser and
average.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._inductor import config as inductor

import vitrail
from vitrail.data.arrays import from_arrays
from vitrail.model import devices
from vitrail.training.loop import Trainer
from vitrail.training.recipe_files import read_recipe

FIRST, ROUND, ROUNDS = 60, 50, 5  # steps that are not timed; steps in a round; rounds


class EnoughError(Exception):
    """Of the training that was watched."""


class Watch:
    """Stands around `Trainer.train_step`."""

    def __init__(self, kernels: int) -> None:
        self.kernels, self.count = kernels, 0
        self.times: list[float] = []
        self.profile: Any = None
        self.inner = Trainer.train_step

    def step(self, trainer: Trainer, *batch: Any) -> None:
        done, self.count = self.count, self.count + 1
        if done >= FIRST and (done - FIRST) % ROUND == 0:
            torch.cuda.synchronize()
            self.times.append(time.perf_counter())
        if len(self.times) > ROUNDS:
            self._profile(done - FIRST - ROUND * ROUNDS)
        self.inner(trainer, *batch)

    def _profile(self, step: int) -> None:
        if not self.kernels or step == 20:
            torch.cuda.synchronize()
            if self.profile is not None:
                self.profile.__exit__(None, None, None)
            raise EnoughError
        if step == 0:
            self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self.profile.__enter__()

    def table(self) -> list[tuple[float, float, str]]:
        """Microseconds and calls in a step, and the name of each kernel, the longest first."""
        if self.profile is None:
            return []
        rows = sorted(self.profile.key_averages(), key=lambda row: -row.self_device_time_total)
        return [(row.self_device_time_total / 20, row.count / 20, row.key) for row in rows[: self.kernels]]


def settings(given: list[str]) -> dict[str, Any]:
    return {key: tomllib.loads(f"v = {value}")["v"] for key, _, value in (one.partition("=") for one in given)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--without-kernels", action="store_true", help="nothing but the usual kernels")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="also the N kernels that take longest")
    parser.add_argument("--trace", metavar="FILE", help="with --kernels: all that the GPU did and when, for Perfetto")
    parser.add_argument("--inductor", action="append", default=[], metavar="KEY=VALUE", help="the compiler's settings")
    args = parser.parse_args()
    changes, compiler = settings(args.set), settings(args.inductor)
    for key, value in compiler.items():
        setattr(inductor, key, value)
    if args.without_kernels:
        devices.HAS_TRITON = False
    noise = np.random.default_rng(0)
    labels = np.arange(50_000) % 10
    pictures = noise.integers(0, 256, (50_000, 32, 32, 3), np.uint8)
    source = from_arrays("noise", pictures, labels, [str(number) for number in range(10)], {"train": 50_000})
    watch = Watch(args.kernels)
    Trainer.train_step = lambda trainer, *batch: watch.step(trainer, *batch)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder, suppress(EnoughError):
        vitrail.train(source, recipe=args.recipe, out=Path(folder) / "run", device="cuda", changes=changes)
    rounds = [(later - earlier) / ROUND for earlier, later in zip(watch.times, watch.times[1:], strict=False)]
    low, middle, high = statistics.quantiles(rounds, n=4)
    batch = read_recipe(args.recipe, changes).batch_size
    print(
        json.dumps(
            {
                "recipe": args.recipe,
                "changes": changes,
                "inductor": compiler,
                "own_kernels": not args.without_kernels,
                "ms": round(1e3 * middle, 3),
                "quartiles": [round(1e3 * low, 3), round(1e3 * high, 3)],
                "pictures_per_s": round(batch / middle),
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
            }
        )
    )
    if args.trace and watch.profile is not None:
        watch.profile.export_chrome_trace(args.trace)
    for microseconds, calls, name in watch.table():
        print(f"{microseconds:9.1f} us {calls:6.1f} calls  {name[:100]}")


if __name__ == "__main__":
    main()
