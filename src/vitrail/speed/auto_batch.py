"""`batch_size = "auto"` in a plan: the batch that training should find when it tries."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from vitrail.errors import VitrailError
from vitrail.speed.hardware import GIB, Device
from vitrail.speed.memory import Setup, memory_of
from vitrail.speed.stages import resized

# those of `training.batch_size`, which brings torch along
PART = 0.9  # of a device's memory that the trials may take
STEPS = 16  # that an epoch keeps


def with_auto_batch(
    setup: Setup, sizes: Collection[tuple[int, int]], device: Device, pictures: int, *, is_measured: bool
) -> tuple[Setup, str]:
    """The setup, which has the recipe's batch, with that of training; and a line that says so. `sizes`: all that the
    pictures have in the course of the training."""
    own = replace(setup, batch=min(setup.batch, pictures))
    words = f"batch_size auto: planned with {own.batch:,}, the recipe's"
    if is_measured:
        return own, f"{words}; to measure another, give --batch-size"
    if not device.is_gpu:
        return own, f"{words}, as training does without a GPU"
    if setup.shard and setup.devices > 1:
        raise VitrailError("batch_size auto is not for a model in parts: give --batch-size a number with --shard")
    parts, room = setup.devices * setup.accumulate, PART * device.memory * GIB
    limit = max(own.batch, pictures // STEPS) // parts
    part = 1
    while 2 * part <= limit and _fits(setup.with_part(2 * part), sizes, device, room):
        part *= 2
    if part == 1:
        return own, f"{words}: no batch fits"
    found = setup.with_part(part)
    return found, f"batch_size auto: planned with {found.batch:,}, which training should find when it tries"


def _fits(setup: Setup, sizes: Collection[tuple[int, int]], device: Device, room: float) -> bool:
    return all(memory_of(resized(setup, size, device)).peak <= room for size in sizes)
