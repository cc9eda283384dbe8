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

import torch
import torchvision

import vitrail
from vitrail.classifier import Classifier
from vitrail.data.opening import open_source
from vitrail.data.source import Source
from vitrail.data.splits import make_splits
from vitrail.errors import VitrailError
from vitrail.training.choice import choose_recipe
from vitrail.training.feeding import Feeding
from vitrail.training.job import Job
from vitrail.training.parallel import World, joined_world
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_files import make_recipe, to_toml
from vitrail.training.run import Run
from vitrail.training.start import start_model
from vitrail.training.stopping import listening


def train(
    data: str | os.PathLike[str] | Source | None = None,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    start: str | Classifier | None = None,
    out: str | os.PathLike[str] | None = None,
    device: str | None = None,
    changes: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    trackers: Sequence[str] = (),
    quiet: bool = True,
    **settings: Any,
) -> Run:
    """Trains, and gives the run: `vitrail.train("photos/", start="my-model/", epochs=5).best.predict("new.jpg")`.

    `data` is anything a source can be made from; none is the handwritten digits. `recipe` is a name or a file; none
    chooses one. `start` is the model to fine-tune. Keyword arguments and `changes` (`{"optimiser.lr": 1e-4}`) change
    the recipe; `data_options` go to `open_source`.
    """
    address = "digits" if data is None else data
    with joined_world(device) as world:
        source = address if isinstance(address, Source) else open_source(address, **(data_options or {}))
        chosen, why = choose_recipe(recipe, source, start, digits=data is None)
        chosen = _changed(chosen, {**(changes or {}), **settings})
        named = None if isinstance(address, Source) else os.fspath(address)
        facts = _facts(named, source, start, data_options, why, world)
        run = Run.begin(out, _name(source), chosen, facts) if world.is_first else Run(Path("."))
        run = world.agreed(run)
        return _train(run, chosen, source, start, world, trackers, quiet=quiet or not world.is_first)


def resume(
    folder: str | os.PathLike[str], *, device: str | None = None, trackers: Sequence[str] = (), quiet: bool = True
) -> Run:
    """Goes on with a run where its last whole checkpoint left it: the same bits as if it had never stopped."""
    run = Run.open(folder)
    facts = run.facts
    if run.is_complete:
        raise VitrailError(f"{run.folder} is complete: there is nothing to go on with")
    if facts["data"] is None:
        raise VitrailError(f"{run.folder} was trained on data given in Python: it can only go on there")
    with joined_world(device) as world:
        source = open_source(facts["data"], **facts["data_options"])
        if source.samples.names.block.size != facts["names"] or list(source.classes) != facts["classes"]:
            raise VitrailError(
                f"{facts['data']} has changed since {run.folder} began: a run goes on only with its own data"
            )
        return _train(run, run.recipe, source, facts["start"], world, trackers, quiet=quiet, resumed=True)


def _train(
    run: Run,
    recipe: Recipe,
    source: Source,
    start: str | Classifier | None,
    world: World,
    trackers: Sequence[str],
    *,
    quiet: bool,
    resumed: bool = False,
) -> Run:
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    splits = make_splits(source, fraction=recipe.data.val_fraction, seed=recipe.data.split_seed)
    classifier, origin = start_model(recipe, source.classes, start)
    classifier.to(world.device)
    feeding = Feeding(recipe, splits, classifier.preprocessing, world)
    with listening() as stop:
        job = Job(run, recipe, classifier, feeding, world, stop, trackers, quiet=quiet, resumed=resumed)
        with closing(job):
            job.note(f"{origin}; {len(feeding.train):,} pictures to train, {len(splits.val):,} to validate")
            job.run_all()
    return run


def _changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    plain = tomllib.loads(to_toml(recipe))
    return make_recipe(plain, {key: value for key, value in changes.items() if value is not None})


def _mark(source: Source) -> str:
    """Changes with the names of the pictures."""
    return hashlib.blake2b(source.samples.names.block.tobytes(), digest_size=16).hexdigest()


def _name(source: Source) -> str:
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(source.name).name).strip("-.")
    return words or "run"


def _facts(address: str | None, source: Source, start: Any, options: Any, why: str, world: World) -> dict[str, Any]:
    return {
        "data": address,
        "data_options": dict(options or {}),
        "start": start if isinstance(start, str) or start is None else "given in Python",
        "recipe": why,
        "classes": list(source.classes),
        "names": _mark(source),
        "processes": world.size,
        "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else platform.machine(),
        "versions": {
            "vitrail": vitrail.__version__,
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "python": platform.python_version(),
        },
    }
