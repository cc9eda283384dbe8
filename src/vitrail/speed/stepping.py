"""The loop of training with made-up pictures: real steps that can be timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vitrail.classifier import default_preprocessing
from vitrail.data.batch import Batch
from vitrail.errors import VitrailError
from vitrail.model.vit import ViT
from vitrail.model.zoo import create
from vitrail.pictures import Preprocessing
from vitrail.speed.memory import Setup
from vitrail.speed.rates import synchronise
from vitrail.training.assembly import fuse_passes, halves_for
from vitrail.training.checkpoints import Checkpoints
from vitrail.training.compiling import compile_or_say_why
from vitrail.training.ema import Ema
from vitrail.training.groups import parameter_groups
from vitrail.training.loop import Loader, Trainer
from vitrail.training.losses import make_loss
from vitrail.training.objective import Classification
from vitrail.training.optimisers import make_optimiser
from vitrail.training.parallel import World
from vitrail.training.precision import Precision
from vitrail.training.recipe import Loss, Optimiser, Recipe
from vitrail.training.schedules import make_schedule
from vitrail.training.stopping import StopRequest

_MANY = 10**9


@dataclass(frozen=True)
class Stepper:
    """Takes real steps on one device."""

    trainer: Trainer
    batch: Batch
    preprocessing: Preprocessing

    def step(self) -> None:
        self.trainer.train_step(self.batch, self.preprocessing)

    def seconds(self, budget: float, least: int = 3) -> float:
        """The median of single steps, over about so many seconds, after a first one that warms up."""
        self.step()
        times: list[float] = []
        while len(times) < least or sum(times) < budget:
            synchronise(self.batch.pixels.device)
            start = time.perf_counter()
            self.step()
            synchronise(self.batch.pixels.device)
            times.append(time.perf_counter() - start)
        return statistics.median(times)


@contextmanager
def stepper(setup: Setup, device: torch.device, *, compiled: bool) -> Iterator[Stepper]:
    """The loop for one device's part of a training: its model, optimiser, average and random pictures."""
    config = setup.config
    if not config.num_classes:
        raise VitrailError("a model without classes has nothing to learn here: choose one with a head")
    size = setup.local
    recipe = Recipe(
        batch_size=size,
        accumulate=setup.accumulate,
        precision=setup.precision,
        ema=0.9999 if setup.ema else 0.0,
        optimiser=Optimiser(name=setup.optimiser, lr=1e-5),
        checkpoint_minutes=1e9,
    )
    torch.manual_seed(0)
    with device:  # made where it is used: to fill a large one elsewhere takes longer than the steps
        model = create(config).train()
    if isinstance(model, ViT):
        model.gradient_checkpointing = setup.checkpointing
    precision, world = Precision(setup.precision, device), World(0, 1, device)
    precision.prepare(model)
    preprocessing = default_preprocessing(config)
    labels = torch.arange(size, device=device) % config.num_classes
    pixels = torch.randint(0, 256, (size, config.in_chans, *config.img_size), dtype=torch.uint8, device=device)
    batch = Batch(torch.arange(size, device=device), pixels, labels)
    halves = halves_for(recipe, model, world, precision)
    objective = Classification(make_loss(Loss(), config.num_classes, None, False), config.num_classes,
                               multi_label=False)  # fmt: skip
    if compiled:
        part = batch.inputs(preprocessing)[: setup.part]
        reason = compile_or_say_why(
            model, lambda net: objective(net, part, labels[: setup.part])[0], world, precision.autocast
        )
        if reason is not None:
            raise VitrailError(f"the model cannot be compiled here: {reason}")
        del part

    def no_more(at: int) -> tuple[Loader, Preprocessing, int]:
        raise NotImplementedError  # steps are given their batch

    with TemporaryDirectory() as folder, Checkpoints(Path(folder), 1) as checkpoints:
        trainer = Trainer(
            recipe=recipe,
            plain=model,
            model=model,
            optimiser=make_optimiser(parameter_groups(model, recipe.optimiser), recipe.optimiser, halves),
            objective=objective,
            schedule=make_schedule(recipe.schedule, _MANY, _MANY),
            make_loader=no_more,
            total_steps=_MANY,
            steps_per_epoch=_MANY,
            world=world,
            precision=precision,
            checkpoints=checkpoints,
            evaluate=_nothing,
            report=_nothing,
            stop=StopRequest(),
            ema=Ema(model, recipe.ema) if setup.ema else None,
            accumulate=setup.accumulate,
            halves=halves,
        )
        if compiled:
            fuse_passes(trainer)
        yield Stepper(trainer, batch, preprocessing)


def _nothing(_: Any) -> None:
    return None
