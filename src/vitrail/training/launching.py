"""How a run begins and goes on, whatever is learned in it."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision

import vitrail
from vitrail.classifier import Classifier
from vitrail.data.opening import open_source
from vitrail.data.source import Source
from vitrail.errors import VitrailError
from vitrail.model.devices import free_unused
from vitrail.training.assembly import Plan
from vitrail.training.checkpoints import find_latest
from vitrail.training.groups import parameter_groups
from vitrail.training.job import Job
from vitrail.training.parallel import Launch, World, joined_world
from vitrail.training.precision import Precision, choose_precision
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_files import make_recipe, to_toml
from vitrail.training.run import FACTS, Run
from vitrail.training.schedules import make_schedule
from vitrail.training.stages import check_sizes
from vitrail.training.start import Start, shape_of
from vitrail.training.stopping import listening
from vitrail.training.tuning import tune

GIVEN = "given in Python"  # a model that no address leads to


@dataclass(frozen=True)
class Work:
    """What differs between learning with labels and without. `plan` refuses what cannot be learned from or with; where
    the start is a shape, weights come from a checkpoint."""

    plan: Callable[[Recipe, Source, Start | Mapping[str, Any], World], Plan]
    job: type[Job]


@dataclass(frozen=True)
class Manner:
    """How a run is carried out; none of it changes what is learned."""

    trackers: Sequence[str] = ()
    quiet: bool = True
    shard: bool = False


def open_data(address: str | os.PathLike[str], options: Mapping[str, Any], world: World) -> Source:
    return world.one_then_all(lambda: open_source(address, **options))


def begin(
    work: Work,
    recipe: Recipe,
    source: Source,
    start: Start,
    world: World,
    manner: Manner,
    *,
    launch: Launch,
    out: str | os.PathLike[str] | None,
    facts: dict[str, Any],
    lr_find: bool = False,
    remarks: Sequence[str] = (),
) -> Run:
    """A new run; what cannot be trained leaves no folder behind. `lr_find` looks for a learning rate first."""

    def plan(recipe: Recipe) -> Plan:
        return _planned(work, recipe, source, start, world)

    tuned = tune(recipe, plan, world, lr_find=lr_find, sharded=manner.shard)
    final = plan(tuned.recipe)
    facts = facts | {"shard": manner.shard, "launch": launch.name, "model": shape_of(final.classifier)}
    run = world.first(lambda: Run.begin(out, run_name(source), tuned.recipe, facts))
    world.first(lambda: tuned.draw(run.folder))
    return _carry_out(work, run, final, world, manner, notes=[*remarks, *tuned.notes])


def go_on_with(
    work: Work, folder: str | os.PathLike[str], device: str | None, source: Source | None, manner: Manner
) -> Run:
    """With a run by its folder; `source` is its data, where it is open already."""
    run = Run.open(folder)
    facts = run.facts
    if run.is_complete:
        return run
    if facts["data"] is None and source is None:
        raise VitrailError(f"{run.folder} was trained on data given in Python: begin it again there")
    with joined_world(device) as world:
        source = open_data(facts["data"], facts["data_options"], world) if source is None else source
        return go_on(work, run, source, Start(facts["start"], facts["grow_from"]), world, manner)


def go_on(work: Work, run: Run, source: Source, start: Start, world: World, manner: Manner) -> Run:
    """From its last whole checkpoint, or where it has none from where it began."""
    facts = run.facts
    if run.is_complete:
        return run
    if mark_of(source) != facts["samples"]:
        raise VitrailError(
            f"{source.name} has changed since {run.folder} began: a run goes on only with its own data; "
            f"train anew with --recipe {run.folder}"
        )
    if world.first(lambda: find_latest(run.folder / "checkpoints") is not None):
        plan = _planned(work, run.recipe, source, facts["model"], world)
    elif GIVEN in (start.model, start.grow):
        raise VitrailError(f"{run.folder} began with a model given in Python, and is not saved: begin it again there")
    else:
        plan = _planned(work, run.recipe, source, start, world)
    return _carry_out(work, run, plan, world, replace(manner, shard=facts["shard"]), resumed=True)


def _planned(work: Work, recipe: Recipe, source: Source, start: Start | Mapping[str, Any], world: World) -> Plan:
    """With all that the loop would refuse refused now."""
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    plan = work.plan(recipe, source, start, world)
    feeding = plan.feeding
    make_schedule(recipe.schedule, feeding.total_steps, feeding.schedule.steps_per_epoch)
    model = plan.classifier.model
    check_sizes(plan.recipe, model.config)
    parameter_groups(model, recipe.optimiser)
    Precision(choose_precision(recipe.precision, world.device, model.config), world.device).prepare(model)
    return plan


def _carry_out(
    work: Work,
    run: Run,
    plan: Plan,
    world: World,
    manner: Manner,
    *,
    resumed: bool = False,
    notes: Sequence[str] = (),
) -> Run:
    feeding = plan.feeding
    options = {"shard": manner.shard, "quiet": manner.quiet, "resumed": resumed}
    with run.enough_room(), listening() as stop:
        job = work.job(run, plan, world, stop, manner.trackers, **options)
        with closing(job):
            job.note(
                f"{plan.origin}; {len(feeding.train):,} pictures to train, {len(feeding.splits.val):,} to validate"
            )
            for line in notes:
                job.report({"kind": "event", "step": 0, "text": line})
            job.run_all()
    del job
    free_unused(world.device)  # for the next training of this process
    return run


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    plain = tomllib.loads(to_toml(recipe))
    return make_recipe(plain, {key: value for key, value in changes.items() if value is not None})


def other_start(recipe: str | os.PathLike[str] | Recipe | None, start: Start) -> list[str]:
    """A line, where the recipe is that of a run that began with weights, and this one does not."""
    if not isinstance(recipe, str | os.PathLike) or start != Start() or not (Path(recipe) / FACTS).is_file():
        return []
    facts = Run.open(recipe).facts
    began = {flag: facts.get(key) for flag, key in (("--from", "start"), ("--grow-from", "grow_from"))}
    return [f"{recipe} began with other weights: to train the same again, give {flag} {model}"
            for flag, model in began.items() if model not in (None, GIVEN)]  # fmt: skip


def mark_of(source: Source) -> str:
    """Changes with the names of the pictures, their order, labels and splits."""
    samples = source.samples
    columns = (samples.names.block, samples.names.ends, samples.labels, samples.label_list, samples.label_ends)
    digest = hashlib.blake2b("\n".join(source.classes).encode(errors="surrogateescape"), digest_size=16)
    for column in (*columns, samples.splits, samples.groups):
        digest.update(b"" if column is None else np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def absolute(address: str | os.PathLike[str]) -> str:
    """A path holds from everywhere, so that a run goes on wherever one stands."""
    return os.path.abspath(address) if os.path.exists(address) else os.fspath(address)


def run_name(source: Source) -> str:
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(source.name).name).strip("-.")
    return words or "run"


def _place(model: str | Classifier | None) -> str | None:
    return GIVEN if isinstance(model, Classifier) else None if model is None else absolute(model)


def facts_of(address: str | None, source: Source, start: Start, options: Any, why: str, world: World) -> dict[str, Any]:
    """What is written down about a run when it begins."""
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
