"""The runs of a study: which are alike, where their settings stand, and whether what is in their folders is theirs."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.data.source import Source
from vitrail.errors import VitrailError
from vitrail.model.zoo import Config
from vitrail.studies.plan import Choice, Row, flattened
from vitrail.training.launching import absolute, mark_of
from vitrail.training.recipe import Recipe
from vitrail.training.run import FACTS, Run


class Work(NamedTuple):
    """One run of the study."""

    row: Row
    choice: Choice
    seed: int
    folder: Path
    config: Config

    @property
    def recipe(self) -> Recipe:
        return self.choice.recipes[self.seed]

    @property
    def is_judged(self) -> bool:
        """On the test part, as soon as it is trained; otherwise validation chooses first."""
        return len(self.row.choices) == 1

    @property
    def step(self) -> tuple[Any, ...]:
        """Works for which this is equal compute the same step: what was compiled for one serves the others."""
        recipe = self.recipe
        shapes = (recipe.batch_size, recipe.accumulate, recipe.data, recipe.stages)
        return self.config, shapes, recipe.precision, recipe.compile, recipe.optimiser.name, repr(recipe.augmentation)

    @property
    def kind(self) -> Recipe:
        """Works for which this is equal differ in seeds and learning rates alone."""
        optimiser = dataclasses.replace(self.recipe.optimiser, lr=1.0, muon_lr=1.0)
        return dataclasses.replace(self.recipe, seed=0, optimiser=optimiser)

    def in_the_file(self, words: str) -> str:
        """What a training says to those who set its flags, said to those with a study file: `--batch-size 4` becomes
        `settings.batch_size = 4`, or wherever else the file has it."""
        return _FLAG.sub(self._key, words.replace(" (batch_size, in a recipe)", ""))

    def _key(self, flag: re.Match[str]) -> str:
        key, value = flag["name"].replace("-", "_"), "false" if flag["no"] else flag["value"]
        if key not in _KEYS:
            return flag[0]
        if value is None:
            return self.row.place(key)
        return f"{self.row.place(key)} = {value if value.isdigit() or flag['no'] else json.dumps(value)}"


_FLAG = re.compile(r"--(?P<no>no-)?(?P<name>[a-z]+(-[a-z]+)*)( (?P<value>[a-z]*\d+))?")
_KEYS = {item.name for item in dataclasses.fields(Recipe)}


def grouped(works: list[Work]) -> list[Work]:
    """In their order, but those that compute the same step one after the other."""
    places: dict[tuple[Any, ...], int] = {}
    for work in works:
        places.setdefault(work.step, len(places))
    return sorted(works, key=lambda work: places[work.step])


def by_row(works: list[Work]) -> list[list[Work]]:
    found: dict[int, list[Work]] = {}
    for work in works:
        found.setdefault(id(work.row), []).append(work)
    return list(found.values())


def refuse_changed(works: list[Work], source: Source, again: bool) -> None:
    """What is there must be what is asked for."""
    changed = []
    for work in works:
        if (work.folder / FACTS).is_file():
            run = Run.open(work.folder)
            if (difference := _difference(run, work.recipe, source)) is not None:
                changed.append((work.folder, difference))
        elif work.folder.is_dir() and {path.name for path in work.folder.iterdir()} <= _BEGUN:
            shutil.rmtree(work.folder)  # killed before there was anything
    if changed and not again:
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        place, difference = changed[0]
        raise VitrailError(
            f"{place} was trained with other settings ({difference}){more}: "
            "--again trains such runs anew, or choose another --out"
        )
    for place, _ in changed:
        shutil.rmtree(place)


_BEGUN = {"recipe.toml", ".recipe.toml.new", ".run.json.new"}


def _difference(run: Run, asked: Recipe, source: Source) -> str | None:
    """Memory that was short may have changed `accumulate`, which changes no result."""
    if run.facts["samples"] != mark_of(source):
        return f"{source.name} has changed"
    was, now = (flattened(dataclasses.asdict(dataclasses.replace(r, accumulate=1))) for r in (run.recipe, asked))
    if now["distillation.teacher"]:
        now["distillation.teacher"] = absolute(now["distillation.teacher"])  # as a run writes it down
    key = next((key for key in (*now, *was) if now.get(key) != was.get(key)), None)
    return None if key is None else f"{key} was {was.get(key)}, now {now.get(key)}"
