"""What a training counts on its way."""

from __future__ import annotations

import math
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


def own_sums(saved: list[list[float]], world: World) -> Tensor:
    """What this process had counted; where the number of processes is another, the first one takes over for all."""
    rows = torch.tensor(saved, dtype=torch.double)
    if len(rows) == world.size:
        return rows[world.rank]
    counted = rows[:, :6].sum(0) * world.is_first
    return torch.cat([counted, rows[0, 6:]])  # rows of skipped steps are the same for all
