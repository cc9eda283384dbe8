"""The stages of a training: a recipe whose pictures grow has several, each with steps and a memory of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitrail.model.zoo import configure
from vitrail.speed.activations import has_kernels
from vitrail.speed.hardware import Device
from vitrail.speed.memory import Memory, Setup
from vitrail.speed.timing import Step
from vitrail.training.recipe import Recipe
from vitrail.training.stages import spans


@dataclass(frozen=True)
class PlannedStage:
    """Steps over pictures of one size."""

    setup: Setup
    steps: int
    memory: Memory
    step: Step


def sizes_of(recipe: Recipe, own: tuple[int, int], steps: int) -> dict[tuple[int, int], int]:
    """How many of a training's steps are over pictures of each size, in their order; `own`: the model's."""
    found: dict[tuple[int, int], int] = {}
    for stage, first, until in spans(recipe, steps):
        there = own if stage.img_size is None else (stage.img_size, stage.img_size)
        found[there] = found.get(there, 0) + until - first
    return found


def resized(setup: Setup, size: tuple[int, int], device: Device) -> Setup:
    """The same with pictures of this size, and with the kernels that a device has for them."""
    config = configure(setup.config, img_size=size)
    kernels = device.is_gpu and (setup.recorded or has_kernels(config, setup.part))
    return replace(setup, config=config, kernels=kernels)
