"""What a training counts on its way."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitrail.training.parallel import World


@dataclass
class Progress:
    """What is counted on the way, all of it kept in checkpoints."""

    step: int = 0  # optimiser steps that are done
    skipped_data: int = 0  # batches that were passed over after going back
    lr_factor: float = 1.0  # halved after going back
    best: float = -math.inf
    best_step: int = 0
    worse: int = 0  # evaluations since the best
    seconds: float = 0.0
    bad: dict[str, str] = field(default_factory=dict)  # pictures that could not be read


class Stopwatch:
    """The time of the steps: without evaluations and checkpoints, and as if the first of each kind, in which things
    compile, had taken as long as the others."""

    def __init__(self, device: torch.device, *, first: int) -> None:
        self.device, self.first = device, first
        self.setup = 0.0  # of the first steps
        self.seconds = 0.0  # of the present kind's
        self.steps = 0
        self._earlier: list[tuple[float, int]] = []  # seconds and steps of other kinds
        self._since: float | None = None

    def begin(self) -> None:
        """From here on steps are of another kind, for which things may have to compile again."""
        self.pause()
        self._earlier.append((self._whole(), self.steps))
        self.seconds, self.steps = 0.0, 0
        self.go()

    def step(self) -> None:
        """A step was given to the device."""
        self.steps += 1
        if self.steps == self.first and self._since is not None:
            self.pause()
            self.setup, self.seconds = self.setup + self.seconds, 0.0
            self.go()

    def go(self) -> None:
        if self._since is None:
            self._since = self._now()

    def pause(self) -> None:
        if self._since is not None:
            self.seconds, self._since = self.seconds + self._now() - self._since, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, it stands still; afterwards it goes on if it went before."""
        went = self._since is not None
        self.pause()
        yield
        if went:
            self.go()

    def each(self) -> float | None:
        """Seconds for a step, on average over all kinds; unknown where there were only first ones."""
        kinds = [*self._earlier, (self._whole(), self.steps)]
        known = [(seconds, steps) for seconds, steps in kinds if steps > self.first]
        return sum(seconds for seconds, _ in known) / sum(steps for _, steps in known) if known else None

    def _whole(self) -> float:
        """Seconds of all steps of the present kind."""
        return self.seconds * self.steps / (self.steps - self.first) if self.steps > self.first else 0.0

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def count(sums: Tensor, loss: Tensor, right: Tensor, pictures: int, norm: Tensor, ok: Tensor) -> None:
    """Adds a step to the sums since the last report: loss, right answers, pictures, gradient norm, steps, skipped; then
    the present and the longest row of skipped steps."""
    kept = ok.double()
    row = torch.stack([loss.double().nan_to_num(), right.double(), norm.double().nan_to_num(0, 0, 0)])
    sums[0] += row[0] * kept
    sums[1] += row[1]
    sums[2] += pictures
    sums[3] += row[2] * kept
    sums[4] += 1
    sums[5] += 1 - kept
    sums[6] = (sums[6] + 1) * (1 - kept)
    sums[7] = torch.maximum(sums[7], sums[6])


def figures(counted: list[float], seconds: float, world: World, *, answers: bool) -> dict[str, float]:
    """Of the steps since the last report: from what all processes counted, and from the pictures of so many seconds."""
    loss, right, pictures, norm, steps, skipped, fresh = counted
    applied = max(1.0, steps - skipped)
    return {
        "loss": loss / applied,
        **({"accuracy": right / max(1.0, pictures)} if answers else {}),
        "grad_norm": norm / applied,
        "skipped_steps": int(skipped / world.size),
        "pictures_per_s": round(fresh / max(1e-9, seconds), 1),
    }


def own_sums(saved: list[list[float]], world: World) -> Tensor:
    """What this process had counted; where the number of processes is another, the first one takes over for all."""
    rows = torch.tensor(saved, dtype=torch.double)
    if len(rows) == world.size:
        return rows[world.rank]
    counted = rows[:, :6].sum(0) * world.is_first
    return torch.cat([counted, rows[0, 6:]])  # rows of skipped steps are the same for all
