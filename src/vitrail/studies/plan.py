"""What a study file asks for: rows, each of some runs, each with its whole recipe."""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.errors import ConfigError, VitrailError
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_files import find_recipe, read_recipe
from vitrail.training.stages import check_sizes
from vitrail.training.start import configured

KEYS = ("title", "data", "recipe", "seeds", "settings", "vary", "choose", "rows", "plot")
ROW_KEYS = ("recipe", "series", "vary")  # all others of a row are settings of its recipe
AXES = {"training_flops": "training FLOPs", "parameters": "parameters", "row": ""}
PLOT_KEYS = ("x", "label", "log")


@dataclass(frozen=True)
class Choice:
    """Trainings that differ in their seeds alone. `value` is of the setting that is chosen, where one is."""

    value: Any
    folder: str  # below `runs/`
    recipes: Mapping[int, Recipe]  # by seed

    @property
    def recipe(self) -> Recipe:
        return next(iter(self.recipes.values()))


@dataclass(frozen=True)
class Row:
    """A row of the table. Of several choices, validation chooses one, and the row is about that."""

    name: str
    series: str
    settings: Mapping[str, Any]  # what varies, without what is chosen
    choices: tuple[Choice, ...]
    places: Mapping[str, str]  # in the file, of each key of the recipe that it sets

    def place(self, key: str) -> str:
        """Where the file sets this key, or may set it."""
        return self.places.get(key, f"settings.{key}")


@dataclass(frozen=True)
class Plot:
    """`x` is a setting that varies, or one of `AXES`."""

    x: str = "row"
    label: str = ""
    log: bool = False


@dataclass(frozen=True)
class Plan:
    """A study file, read and checked."""

    file: Path
    title: str
    data: str | None
    seeds: tuple[int, ...]
    choose: str | None
    rows: tuple[Row, ...]
    plot: Plot

    def runs(self) -> Iterator[tuple[Row, Choice, int]]:
        for row in self.rows:
            for choice in row.choices:
                for seed in self.seeds:
                    yield row, choice, seed


def read_plan(file: str | os.PathLike[str]) -> Plan:
    """Reads a study file; whatever is wrong in it is one line that names the file and the key."""
    path = Path(file)
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no TOML: {error}") from None
    return _Reader(path, plain).plan()


class _Named(NamedTuple):
    """A row as it stands in the file, before what varies makes several of it."""

    name: str
    series: str
    recipe: Path
    settings: Mapping[str, Any]
    places: Mapping[str, str]


