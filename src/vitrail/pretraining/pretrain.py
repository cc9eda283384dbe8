"""`vitrail.pretrain`: from pictures without labels to a run that holds an encoder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from vitrail.classifier import Classifier
from vitrail.data.source import Source
from vitrail.data.splits import make_splits
from vitrail.errors import ConfigError
from vitrail.pretraining.building import check, make_learner, make_objective, take_decoder, views_of
from vitrail.pretraining.job import PretrainingJob
from vitrail.training.assembly import Plan
from vitrail.training.choice import is_small
from vitrail.training.feeding import Feeding
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
    run_name,
)  # fmt: skip
from vitrail.training.methods import Dino, Mae, Masked, Target
from vitrail.training.parallel import Launch, World, joined_world
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_files import read_recipe
from vitrail.training.run import Run
from vitrail.training.start import Start, empty_model, start_model
from vitrail.training.train import TRAINING
from vitrail.training.whitening import whiten_as_asked

Method = Literal["masked", "mae", "dino"]
DEFAULT: Method = "mae"
TABLES: dict[str, type[Masked] | type[Mae] | type[Dino]] = {"masked": Masked, "mae": Mae, "dino": Dino}


def pretrain(
    data: str | os.PathLike[str] | Source,
    *,
    method: Method | None = None,
    target: Target | None = None,
    mask_ratio: float | None = None,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    start: str | Classifier | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | None = None,
    shard: bool = False,
    lr_find: bool = False,
    changes: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    trackers: Sequence[str] = (),
    quiet: bool = True,
    **settings: Any,
) -> Run:
    """Learns without labels, and gives the run, whose encoder is to be trained from:
    `vitrail.train("photos/", start=vitrail.pretrain("photos/", method="mae").folder)`.

    `data` is anything a source can be made from; of a folder every picture is taken, wherever it lies. `method` is the
    recipe's, or without a recipe "mae": "masked" (the paper's, with a `target`), "mae" or "dino". `start` is a model to
    go on from: of a masked autoencoder its decoder too. All else is as in `vitrail.train`.
    """
    manner, start_at = Manner(trackers, quiet, shard), Start(start)
    options = {"everything": True, **(data_options or {})}
    with joined_world(device) as world:
        source = data if isinstance(data, Source) else open_data(data, options, world)
        launch = Launch.of(world)
        if (begun := world.first(lambda: Run.begun_by(launch, out, run_name(source)))) is not None:
            return go_on(PRETRAINING, begun, source, start_at, world, manner)
        chosen, why = _choose(recipe, method, source)
        asked = {"masked.target": target, f"{chosen.method}.mask_ratio": mask_ratio}
        chosen = changed(chosen, {**(changes or {}), **settings, **asked})
        address = None if isinstance(data, Source) else absolute(data)
        facts = facts_of(address, source, start_at, options, why, world) | {"method": chosen.method}
        how: dict[str, Any] = {"launch": launch, "out": out, "facts": facts, "lr_find": lr_find}
        return begin(PRETRAINING, chosen, source, start_at, world, manner, **how)


def resume(
    folder: str | os.PathLike[str],
    *,
    device: str | None = None,
    source: Source | None = None,
    trackers: Sequence[str] = (),
    quiet: bool = True,
) -> Run:
    """Goes on with a run, with labels or without, where its last whole checkpoint left it: the same bits as if it had
    never stopped. A run that is complete is given back as it is. `source` is its data, where it is open already."""
    work = TRAINING if Run.open(folder).recipe.method is None else PRETRAINING
    return go_on_with(work, folder, device, source, Manner(trackers, quiet))


def _choose(asked: str | os.PathLike[str] | Recipe | None, method: Method | None, source: Source) -> tuple[Recipe, str]:
    """The recipe, and what it was chosen by."""
    if method is not None and method not in TABLES:
        raise ConfigError(f"there is no method {method!r}: choose from {', '.join(TABLES)}")
    if asked is None:
        name: str = method or DEFAULT
        name = f"cifar10-{name}" if is_small(source) else name
        return read_recipe(name), name
    recipe, why = (asked, "given in Python") if isinstance(asked, Recipe) else (read_recipe(asked), os.fspath(asked))
    if recipe.method is None and method is None:
        raise ConfigError(f"{why} is a recipe for training with labels: choose a --method, {', '.join(TABLES)}")
    if recipe.method is None:
        table: Any = {str(method): TABLES[str(method)]()}
        recipe = replace(recipe, **table)
    if method is not None and recipe.method != method:
        raise ConfigError(f"{why} is a recipe for {recipe.method}, not for {method}: leave one of them out")
    return recipe, why


def _plan(recipe: Recipe, source: Source, start: Start | Mapping[str, Any], world: World) -> Plan:
    check(recipe)
    data = recipe.data
    splits = make_splits(_said(source), fraction=data.val_fraction, seed=data.split_seed, subset=data.subset)
    if isinstance(start, Start):
        encoder, _ = start_model(recipe, (), start)
    else:
        encoder = empty_model(start, ())
    shown, views = views_of(recipe, encoder.preprocessing)
    feeding = Feeding(shown, splits, encoder.preprocessing, world, views=views)
    if recipe.auto_batch:  # until it is found
        size = min(recipe.batch_size, feeding.largest_batch())
        recipe, shown = replace(recipe, batch_size=size), replace(shown, batch_size=size)
        feeding = replace(feeding, recipe=shown)
    feeding.check()
    whiten_as_asked(recipe, start, encoder, feeding.train)
    model = make_learner(recipe, encoder).to(world.device)
    origin = _origin(recipe, encoder, start)
    if isinstance(start, Start) and isinstance(start.model, str):
        origin += take_decoder(model, recipe, start.model)
    learner = Classifier(model, encoder.preprocessing, ())
    return Plan(recipe, learner, origin, feeding, make_objective(model, feeding, world))


def _said(source: Source) -> Source:
    """With a word about its labels."""
    if not source.classes:
        return source
    words = "labels are there and are not used to learn"
    return replace(source, notes=(*source.notes, words))


def _origin(recipe: Recipe, encoder: Classifier, start: Start | Mapping[str, Any]) -> str:
    """Where the weights are from."""
    if not isinstance(start, Start):
        return f"{recipe.method}, from its last checkpoint"
    if start.model is not None:
        name = "the given model" if isinstance(start.model, Classifier) else str(start.model)
        return f"{recipe.method}, from {name}"
    count = sum(parameter.numel() for parameter in encoder.model.parameters())
    return f"{recipe.method}: an encoder with {count:,} parameters from scratch"


PRETRAINING = Work(_plan, PretrainingJob)
