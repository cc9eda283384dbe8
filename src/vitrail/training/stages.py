"""The stages of a training in steps: where each begins and ends, what it does otherwise, and what it has to compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vitrail.errors import ConfigError
from vitrail.model.config import ViTConfig
from vitrail.model.walk import flops
from vitrail.model.zoo import Config
from vitrail.training.recipe import Recipe, Stage


class Span(NamedTuple):
    """Steps of one kind: from `first` on, and before `until`."""

    stage: Stage
    first: int
    until: int


def spans(recipe: Recipe, steps: int) -> tuple[Span, ...]:
    """All steps of a training, in their order; those after the last stage are as the recipe says."""
    found: list[Span] = []
    for stage in (*sorted(recipe.stages, key=lambda one: one.until), Stage(until=1.0)):
        first, until = found[-1].until if found else 0, round(stage.until * steps)
        if until > first:
            found.append(Span(stage, first, until))
    return tuple(found)


def span_at(recipe: Recipe, steps: int, step: int) -> Span:
    """The one that this step belongs to."""
    return next(span for span in reversed(spans(recipe, steps)) if span.first <= step)


class Change(NamedTuple):
    """What steps do otherwise from one on."""

    words: str
    of_shapes: bool  # so that what was compiled for others does not serve


def change_at(recipe: Recipe, config: Config, steps: int, step: int) -> Change | None:
    """What this step does otherwise than the one before it, and the first one than the recipe; None: nothing."""
    now = span_at(recipe, steps, step)
    before = span_at(recipe, steps, step - 1).stage if step else Stage(until=1.0)
    if before == now.stage:
        return None
    words = []
    if _size(before, config) != (size := _size(now.stage, config)):
        words.append("pictures of {} x {}".format(*size))
    if _dropped(before, config) != (part := _dropped(now.stage, config)):
        words.append(f"{part:.0%} of the patches left out" if part else "no patch left out")
    of_shapes = bool(words) and step > 0
    plans = [stage.augmentation or recipe.augmentation for stage in (before, now.stage)]
    if plans[0] != plans[1]:
        words.append("other augmentation")
    where = f"from step {step + 1:,} on" if step else f"to step {now.until:,}"
    return Change(f"{where}: {', '.join(words)}", of_shapes) if words else None


def fullest(recipe: Recipe, config: Config, steps: int) -> int:
    """The first step of those that compute most."""
    return max(spans(recipe, steps), key=lambda span: _work(span.stage, config)).first


def check_sizes(recipe: Recipe, config: Config) -> None:
    """That the model can read the pictures of every stage."""
    for stage in recipe.stages:
        try:
            _work(stage, config)
        except ConfigError as error:
            raise ConfigError(f"stages: {error}") from None


def work_until(recipe: Recipe, config: Config, steps: int) -> Callable[[int], float]:
    """FLOP, forward and for one picture of each batch, of all steps before a step."""
    found = [(span, _work(span.stage, config)) for span in spans(recipe, steps)]

    def work(step: int) -> float:
        return sum(max(0, min(step, span.until) - span.first) * each for span, each in found)

    return work


def _work(stage: Stage, config: Config) -> float:
    return (1 - _dropped(stage, config)) * flops(config.replace(img_size=_size(stage, config)))


def _size(stage: Stage, config: Config) -> tuple[int, int]:
    return config.img_size if stage.img_size is None else (stage.img_size, stage.img_size)


def _dropped(stage: Stage, config: Config) -> float:
    usual = config.patch_drop if isinstance(config, ViTConfig) else 0.0
    return usual if stage.patch_drop is None else stage.patch_drop
