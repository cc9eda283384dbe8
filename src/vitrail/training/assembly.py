"""A recipe, a model and data become a `Trainer`: whole, or one for a few steps that leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.classifier import Classifier
from vitrail.model.halves import Halves, are_used
from vitrail.model.kernel_sizes import small_layers_too
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT
from vitrail.training.checkpoints import Checkpoints
from vitrail.training.compiling import compile_or_say_why, fused, is_compiled
from vitrail.training.ema import Ema
from vitrail.training.feeding import Feeding
from vitrail.training.groups import parameter_groups
from vitrail.training.loop import Trainer
from vitrail.training.manifest import list_checkpoints
from vitrail.training.muon import Muon
from vitrail.training.objective import Classification, Objective
from vitrail.training.optimisers import make_optimiser
from vitrail.training.parallel import World
from vitrail.training.precision import Precision, choose_precision
from vitrail.training.progress import count
from vitrail.training.recipe import Recipe
from vitrail.training.recording import why_not
from vitrail.training.schedules import make_schedule
from vitrail.training.spreading import replicate, shard
from vitrail.training.stages import change_at
from vitrail.training.stopping import StopRequest


@dataclass(frozen=True)
class Plan:
    """What is trained, how, and with which pictures."""

    recipe: Recipe
    classifier: Classifier
    origin: str  # of the weights, in words
    feeding: Feeding
    objective: Objective


def _loader(
    feeding: Feeding, model: ViT | ResNet, report: Callable[[dict[str, Any]], None], step: int
) -> tuple[Any, Any, int]:
    """As `Feeding.loader`; the model leaves out as many patches as it should from this step on, and a line says what
    is another way from here on."""
    if (change := change_at(feeding.recipe, model.config, feeding.total_steps, step)) is not None:
        again = ", for which the model is compiled first" if change.of_shapes and is_compiled(model) else ""
        report({"kind": "event", "step": step, "text": f"{change.words}{again}", "stage": True})
    if isinstance(model, ViT):
        asked = feeding.patch_drop(step)
        model.set_patch_drop(model.config.patch_drop if asked is None else asked)
    return feeding.loader(step)


def make_trainer(
    plan: Plan,
    world: World,
    checkpoints: Checkpoints,
    evaluate: Callable[[int], float | None],
    report: Callable[[dict[str, Any]], None],
    stop: StopRequest,
    *,
    sharded: bool,
) -> tuple[Trainer, str | None]:
    """The trainer, and why its model is not compiled where it should be."""
    recipe, feeding = plan.recipe, plan.feeding
    model = plan.classifier.model.train()
    total, steps = feeding.total_steps, feeding.schedule.steps_per_epoch
    precision = Precision(choose_precision(recipe.precision, world.device, model.config), world.device)
    precision.prepare(model)
    groups = parameter_groups(model, recipe.optimiser)  # freezes, which all that follows must know
    halves = Halves() if sharded else halves_for(recipe, model, world, precision)
    at = next((found.step for found in list_checkpoints(checkpoints.folder)), 0)
    reason = _compile(plan, world, precision, sharded, at) if recipe.compile else None
    if sharded:
        shard(model, world)
        groups = parameter_groups(model, recipe.optimiser)  # of what each process holds
    trainer = Trainer(
        recipe=recipe,
        plain=model,
        model=model if sharded else replicate(model, world),
        optimiser=make_optimiser(groups, recipe.optimiser, halves),
        objective=plan.objective,
        schedule=make_schedule(recipe.schedule, total, steps),
        make_loader=partial(_loader, feeding, model, report),
        total_steps=total,
        steps_per_epoch=steps,
        world=world,
        precision=precision,
        checkpoints=checkpoints,
        evaluate=evaluate,
        report=report,
        stop=stop,
        ema=Ema(model, recipe.ema) if recipe.ema > 0 else None,
        accumulate=recipe.accumulate,
        halves=halves,
    )
    if recipe.compile and reason is None and not sharded:
        fuse_passes(trainer)
    return trainer, reason


def halves_for(recipe: Recipe, model: nn.Module, world: World, precision: Precision) -> Halves:
    """Where a step has one gradient of each weight, and AdamW's kernel: those of parts are added up in float32."""
    optimiser = recipe.optimiser
    is_one = world.size == 1 and recipe.accumulate == 1 and optimiser.sam == 0
    if not (is_one and optimiser.name == "adamw" and are_used(world.device, precision.name)):
        return Halves()
    return Halves(module.blocks for module in model.modules() if isinstance(module, ViT))


def fuse_passes(trainer: Trainer) -> None:
    """On a GPU the compiler takes what is beside the model too: passes over all weights, and over a few numbers."""
    if trainer.world.device.type != "cuda":
        return

    def say(line: str) -> None:
        trainer.report({"kind": "event", "step": trainer.progress.step, "text": line})

    trainer.count = fused(count, say)
    for part in (trainer.optimiser, trainer.ema, trainer.objective):
        if isinstance(part, Muon | Ema | Classification):
            part.fuse(partial(fused, say=say))


def _compile(plan: Plan, world: World, precision: Precision, sharded: bool, step: int) -> str | None:
    """With inputs as those of the first step to take, so that it finds itself compiled."""
    recipe, feeding, model = plan.recipe, plan.feeding, plan.classifier.model
    size = recipe.batch_size // recipe.accumulate // world.size
    preprocessing, _ = feeding.stage(min(step, feeding.total_steps - 1))
    pictures = torch.zeros(size, model.config.in_chans, *preprocessing.size, device=world.device)
    inputs, targets = plan.objective.example(pictures)

    def loss(model: nn.Module) -> Tensor:
        return plan.objective(model, inputs, targets)[0]

    # as the steps will be, so that they find it compiled
    with small_layers_too() if why_not(recipe, world) is None else nullcontext():
        return compile_or_say_why(model, loss, world, precision.autocast, blocks=sharded, asked=plan.objective.asked)


def _ignore(row: dict[str, Any]) -> None:
    pass


@contextmanager
def trial(
    plan: Plan,
    world: World,
    *,
    sharded: bool = False,
    report: Callable[[dict[str, Any]], None] = _ignore,
    **changes: Any,
) -> Iterator[Trainer]:
    """A trainer for some steps, as they are written, whose plan is used up: its model learns, and nothing is saved."""
    recipe = replace(plan.recipe, compile=False, record=False, **changes)
    with (
        TemporaryDirectory() as folder,
        Checkpoints(Path(folder), rank=world.rank, world=world.size) as checkpoints,
    ):
        tried = replace(plan, recipe=recipe)
        trainer, _ = make_trainer(tried, world, checkpoints, lambda _: None, report, StopRequest(), sharded=sharded)
        yield trainer
