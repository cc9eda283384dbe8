"""A candidate: AdamW keeps copies of large weights in half precision, which are multiplied in their place.

    python benchmarks/candidates/halves.py vit_l16:128 vit_h14:64 vit_h14:128 [--eager]    # one GPU

Autocast makes such copies in every step and turns their gradients into float32. By count, a step with them reads and
writes 22 bytes less for each of these weights (12 where gradients are not clipped, as in `vitrail bench`): at 4.2 TB/s
1.6 ms of L/16's step and 3.3 ms of H/14's. Both ways start from the same weights and take turns, each with the steps of
the real loop; their losses stand beside the times.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from typing import Any

import torch

from vitrail.model import halves
from vitrail.model.zoo import configure
from vitrail.speed.activations import has_kernels
from vitrail.speed.memory import Setup
from vitrail.speed.stepping import stepper

FIRST, ROUNDS, SECONDS = 5, 5, 0.7  # steps whose losses are compared; turns, and how long each takes


def measure(setup: Setup, compiled: bool, used: bool) -> dict[str, Any]:
    """Milliseconds of a step, and GiB."""
    halves.IN_USE = used
    device = torch.device("cuda")
    torch.compiler.reset()
    torch.cuda.reset_peak_memory_stats()
    with stepper(setup, device, compiled=compiled) as steps:
        trainer = steps.trainer
        assert bool(trainer.halves) == used
        for _ in range(FIRST):
            steps.step()
        loss = float(trainer.sums[0])
        times = [1e3 * steps.seconds(SECONDS) for _ in range(ROUNDS)]
    low, middle, high = statistics.quantiles(times, n=4)
    return {"ms": round(middle, 2), "quartiles": [round(low, 2), round(high, 2)], "summed_loss": loss,
            "gib": round(torch.cuda.max_memory_allocated() / 2**30, 3)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["vit_l16:128", "vit_h14:64"], metavar="MODEL:BATCH")
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    for one in args.models:
        name, _, batch = one.partition(":")
        config = configure(name)
        kernels = has_kernels(config, int(batch))
        setup = Setup(config, int(batch), precision="bf16_residual", kernels=kernels)
        for used in (False, True, False, True):
            found = measure(setup, not args.eager, used)
            print(json.dumps({"model": name, "batch": int(batch), "halves": used, **found}), flush=True)
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
