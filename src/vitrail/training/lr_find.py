"""The learning-rate range test (Smith 2015): a short training whose learning rate rises until it breaks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.data.batch import Batch
from vitrail.pictures import Preprocessing
from vitrail.training.assembly import Plan, trial
from vitrail.training.loop import Trainer
from vitrail.training.parallel import World

STEPS = 150
LOWEST, HIGHEST = 1e-3, 1e2  # times the recipe's learning rates
BROKEN = 4.0  # a running mean of the loss so many times its lowest ends the test …
PATIENCE = 10  # … and so many steps in a row that are not finite
SPREAD = 7  # steps to both sides over which losses are averaged before they are compared

SURE = 7.0  # standard deviations of a smoothed loss, by which it must fall …
ROUNDING = 1e-9  # … and this part of it

_WEIGHTS = np.hanning(2 * SPREAD + 3)[1:-1] / np.hanning(2 * SPREAD + 3).sum()

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RangeTest:
    """Losses of single steps, and the factors of the recipe's learning rates they were taken with."""

    factors: Floats
    losses: Floats

    @property
    def smoothed(self) -> Floats:
        """Each loss as the mean of its neighbours', the nearest counting most."""
        return np.convolve(np.pad(self.losses, SPREAD, mode="edge"), _WEIGHTS, "valid")

    @property
    def suggestion(self) -> float | None:
        """The lowest factor with which the smoothed loss has gone half of its way down; in two digits.

        On a clean curve this is where it falls most steeply, and a second dip behind a bump does not matter. None where
        the loss does not fall by more than chance has it.
        """
        if len(self.losses) < 4 * SPREAD:
            return None
        smoothed = self.smoothed
        start, lowest = float(smoothed[:SPREAD].mean()), int(smoothed.argmin())
        fall = start - float(smoothed[lowest])
        rest = np.abs(self.losses - smoothed)[: max(2 * SPREAD, lowest)]
        noise = 1.48 * float(np.median(rest)) * float(np.linalg.norm(_WEIGHTS))  # of the smoothed loss
        if not fall > SURE * noise + ROUNDING * abs(start):
            return None
        return float(f"{self.factors[int((smoothed <= start - fall / 2).argmax())]:.2g}")


def find_rate(plan: Plan, world: World, *, sharded: bool) -> RangeTest:
    """Uses up the plan: its model learns, and breaks. The same answer for all processes."""
    with trial(plan, world, sharded=sharded, ema=0.0) as trainer:
        loader, preprocessing, _ = plan.feeding.loader(0)
        return rising(trainer, loader.batches(0, STEPS), preprocessing)


def rising(trainer: Trainer, batches: Iterable[Batch], preprocessing: Preprocessing) -> RangeTest:
    """Steps of the trainer with learning rates that rise by the same factor each time."""
    factors = np.geomspace(LOWEST, HIGHEST, STEPS)
    trainer.schedule = lambda step: float(factors[step])
    seen, mean, lowest, lost = [], 0.0, math.inf, 0
    for number, batch in enumerate(batches):
        trainer.sums.zero_()
        trainer.train_step(batch.to(trainer.world.device), preprocessing)
        total, applied = _total(trainer)
        lost = lost + 1 if applied == 0 else 0
        if lost == PATIENCE:
            break
        if applied == 0:
            continue
        seen.append((factors[number], total / applied))
        mean = 0.8 * mean + 0.2 * seen[-1][1]
        running = mean / (1 - 0.8 ** len(seen))
        lowest = min(lowest, running)
        if running > BROKEN * lowest:
            break
    return RangeTest(*np.array(seen or [(1.0, math.nan)]).T)


def _total(trainer: Trainer) -> tuple[float, float]:
    """The sum of the processes' losses of this step, and of how many; none where it was not finite."""
    sums = trainer.world.summed(trainer.sums.clone())
    return float(sums[0]), float(sums[4] - sums[5])
