"""A candidate: the next batch is augmented on a stream of its own beside the step of this one.

    python benchmarks/candidates/batches_ahead.py cifar10-94 cifar10-96        # one GPU: milliseconds of a step

Augmentation of small pictures is many kernels that each leave most of a GPU idle; now a step waits for them. Random
pictures lie on the device, the loop is that of training; each way trains in turn, and says what its batches add up to,
which must be the same.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitrail
from vitrail.data.arrays import from_arrays
from vitrail.data.batch import Batch
from vitrail.data.resident import ResidentLoader
from vitrail.training.loop import Trainer

FIRST, ROUND, ROUNDS = 60, 100, 5  # steps that are not timed; steps in a round; rounds
USUAL = ResidentLoader.batches


def one_ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches; while one is used on the current stream, the next is made on another."""
    user, maker = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    maker.wait_stream(user)

    def make() -> tuple[Batch | None, torch.cuda.Event]:
        with torch.cuda.stream(maker):
            return next(batches, None), maker.record_event()

    batch, made = make()
    while batch is not None:
        following = make()
        user.wait_event(made)
        for tensor in batch.tensors():
            tensor.record_stream(user)  # its memory is free when the user is done with it
        yield batch
        batch, made = following


class EnoughError(Exception):
    """Of the training that was watched."""


def measure(recipe: str, ahead: bool) -> dict[str, Any]:
    labels = np.arange(50_000) % 10
    pictures = np.random.default_rng(0).integers(0, 256, (50_000, 32, 32, 3), np.uint8)
    source = from_arrays("noise", pictures, labels, [str(number) for number in range(10)], {"train": 50_000})
    times: list[float] = []
    sums: list[torch.Tensor] = []
    inner = Trainer.train_step

    def step(trainer: Trainer, batch: Batch, *rest: Any) -> None:
        done = len(sums)
        weights = torch.arange(batch.pixels[0].numel(), device="cuda").view(batch.pixels[0].shape) % 251
        sums.append((batch.pixels.double() * weights).sum() if done < FIRST else sums[-1])
        if done >= FIRST and (done - FIRST) % ROUND == 0:
            torch.cuda.synchronize()
            times.append(time.perf_counter())
        if len(times) > ROUNDS:
            raise EnoughError
        inner(trainer, batch, *rest)

    def batches(loader: ResidentLoader, *span: Any) -> Iterator[Batch]:
        return one_ahead(USUAL(loader, *span)) if ahead else USUAL(loader, *span)

    Trainer.train_step = step  # type: ignore[method-assign,assignment]
    ResidentLoader.batches = batches  # type: ignore[method-assign,assignment]
    try:
        with tempfile.TemporaryDirectory() as folder, suppress(EnoughError):
            vitrail.train(source, recipe=recipe, out=Path(folder) / "run", device="cuda")
    finally:
        Trainer.train_step, ResidentLoader.batches = inner, USUAL  # type: ignore[method-assign]
    rounds = [1e3 * (later - earlier) / ROUND for earlier, later in itertools.pairwise(times)]
    return {
        "recipe": recipe,
        "ahead": ahead,
        "ms": round(statistics.median(rounds), 3),
        "rounds": [round(one, 3) for one in rounds],
        "sum": float(torch.stack(sums[:FIRST]).sum()),
    }


def main() -> None:
    for recipe in sys.argv[1:]:
        for ahead in (False, True, False, True):
            print(json.dumps(measure(recipe, ahead)), flush=True)


if __name__ == "__main__":
    main()
