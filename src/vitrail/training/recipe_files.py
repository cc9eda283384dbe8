"""Recipes as TOML files, both ways. A key that nothing reads is an error."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from vitrail.errors import ConfigError
from vitrail.training.recipe import Recipe

AUTO = "auto"  # for a batch size: the largest that fits
NAMED = Path(__file__).parents[1] / "recipes"


def named_recipes() -> list[str]:
    return sorted(path.stem for path in NAMED.glob("*.toml"))


def find_recipe(name: str | os.PathLike[str]) -> Path:
    """The file of a recipe: a named one, or a path."""
    path = Path(name)
    if path.is_dir():
        path = path / "recipe.toml"  # of a run
    if path.is_file():
        return path
    named = NAMED / f"{name}.toml"
    if named.is_file():
        return named
    near = difflib.get_close_matches(str(name), named_recipes(), 1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(named_recipes())}"
    raise ConfigError(f"there is no recipe {os.fspath(name)!r}, neither a file nor a name: {hint}")


def read_recipe(name: str | os.PathLike[str], changes: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe from a file or by name, with changes by their keys: `{"epochs": 3, "optimiser.lr": 1e-4}`."""
    path = find_recipe(name)
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no TOML: {error}") from None
    return make_recipe({**plain}, changes, str(path))


def make_recipe(plain: Mapping[str, Any], changes: Mapping[str, Any] | None = None, where: str = "recipe") -> Recipe:
    merged: dict[str, Any] = json.loads(json.dumps(plain))  # a copy all the way down
    if merged.get("batch_size") == AUTO:
        merged |= {"auto_batch": True, "batch_size": Recipe.batch_size}
    changes = changes or {}
    if "epochs" in changes:
        if changes.get("steps") is not None:
            raise ConfigError("epochs and steps both say how long to train: give one of them")
        merged.pop("steps", None)  # the recipe's, which would hold in place of epochs
    for key, value in changes.items():
        if key == "batch_size":
            merged["auto_batch"] = value == AUTO
            if value == AUTO:
                continue  # the learning rate goes on belonging to the recipe's number
        *tables, last = key.split(".")
        table = merged
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{where}: nothing reads {key!r}: {name} is no table")
        table[last] = value
    made: Recipe = _build(Recipe, merged, where, "")
    return made


def _build(kind: Any, value: Any, where: str, key: str) -> Any:
    """The value that TOML gave, as the type that the recipe wants."""
    if dataclasses.is_dataclass(kind):
        return _build_table(kind, value, where, key)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        options = [option for option in inner if option is not type(None)]
        return _build(options[0], value, where, key) if len(options) == 1 else _plain(value)
    if origin is Literal:
        if value not in inner:
            raise _wrong(where, key, value, f"choose from {', '.join(map(str, inner))}")
        return value
    if origin is dict:
        return _plain(value) if isinstance(value, dict) else _refuse(where, key)
    if origin is tuple:
        return _build_tuple(inner, value, where, key)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if value != value:
            raise _wrong(where, key, value, "it must be a number")
        return float(value)
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise _wrong(where, key, value, f"it must be {_words(kind)}{' or auto' if key == 'batch_size' else ''}")


def _build_table(kind: Any, value: Any, where: str, key: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(where, key, value, "it must be a table")
    hints = typing.get_type_hints(kind)
    for name in value:
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(hints)}"
            raise ConfigError(f"{where}: nothing reads {_path(key, name)!r}: {hint}")
    for item in dataclasses.fields(kind):
        has_default = item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING
        if not has_default and item.name not in value:
            raise ConfigError(f"{where}: {_path(key, item.name)} is missing")
    return kind(**{name: _build(hints[name], item, where, _path(key, name)) for name, item in value.items()})


def _build_tuple(inner: tuple[Any, ...], value: Any, where: str, key: str) -> tuple[Any, ...]:
    if isinstance(value, Mapping) and dataclasses.is_dataclass(inner[0]):
        raise ConfigError(f"{where}: {key} is a list of tables: write [[{key}]] above each")
    if not isinstance(value, list | tuple):
        raise _wrong(where, key, value, "it must be a list")
    if inner[-1] is Ellipsis:
        return tuple(_build(inner[0], item, where, key) for item in value)
    if len(value) != len(inner):
        raise _wrong(where, key, value, f"it must have {len(inner)} values")
    return tuple(_build(kind, item, where, key) for kind, item in zip(inner, value, strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _path(key: str, name: object) -> str:
    return f"{key}.{name}" if key else str(name)


def _words(kind: Any) -> str:
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}.get(kind, str(kind))


def _wrong(where: str, key: str, value: object, what: str) -> ConfigError:
    return ConfigError(f"{where}: {key} = {value!r}: {what}")


def _refuse(where: str, key: str) -> Any:
    raise ConfigError(f"{where}: {key} must be a table")


def to_toml(recipe: Recipe) -> str:
    """Every setting, so that the file alone is the whole recipe."""
    return "\n".join(_lines(recipe, "")).strip() + "\n"


def _lines(table: Any, key: str) -> list[str]:
    """A dataclass as TOML: plain values first, tables after them."""
    plain, tables = [], []
    for name in (item.name for item in dataclasses.fields(table)):
        value, path = getattr(table, name), _path(key, name)
        if dataclasses.is_dataclass(value):
            tables += ["", f"[{path}]", *_lines(value, path)]
        elif isinstance(value, dict):
            tables += ["", f"[{path}]", *(f"{item} = {_toml(one)}" for item, one in value.items())] if value else []
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            for one in value:
                tables += ["", f"[[{path}]]", *_lines(one, path)]
        elif value is not None and value != ():
            plain.append(f"{name} = {_toml(value)}")
    return plain + tables


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)  # inf too
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else str(value)
