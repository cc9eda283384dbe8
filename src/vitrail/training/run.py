"""A folder that holds one training: recipe, log, checkpoints, plots, report, the best and the last model."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.classifier import Classifier, load
from vitrail.errors import VitrailError
from vitrail.training.parallel import Launch
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_files import read_recipe, to_toml

FACTS = "run.json"


@dataclass(frozen=True)
class Run:
    """`.recipe`, `.facts`, `.best` and `.last` (classifiers), and the files in `.folder`."""

    folder: Path

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Run:
        run = cls(Path(folder))
        if not (run.folder / FACTS).is_file():
            raise VitrailError(f"{run.folder} is no run: it has no {FACTS}")
        return run

    @classmethod
    def begin(cls, folder: str | os.PathLike[str] | None, name: str, recipe: Recipe, facts: dict[str, Any]) -> Run:
        """Makes the folder: the one that was asked for, which must be new or empty, or `runs/<name>-<number>`."""
        place = Path(folder) if folder is not None else _numbered(Path("runs"), name)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            hint = f"go on with --resume {place}, or choose another --out"
            raise VitrailError(
                f"{place} is already there: {hint if (place / FACTS).is_file() else 'choose another --out'}"
            )
        place.mkdir(parents=True, exist_ok=True)
        run = cls(place)
        run.write_recipe(recipe)
        run.write_facts(facts)
        return run

    @classmethod
    def begun_by(cls, launch: Launch, folder: str | os.PathLike[str] | None, name: str) -> Run | None:
        """The run that this launch of torchrun has begun before, if it has: in the folder that was asked for, or the
        newest of those with this name."""
        numbered = sorted(Path("runs").glob(f"{name}-*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for place in [Path(folder)] if folder is not None else numbered:
            run = cls(place)
            if (place / FACTS).is_file() and launch.began(run.facts.get("launch")):
                return run if launch.again or not run.is_complete else None
        return None

    @property
    def recipe(self) -> Recipe:
        return read_recipe(self.folder / "recipe.toml")

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / FACTS).read_text(encoding="utf-8"))
        return found

    @property
    def scores(self) -> dict[str, Any]:
        """What the best model reached on the validation part; empty where there was none."""
        found: dict[str, Any] = self.facts.get("scores", {})
        return found

    @property
    def best(self) -> Classifier:
        return load(self.folder)

    @property
    def last(self) -> Classifier:
        return load(self.folder / "last")

    @property
    def is_complete(self) -> bool:
        return bool(self.facts.get("complete"))

    @contextmanager
    def enough_room(self) -> Iterator[None]:
        """A disk that is full, wherever the run writes, is an error of one line."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            free = shutil.disk_usage(self.folder).free
            raise VitrailError(
                f"the disk of {self.folder} is full, {free:,} bytes are free: make room, and go on with "
                f"vitrail train --resume {self.folder}"
            ) from error

    def write_recipe(self, recipe: Recipe) -> None:
        _replace(self.folder / "recipe.toml", to_toml(recipe))

    def write_facts(self, facts: dict[str, Any]) -> None:
        _replace(self.folder / FACTS, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")


def _replace(path: Path, text: str) -> None:
    """A text file in one step: the old one or the new one, never a part."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def _numbered(folder: Path, name: str) -> Path:
    """`runs/photos-1`, then `runs/photos-2`, …"""
    taken = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    number = 1
    while f"{name}-{number}" in taken:
        number += 1
    return folder / f"{name}-{number}"
