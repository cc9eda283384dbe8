"""`vitrail plan --measure`: this machine's rates, and real steps of the training on it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch

from vitrail.errors import VitrailError
from vitrail.model.devices import choose_device, made_current
from vitrail.speed.hardware import DEVICES, GIB, Device
from vitrail.speed.memory import Setup
from vitrail.speed.rates import matrix_rate, memory_rate
from vitrail.speed.stepping import stepper

SLOW_BATCH = 8  # pictures of the longer of two steps on a processor
BUDGET = 2.0  # seconds of steps of each size, and of the machine's rates


@dataclass(frozen=True)
class Measured:
    """Two sizes of step on one device."""

    hardware: str
    tflops: float  # of a matrix product in the training's numbers
    bandwidth: float  # TB/s
    batches: tuple[int, int]  # pictures at once
    seconds: tuple[float, float]
    memory: int | None  # bytes at the peak of the larger; None on a processor, whose memory is not its own

    def seconds_for(self, setup: Setup) -> float:
        """Of a step with all its parts, on the line through what was measured."""
        (small, large), (short, long) = self.batches, self.seconds
        slope = (long - short) / (large - small) if large > small else long / large
        # noise must not make more pictures cheaper than they are one by one
        slope = min(max(slope, 0.5 * long / large), long / large)
        return setup.accumulate * (long + slope * (setup.part - large))


def measure_here(setup: Setup, *, compiled: bool, device: str | None) -> tuple[Measured, Device]:
    """Steps of this training with a part and with all of the pictures that one device has at once."""
    if setup.shard:
        raise VitrailError("a sharded training cannot be measured on one device: leave --measure or --shard out")
    where = choose_device(device)
    large = setup.part if where.type == "cuda" else min(setup.part, SLOW_BATCH)
    small = max(1, large // 2)
    alone = replace(setup, devices=1, accumulate=1)
    found, memory = [], None
    try:
        for size in (small, large):
            if where.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(where)
            with made_current(where), stepper(replace(alone, batch=size), where, compiled=compiled) as steps:
                found.append(steps.seconds(BUDGET))
            memory = torch.cuda.max_memory_allocated(where) if where.type == "cuda" else None
    except torch.OutOfMemoryError as error:
        raise VitrailError(f"{large} pictures at once do not fit into {where}: give a smaller --batch-size") from error
    rate = matrix_rate(where, setup.precision, BUDGET / 2)
    bandwidth = memory_rate(where, BUDGET / 4)
    row = _row(where, rate, bandwidth)
    measured = Measured(row.title, rate / 1e12, bandwidth / 1e12, (small, large), (found[0], found[1]), memory)
    return measured, row


def _row(device: torch.device, rate: float, bandwidth: float) -> Device:
    """This machine as a row of the table. What cannot be measured alone is that of its kind, or of the nearest."""
    if device.type == "cuda":
        title, memory = torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory
        letters = title.lower().replace(" ", "")
        like = next((row for row in DEVICES.values() if row.name.partition("-")[0] in letters), DEVICES["l4"])
        is_known = like.name.partition("-")[0] in letters
        price = like.price if is_known else 0.0
    else:
        title, like, price = f"{device.type} of this machine", DEVICES["cpu"], 0.0
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return replace(
        like,
        title=title,
        half=rate / 1e12,
        single=rate / 1e12,
        memory=memory / GIB,
        bandwidth=bandwidth / 1e12,
        price=price,
        source="measured",
    )
