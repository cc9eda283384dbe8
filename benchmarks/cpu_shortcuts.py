"""What two shortcuts of a CPU are worth, each in turns with the usual way in one process.

    OMP_NUM_THREADS=2 python benchmarks/cpu_shortcuts.py --out benchmarks/cpu_shortcuts.json

`muon`: a step of the recipe `small` at a batch of 64, its matrices made orthogonal in bfloat16 or in float32.
`rotation`: answers of the bundled model, whose queries and keys are turned by one complex product or in four passes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import vitrail
from vitrail.data.arrays import from_arrays
from vitrail.training import muon
from vitrail.training.loop import Trainer

BATCH, ROUNDS = 64, 20


class EnoughError(Exception):
    """Of the training that was watched."""


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


def row(what: str, usual: list[float], short: list[float]) -> dict[str, Any]:
    """Milliseconds, medians and quartiles, without the first two of each; and their ratio."""
    ways = {"usual_ms": usual[2:], "shortcut_ms": short[2:]}
    found = {name: [round(one, 1) for one in statistics.quantiles(times, n=4)] for name, times in ways.items()}
    ratio = statistics.median(one / other for one, other in zip(*ways.values(), strict=False))
    return {"what": what, "quartiles": found, "ratio": round(ratio, 3)}


def steps() -> dict[str, Any]:
    pictures = np.random.default_rng(0).integers(0, 256, (4 * BATCH, 32, 32, 3), np.uint8)
    source = from_arrays("noise", pictures, np.arange(4 * BATCH) % 10, list("0123456789"), {"train": 4 * BATCH})
    usual: list[float] = []
    short: list[float] = []
    inner = Trainer.train_step

    def step(trainer: Trainer, *batch: Any) -> None:
        if len(short) > ROUNDS:
            raise EnoughError
        if len(usual) > len(short):
            short.append(timed(lambda: inner(trainer, *batch)))
            return
        with patch.object(muon, "cpu_gains_by_bf16", lambda channels: False):
            usual.append(timed(lambda: inner(trainer, *batch)))

    changes = {"batch_size": BATCH, "steps": 4 * ROUNDS, "data.val_fraction": 0.0, "eval_epochs": 1000.0}
    with tempfile.TemporaryDirectory() as folder, suppress(EnoughError), patch.object(Trainer, "train_step", step):
        vitrail.train(source, recipe="small", out=Path(folder) / "run", device="cpu", changes=changes)
    return row("muon", usual, short)


def answers() -> dict[str, Any]:
    model = vitrail.load("cifar10_small").model.eval()
    pictures = torch.randn(BATCH, 3, 32, 32)
    usual, short = [], []
    with torch.inference_mode():
        for _ in range(ROUNDS + 2):
            with patch.object(torch.compiler, "is_compiling", lambda: True):  # the way that a compiler is shown
                usual.append(timed(lambda: model(pictures)))
            short.append(timed(lambda: model(pictures)))
    return row("rotation", usual, short)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    about = {"device": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    about |= {"bfloat16": torch.cpu.get_capabilities().get("avx512_bf16", False), "torch": torch.__version__}
    about |= {"date": time.strftime("%Y-%m-%d")}
    text = json.dumps(about | {"rows": [steps(), answers()]}, indent=1)
    print(text)
    if out:
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
