"""`vitrail.train`: from data and a recipe to a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitrail.classifier import Classifier
from vitrail.data.source import Source
from vitrail.data.splits import make_splits
from vitrail.errors import ConfigError
from vitrail.training.assembly import Plan
from vitrail.training.choice import choose_recipe
from vitrail.training.feeding import Feeding, check_classes, check_labels
from vitrail.training.job import Job
from vitrail.training.launching import (
    Manner,
    Work,
    absolute,
    begin,
    changed,
    facts_of,
    go_on,
    go_on_with,
    open_data,
    other_start,
    run_name,
)
from vitrail.training.objective import make_objective
from vitrail.training.parallel import Launch, World, joined_world
from vitrail.training.recipe import Recipe
from vitrail.training.run import Run
from vitrail.training.start import Start, default_weights, empty_model, start_model
from vitrail.training.whitening import whiten_as_asked


def train(
    data: str | os.PathLike[str] | Source | None = None,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    start: str | Classifier | None = None,
    grow_from: str | Classifier | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | None = None,
    shard: bool = False,
    lr_find: bool = False,
    changes: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    source: Source | None = None,
    trackers: Sequence[str] = (),
    quiet: bool = True,
    **settings: Any,
) -> Run:
    """Trains, and gives the run: `vitrail.train("photos/", start="my-model/", epochs=5).best.predict("new.jpg")`.

    `data` is anything a source can be made from; none is the handwritten digits. `recipe` is a name or a file; none
    chooses one. `start` is the model to fine-tune; `grow_from` is one with fewer blocks than the recipe's, which begins
    as its equal. Keyword arguments and `changes` (`{"optimiser.lr": 1e-4}`) change the recipe; `data_options` go to
    `open_source`; `source` is what `data` means, where it is open already. `shard` gives each process a part of the
    model, not a copy. `lr_find` looks for a learning rate first, and `batch_size="auto"` for the batch that fits. Where
    torchrun starts processes again because one was lost, they go on with their run.
    """
    address = "digits" if data is None else data
    start_at, manner = Start(start, grow_from), Manner(trackers, quiet, shard)
    with joined_world(device) as world:
        if source is None:
            source = address if isinstance(address, Source) else open_data(address, data_options or {}, world)
        launch, name = Launch.of(world), run_name(source)
        if (begun := world.first(lambda: Run.begun_by(launch, out, name))) is not None:
            return go_on(TRAINING, begun, source, start_at, world, manner)
        chosen, why = choose_recipe(recipe, source, start, digits=data is None)
        if start_at == Start() and recipe is None and why == "scratch":
            start_at = Start(world.first(lambda: default_weights(chosen)))
            chosen, why = choose_recipe(None, source, start_at.model)
        chosen = changed(chosen, {**(changes or {}), **settings})
        if chosen.distillation.teacher:
            chosen = changed(chosen, {"distillation.teacher": absolute(chosen.distillation.teacher)})
        named = None if isinstance(address, Source) else absolute(address)
        facts = facts_of(named, source, start_at, data_options, why, world)
        remarks = other_start(recipe, start_at)
        options: dict[str, Any] = {"launch": launch, "out": out, "facts": facts, "lr_find": lr_find, "remarks": remarks}
        return begin(TRAINING, chosen, source, start_at, world, manner, **options)


def resume(
    folder: str | os.PathLike[str],
    *,
    device: str | None = None,
    source: Source | None = None,
    trackers: Sequence[str] = (),
    quiet: bool = True,
) -> Run:
    """Goes on with a run where its last whole checkpoint left it: the same bits as if it had never stopped.

    A run that is complete is given back as it is. `source` is the run's data where it is open already.
    """
    return go_on_with(TRAINING, folder, device, source, Manner(trackers, quiet))


def _plan(recipe: Recipe, source: Source, start: Start | Mapping[str, Any], world: World) -> Plan:
    if recipe.method is not None:
        raise ConfigError(f"the recipe learns without labels, by {recipe.method}: use vitrail pretrain")
    data = recipe.data
    check_classes(source)
    splits = make_splits(source, fraction=data.val_fraction, seed=data.split_seed, subset=data.subset)
    check_labels(splits)
    if isinstance(start, Start):
        classifier, origin = start_model(recipe, source.classes, start)
    else:
        classifier, origin = empty_model(start, source.classes), "its last checkpoint"
    feeding = Feeding(recipe, splits, classifier.to(world.device).preprocessing, world)
    if recipe.auto_batch:  # until it is found
        recipe = replace(recipe, batch_size=min(recipe.batch_size, feeding.largest_batch()))
        feeding = replace(feeding, recipe=recipe)
    feeding.check()
    whiten_as_asked(recipe, start, classifier, feeding.train)
    return Plan(recipe, classifier, origin, feeding, make_objective(recipe, feeding.train, classifier))


TRAINING = Work(_plan, Job)
