"""What is found out before a training: the batch that fits, the learning rate. By trials that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vitrail.model.devices import free_unused
from vitrail.training.assembly import Plan
from vitrail.training.batch_size import fit_batch
from vitrail.training.lr_find import RangeTest, find_rate
from vitrail.training.parallel import World
from vitrail.training.recipe import Recipe
from vitrail.training.reporting.range_test import save_range_test


@dataclass(frozen=True)
class Tuned:
    """A recipe without open questions, and how they were answered."""

    recipe: Recipe
    notes: tuple[str, ...] = ()
    test: RangeTest | None = None
    before: Recipe | None = None  # whose learning rates the test multiplied

    def draw(self, folder: Path) -> None:
        if self.test is not None and self.before is not None:
            save_range_test(self.test, self.before.optimiser, folder / "lr_find.png")


def tune(recipe: Recipe, plan: Callable[[Recipe], Plan], world: World, *, lr_find: bool, sharded: bool) -> Tuned:
    """`plan` makes a model anew each time: what a trial has trained is thrown away, and the training that follows is
    that of the recipe alone."""
    notes: list[str] = []
    if recipe.auto_batch:
        recipe, words = fit_batch(plan(recipe), recipe, world, sharded=sharded)
        notes.append(words)
        free_unused(world.device)
    if not lr_find:
        return Tuned(recipe, tuple(notes))
    test = world.agreed(find_rate(plan(recipe), world, sharded=sharded))
    free_unused(world.device)
    answered, words = _answered(recipe, test)
    return Tuned(answered, (*notes, words), test, recipe)


def _answered(recipe: Recipe, test: RangeTest) -> tuple[Recipe, str]:
    factor, old = test.suggestion, recipe.optimiser
    if factor is None:
        return recipe, f"learning rate: the loss did not fall in the range test, so it stays {old.lr:g}"
    new = old.times(factor)
    matrices = f" and {new.muon_lr:g} for matrices" if old.name == "muon" else ""
    words = f"learning rate: {new.lr:g}{matrices}, {factor:g} times the recipe's; see lr_find.png"
    return replace(recipe, optimiser=new), words
