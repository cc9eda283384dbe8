"""The learning rate over the steps, as a factor of its peak: a pure function of the step, so that resuming is exact.

Steps count from 0. The warm-up is linear and reaches 1 with its last step: step 0 has 1 / warm-up, so that no step is
lost at a rate of 0 (Google's code multiplies by step / warm-up, one step later). After it the formulae are Google's:
progress is (step - warm-up) / (total - warm-up), and a cool-down multiplies by (total - step) / cool-down, so that the
last step has 1 / cool-down.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from vitrail.errors import ConfigError
from vitrail.training.recipe import Schedule


def make_schedule(schedule: Schedule, total_steps: int, steps_per_epoch: int) -> Callable[[int], float]:
    """The factor of the peak learning rate at each step. `step` counts epochs from the start, the warm-up included."""
    _check(schedule)
    warmup, _ = warmup_of(schedule, total_steps, steps_per_epoch)
    course = _course(schedule, total_steps, warmup, steps_per_epoch)

    def factor(step: int) -> float:
        rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
        return rise * course(step)

    return factor


def warmup_of(schedule: Schedule, total_steps: int, steps_per_epoch: int) -> tuple[int, str | None]:
    """Steps of warm-up. One that a short training has no room for is cut to its half, and the words say so."""
    asked = schedule.warmup_steps + round(schedule.warmup_epochs * steps_per_epoch)
    if asked < total_steps or not asked:
        return asked, None
    cut = total_steps // 2
    return cut, f"the warm-up of {asked:,} steps is cut to {cut:,}: there are {total_steps:,} in all"


def _check(schedule: Schedule) -> None:
    wrong = [
        (schedule.warmup_epochs < 0 or schedule.warmup_steps < 0, "the warm-up must not be negative"),
        (not 0 <= schedule.final <= 1, "final must be from 0 to 1"),
        (schedule.step_epochs <= 0, "step_epochs must be above 0"),
        (schedule.step_factor <= 0, "step_factor must be above 0"),
        (schedule.timescale < 1, "timescale must be at least 1"),
    ]
    for is_so, words in wrong:
        if is_so:
            raise ConfigError(f"schedule: {words}")


def _course(schedule: Schedule, total: int, warmup: int, steps_per_epoch: int) -> Callable[[int], float]:
    """The factor without the warm-up."""
    stair = max(1, round(schedule.step_epochs * steps_per_epoch))
    cooldown = round(schedule.cooldown * total)
    final = schedule.final

    def progress(step: int) -> float:
        return min(1.0, max(0.0, (step - warmup) / (total - warmup)))

    def cool(step: int) -> float:
        return min(1.0, max(0.0, (total - step) / cooldown)) if cooldown else 1.0

    def between(part: float) -> float:
        return final + (1 - final) * part

    courses: dict[str, Callable[[int], float]] = {
        "cosine": lambda step: between(0.5 * (1 + math.cos(math.pi * progress(step)))),
        "linear": lambda step: between(1 - progress(step)),
        "step": lambda step: schedule.step_factor ** (step // stair),
        "rsqrt": lambda step: cool(step) / math.sqrt(1 + max(0, step - warmup) / schedule.timescale),
        "wsd": lambda step: between(cool(step)),
        "constant": lambda step: 1.0,
    }
    return courses[schedule.kind]
