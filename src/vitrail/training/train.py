"""`vitrail.train`: from data and a recipe to a run."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision

import vitrail
from vitrail.classifier import Classifier
from vitrail.data.opening import open_source
from vitrail.data.source import Source
from vitrail.data.splits import make_splits
from vitrail.errors import ConfigError, VitrailError
from vitrail.training.assembly import Plan
from vitrail.training.checkpoints import find_latest
from vitrail.training.choice import choose_recipe
from vitrail.training.feeding import Feeding, check_labels
from vitrail.training.groups import parameter_groups
from vitrail.training.job import Job
from vitrail.training.objective import make_objective
from vitrail.training.parallel import Launch, World, joined_world
from vitrail.training.precision import Precision
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_files import make_recipe, to_toml
from vitrail.training.run import Run
from vitrail.training.schedules import make_schedule
from vitrail.training.start import Start, default_weights, empty_model, shape_of, start_model
from vitrail.training.stopping import listening
from vitrail.training.whitening import whiten

GIVEN = "given in Python"  # a model that no address leads to


def train(
    data: str | os.PathLike[str] | Source | None = None,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    start: str | Classifier | None = None,
    grow_from: str | Classifier | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | None = None,
    shard: bool = False,
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
    model, not a copy. Where torchrun starts processes again because one was lost, they go on with their run.
    """
    address = "digits" if data is None else data
    begin = Start(start, grow_from)
    with joined_world(device) as world:
        if source is None:
            source = address if isinstance(address, Source) else _open(address, data_options or {}, world)
        launch, name = Launch.of(world), _name(source)
        if (begun := world.first(lambda: Run.begun_by(launch, out, name))) is not None:
            return _go_on(begun, source, begin, world, trackers, quiet=quiet)
        chosen, why = choose_recipe(recipe, source, start, digits=data is None)
        if begin == Start() and recipe is None and why == "scratch":
            begin = Start(world.first(lambda: default_weights(chosen)))
            chosen, why = choose_recipe(None, source, begin.model)
        chosen = _changed(chosen, {**(changes or {}), **settings})
        if chosen.distillation.teacher:
            chosen = _changed(chosen, {"distillation.teacher": _absolute(chosen.distillation.teacher)})
        named = None if isinstance(address, Source) else _absolute(address)
        facts = _facts(named, source, begin, data_options, why, world)
        plan = _plan(chosen, source, begin, world)  # what cannot be trained leaves no folder behind
        facts |= {"shard": shard, "launch": launch.name, "model": shape_of(plan.classifier)}
        run = world.first(lambda: Run.begin(out, name, chosen, facts))
        return _train(run, plan, world, trackers, shard=shard, quiet=quiet)


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
    run = Run.open(folder)
    facts = run.facts
    if run.is_complete:
        return run
    if facts["data"] is None and source is None:
        raise VitrailError(f"{run.folder} was trained on data given in Python: begin it again there")
    with joined_world(device) as world:
        source = _open(facts["data"], facts["data_options"], world) if source is None else source
        begin = Start(facts["start"], facts["grow_from"])
        return _go_on(run, source, begin, world, trackers, quiet=quiet)


def _open(address: str | os.PathLike[str], options: Mapping[str, Any], world: World) -> Source:
    return world.one_then_all(lambda: open_source(address, **options))


def _go_on(run: Run, source: Source, start: Start, world: World, trackers: Sequence[str], *, quiet: bool) -> Run:
    facts = run.facts
    if run.is_complete:
        return run
    if mark_of(source) != facts["samples"]:
        raise VitrailError(
            f"{source.name} has changed since {run.folder} began: a run goes on only with its own data; "
            f"train anew with --recipe {run.folder}"
        )
    if world.first(lambda: find_latest(run.folder / "checkpoints") is not None):
        plan = _plan(run.recipe, source, facts["model"], world)
    elif GIVEN in (start.model, start.grow):
        raise VitrailError(f"{run.folder} began with a model given in Python, and is not saved: begin it again there")
    else:
        plan = _plan(run.recipe, source, start, world)
    return _train(run, plan, world, trackers, shard=facts["shard"], quiet=quiet, resumed=True)


def _plan(recipe: Recipe, source: Source, start: Start | Mapping[str, Any], world: World) -> Plan:
    """Everything that can be refused is refused here. With a shape for a start, weights come from a checkpoint."""
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    data = recipe.data
    splits = make_splits(source, fraction=data.val_fraction, seed=data.split_seed, subset=data.subset)
    check_labels(splits)
    if isinstance(start, Start):
        classifier, origin = start_model(recipe, source.classes, start)
    else:
        classifier, origin = empty_model(start, source.classes), "its last checkpoint"
    feeding = Feeding(recipe, splits, classifier.to(world.device).preprocessing, world)
    feeding.check()
    if recipe.whiten and isinstance(start, Start):
        if start != Start():
            raise ConfigError("whiten is for models from scratch: leave it out, --no-whiten, to start from another")
        whiten(classifier.model, feeding.train, classifier.preprocessing)
    make_schedule(recipe.schedule, feeding.total_steps, feeding.schedule.steps_per_epoch)
    objective = make_objective(recipe, feeding.train, classifier)
    parameter_groups(classifier.model, recipe.optimiser)
    Precision(recipe.precision, world.device)
    return Plan(recipe, classifier, origin, feeding, objective)


def _train(
    run: Run, plan: Plan, world: World, trackers: Sequence[str], *, shard: bool, quiet: bool, resumed: bool = False
) -> Run:
    feeding = plan.feeding
    options = {"shard": shard, "quiet": quiet, "resumed": resumed}
    with run.enough_room(), listening() as stop:
        job = Job(run, plan, world, stop, trackers, **options)
        with closing(job):
            job.note(
                f"{plan.origin}; {len(feeding.train):,} pictures to train, {len(feeding.splits.val):,} to validate"
            )
            job.run_all()
    return run


def _changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    plain = tomllib.loads(to_toml(recipe))
    return make_recipe(plain, {key: value for key, value in changes.items() if value is not None})


def mark_of(source: Source) -> str:
    """Changes with the names of the pictures, their order, labels and splits."""
    samples = source.samples
    columns = (samples.names.block, samples.names.ends, samples.labels, samples.label_list, samples.label_ends)
    digest = hashlib.blake2b("\n".join(source.classes).encode(errors="surrogateescape"), digest_size=16)
    for column in (*columns, samples.splits, samples.groups):
        digest.update(b"" if column is None else np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def _absolute(address: str | os.PathLike[str]) -> str:
    """A path holds from everywhere, so that a run goes on wherever one stands."""
    return os.path.abspath(address) if os.path.exists(address) else os.fspath(address)


def _name(source: Source) -> str:
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(source.name).name).strip("-.")
    return words or "run"


def _place(model: str | Classifier | None) -> str | None:
    return GIVEN if isinstance(model, Classifier) else None if model is None else _absolute(model)


def _facts(address: str | None, source: Source, start: Start, options: Any, why: str, world: World) -> dict[str, Any]:
    return {
        "data": address,
        "data_options": dict(options or {}),
        "start": _place(start.model),
        "grow_from": _place(start.grow),
        "recipe": why,
        "classes": list(source.classes),
        "samples": mark_of(source),
        "processes": world.size,
        "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else platform.machine(),
        "versions": {
            "vitrail": vitrail.__version__,
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "python": platform.python_version(),
        },
    }
