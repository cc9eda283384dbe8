"""`--batch-size auto`: the largest batch whose step fits into the device's memory, found by taking the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from vitrail.data.batch import Batch
from vitrail.errors import ConfigError, ShortMemoryError
from vitrail.pictures import Preprocessing
from vitrail.training.assembly import Plan, trial
from vitrail.training.loop import Trainer
from vitrail.training.parallel import World
from vitrail.training.recipe import Recipe
from vitrail.training.stages import fullest

PART = 0.9  # of the memory that the trials may take: augmentation, evaluation and libraries need some as well
STEPS = 16  # that an epoch keeps, unless the recipe's own batch leaves it fewer
TRIED_WITH = 2  # steps of each size


def fit_batch(plan: Plan, recipe: Recipe, world: World, *, sharded: bool) -> tuple[Recipe, str]:
    """The recipe with the batch that fits, its learning rates scaled with it, and a line that says so.

    Uses up the plan, whose own batch is the recipe's, or as large as there are pictures. Each process tries alone, and
    the smallest answer holds for all.
    """
    if not has_own_memory(world.device):
        made = with_batch(recipe, plan.recipe.batch_size)
        return made, f"batch size auto: {made.batch_size:,}, the recipe's: {world.device.type} has no memory of its own"
    if sharded and world.size > 1:
        raise ConfigError("the parts of a sharded model cannot be tried alone: give --batch-size a number with --shard")
    parts = world.size * recipe.accumulate
    limit = max(plan.recipe.batch_size, len(plan.feeding.train) // STEPS)
    with trial(plan, World(0, 1, world.device, world.local_rank), report=_refuse_parts) as trainer:
        found = largest(_fits(trainer, plan), limit // parts)
    least = min(world.gathered(found))
    if least == 0:
        hint = "choose a smaller model, or smaller pictures"
        raise ShortMemoryError(f"the memory of {world.device} is too small for a batch of {2 * parts}: {hint}")
    made = with_batch(recipe, least * parts)
    short = 2 * least * parts <= limit
    why = "the largest that fits the memory" if short else f"as more than {limit:,} would leave an epoch too few steps"
    rates = f"learning rates are times {_factor(recipe, made.batch_size):.3g}"
    return made, f"batch size auto: {made.batch_size:,}, {why}; {rates}"


def has_own_memory(device: torch.device) -> bool:
    """Whether to run short of it does no harm to the rest of the machine."""
    return device.type == "cuda"


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """The largest power of two from 2 to the limit that fits; 0 where none does."""
    found = 0
    while max(2, 2 * found) <= limit and fits(max(2, 2 * found)):
        found = max(2, 2 * found)
    return found


def with_batch(recipe: Recipe, size: int) -> Recipe:
    """Another batch size, with learning rates that go with it."""
    optimiser = recipe.optimiser.times(_factor(recipe, size))
    return replace(recipe, batch_size=size, auto_batch=False, optimiser=optimiser)


def _factor(recipe: Recipe, size: int) -> float:
    """In proportion for SGD (Goyal et al. 2017), by the square root for optimisers whose steps have a length of their
    own (Malladi et al. 2022)."""
    ratio = size / recipe.batch_size
    return ratio if recipe.optimiser.name == "sgd" else math.sqrt(ratio)


def _refuse_parts(row: dict[str, Any]) -> None:
    """The loop would go on with more parts; here that is an answer."""
    if "accumulate" in row:
        raise torch.OutOfMemoryError(row["text"])


def _fits(trainer: Trainer, plan: Plan) -> Callable[[int], bool]:
    """Whether whole steps, with so many pictures to a part, can be taken: as in training, from pictures to average, and
    where stages differ those that compute most."""
    at = fullest(plan.recipe, plan.classifier.model.config, trainer.total_steps)
    loader, preprocessing, _ = trainer.make_loader(at)
    some = next(iter(loader.batches(at, at + 1))).to(trainer.world.device)

    def fits(size: int) -> bool:
        device = trainer.world.device
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(PART, device)
        try:
            return _can_step(trainer, some, size * trainer.accumulate, preprocessing)
        finally:
            trainer.optimiser.zero_grad(set_to_none=True)
            if on_gpu:
                torch.cuda.set_per_process_memory_fraction(1.0, device)
                torch.cuda.empty_cache()

    return fits


def _can_step(trainer: Trainer, some: Batch, count: int, preprocessing: Preprocessing) -> bool:
    try:
        batch = some.repeated(count)
        for _ in range(TRIED_WITH):
            trainer.train_step(batch, preprocessing)
        if batch.pixels.is_cuda:
            torch.cuda.synchronize(batch.pixels.device)
    except torch.OutOfMemoryError:
        return False
    return True