class _Reader:
    def __init__(self, path: Path, plain: Mapping[str, Any]) -> None:
        self.path, self.plain = path, plain

    def plan(self) -> Plan:
        self._know(self.plain, KEYS, "")
        rows = self._rows()
        plot = self._plot(rows)
        data = self._text("data")
        beside = self.path.parent / (data or "")
        return Plan(
            file=self.path,
            title=self._text("title") or self.path.stem,
            data=str(beside) if data and beside.exists() else data,
            seeds=self._seeds(),
            choose=self._text("choose"),
            rows=rows,
            plot=plot,
        )

    def _rows(self) -> tuple[Row, ...]:
        common = flattened(self._table(self.plain, "settings", ""))
        vary, choose = self._varied(self.plain, ""), self._text("choose")
        named = self._table(self.plain, "rows", "") or {"": {}}
        made: list[Row] = []
        for name in named:
            table = self._table(named, name, "rows")
            own = {key: value for key, value in table.items() if key not in ROW_KEYS}
            where, own_vary = f"rows.{name}", self._varied(table, f"rows.{name}")
            settings, varied = common | flattened(own), vary | own_vary
            places = _places(common, "settings") | _places(flattened(own), where)
            places |= _places(vary, "vary") | _places(own_vary, f"{where}.vary")
            if "seed" in places:
                raise self._wrong(places["seed"], "seeds are for all rows: give seeds = [0, 1, 2]")
            if "steps" in places and "epochs" in places:
                raise self._wrong(places["epochs"], f"{places['steps']} says how long it trains: give one of the two")
            if choose is not None and choose not in varied:
                known = ", ".join(varied) or "nothing"
                raise self._wrong("choose", f"{choose!r} does not vary in {name or 'any row'}: {known} does")
            series = table.get("series", name)
            if not isinstance(series, str):
                raise self._wrong(f"rows.{name}.series", "it must be a text")
            recipe = self._recipe(table, f"{where}.recipe") if "recipe" in table else self._recipe(self.plain, "recipe")
            row = _Named(name, series, recipe, settings, places)
            values = varied.pop(choose) if choose is not None else [None]
            for combination in itertools.product(*varied.values()):
                changed = dict(zip(varied, combination, strict=True))
                made.append(self._row(row, changed, values))
        self._differ([row.name for row in made], "rows")
        self._lie_apart(made)
        return tuple(made)

    def _lie_apart(self, rows: Sequence[Row]) -> None:
        """Each has a folder of its own."""
        found: dict[str, str] = {}
        for row in rows:
            for choice in row.choices:
                name = row.name if choice.value is None else f"{row.name}, {shown(choice.value)}"
                if (other := found.setdefault(choice.folder, name)) != name:
                    key = "rows" if "rows" in self.plain else "vary"
                    raise self._wrong(key, f"{other!r} and {name!r} would share the folder {choice.folder}: rename one")

    def _row(self, named: _Named, changed: Mapping[str, Any], values: Sequence[Any]) -> Row:
        choose, name = self._text("choose"), named.name
        full = ", ".join([*([name] if name else []), *(f"{short(key)} {shown(v)}" for key, v in changed.items())])
        choices = []
        for value in values:
            chosen = {} if choose is None else {choose: value}
            words = [full, *(f"{short(key)} {shown(v)}" for key, v in chosen.items())]
            recipe = self._made(named, {**named.settings, **changed, **chosen}, full)
            recipes = {seed: replace(recipe, seed=seed) for seed in self._seeds()}
            choices.append(Choice(value, slug(" ".join(words)) or "run", recipes))
        return Row(full or self.path.stem, named.series, changed, tuple(choices), named.places)

    def _made(self, named: _Named, changes: Mapping[str, Any], row: str) -> Recipe:
        """The recipe with these changes; what is wrong is told where it stands: in the recipe, or at a key here."""
        made = _tried(named.recipe, changes)
        if isinstance(made, Recipe):
            return made
        if _tried(named.recipe, {}) == made:
            raise ConfigError(f"{named.recipe}: {made}")
        key = next((key for key in changes if _tried(named.recipe, {key: changes[key]}) == made), None)
        if key is not None:
            raise self._wrong(named.places[key], made)
        raise ConfigError(f"{self.path}: row {row!r}: {made}" if row else f"{self.path}: {made}")

    def _recipe(self, table: Mapping[str, Any], key: str) -> Path:
        """The file that this table names as its recipe."""
        name = table.get("recipe")
        if name is None:
            raise self._wrong(key, "it is missing: name a recipe, or a file beside this one")
        if not isinstance(name, str):
            raise self._wrong(key, "it must be a text")
        beside = self.path.parent / name
        try:
            return beside if beside.is_file() else find_recipe(name)
        except ConfigError as error:
            raise self._wrong(key, str(error)) from None

    def _varied(self, table: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
        found = flattened(self._table(table, "vary", where))
        for key, values in found.items():
            if not isinstance(values, list) or not values:
                raise self._wrong(_path(where, f"vary.{key}"), "it must be a list of values")
            self._differ([shown(value) for value in values], _path(where, f"vary.{key}"))
        return found

    def _seeds(self) -> tuple[int, ...]:
        seeds = self.plain.get("seeds", [0])
        whole = isinstance(seeds, list) and all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds)
        if not whole or not seeds or len(set(seeds)) < len(seeds):
            raise self._wrong("seeds", "it must be a list of different whole numbers")
        return tuple(seeds)

    def _plot(self, rows: tuple[Row, ...]) -> Plot:
        table = self._table(self.plain, "plot", "")
        self._know(table, PLOT_KEYS, "plot")
        plot = Plot(**table)
        if not isinstance(plot.x, str) or not isinstance(plot.label, str) or not isinstance(plot.log, bool):
            raise self._wrong("plot", "x and label must be texts, and log true or false")
        choose = self._text("choose")
        vary = [key for key in rows[0].settings if all(key in row.settings for row in rows)]
        known = [*AXES, *vary, *([choose] if choose else [])]
        if plot.x not in known:
            raise self._wrong("plot.x", f"{plot.x!r} is none of {', '.join(known)}")
        values = [row.settings.get(plot.x, choice.value) for row in rows for choice in row.choices]
        if plot.x not in AXES and not all(isinstance(value, int | float) for value in values):
            raise self._wrong("plot.x", f"{plot.x} is no number: leave it out, and each row has a line of its own")
        if plot.log and plot.x not in AXES and min(values) <= 0:
            raise self._wrong("plot.log", f"{plot.x} has values that are not above 0")
        return plot

    def _know(self, table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
                raise ConfigError(f"{self.path}: nothing reads {_path(where, key)!r}: {hint}")

    def _text(self, key: str) -> str | None:
        value = self.plain.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, "it must be a text")
        return value

    def _table(self, table: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
        value = table.get(key, {})
        if not isinstance(value, dict):
            raise self._wrong(_path(where, key), "it must be a table")
        return value

    def _differ(self, names: Sequence[str], what: str) -> None:
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise self._wrong(what, f"{twice!r} is there twice")

    def _wrong(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self.path}: {key}: {what}")


def _tried(file: Path, changes: Mapping[str, Any]) -> Recipe | str:
    """The recipe in a file, changed, or what is wrong with it or with its model."""
    try:
        recipe = read_recipe(file, changes)
        check_sizes(recipe, configured(recipe, ("a class", "another")))
    except VitrailError as error:
        return str(error).removeprefix(f"{file}: ").removeprefix("recipe: ")
    return recipe


def _places(keys: Iterable[str], where: str) -> dict[str, str]:
    return {key: f"{where}.{key}" for key in keys}


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables in tables as keys with dots: `{"optimiser": {"lr": 1}}` becomes `{"optimiser.lr": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def short(key: str) -> str:
    """The setting as a table calls it: `lr` for `optimiser.lr`."""
    return key.rpartition(".")[2]


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def slug(words: str) -> str:
    """For the name of a folder."""
    return re.sub(r"[^\w.]+", "-", words.lower()).strip("-.")
