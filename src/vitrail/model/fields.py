"""What configurations are made of: JSON in, JSON out, and checks that name the field."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

from vitrail.errors import ConfigError

Pair = tuple[int, int]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)  # without the cache, most of the time of making a configuration


class JsonFields:
    """JSON in, JSON out, for a frozen dataclass; an unknown key is an error that suggests the nearest."""

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, which `from_json` turns into an equal configuration."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[call-overload]
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Any:
        """The configuration that `to_json` described."""
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for key in plain:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"{cls.__name__} has no field {key!r}{hint}")
        return cls(**plain)

    def replace(self, **changes: Any) -> Any:
        """The same configuration with some fields changed."""
        return type(self).from_json({**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)}, **changes})  # type: ignore[arg-type]

    def check_types(self) -> None:
        """Checks literals, numbers and truth values, so that a bad value is named and not met later as a crash."""
        kind: Any = type(self)
        hints = _hints(kind)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value, hint = getattr(self, field.name), hints[field.name]
            if getattr(hint, "__origin__", None) is Literal and value not in get_args(hint):
                choices = ", ".join(repr(c) for c in get_args(hint))
                near = difflib.get_close_matches(str(value), get_args(hint), 1)
                hint_text = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"{field.name}={value!r} is none of {choices}{hint_text}")
            if hint is bool and not isinstance(value, bool):
                raise ConfigError(f"{field.name}={value!r} must be true or false")
            if hint is int and (not isinstance(value, int) or isinstance(value, bool)):
                raise ConfigError(f"{field.name}={value!r} must be a whole number")
            if hint is float:
                object.__setattr__(self, field.name, number(field.name, value))


def number(name: str, value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{name}={value!r} must be a finite number")
    return float(value)


def pair(name: str, value: Any) -> Pair:
    """(height, width) from a number or a pair."""
    numbers = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value, value]
    if len(numbers) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in numbers):
        raise ConfigError(f"{name}={value!r} must be a positive whole number, or a pair of them: (height, width)")
    return numbers[0], numbers[1]


def whole_numbers(name: str, value: Any) -> tuple[int, ...]:
    """A tuple of whole numbers."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{name}={value!r} must be a list of whole numbers")
    if any(isinstance(n, bool) or not isinstance(n, int) for n in value):
        raise ConfigError(f"{name}={value!r} must be a list of whole numbers")
    return tuple(value)


def positive(config: Any, *names: str) -> None:
    """Checks that fields are greater than 0."""
    for name in names:
        if getattr(config, name) <= 0:
            raise ConfigError(f"{name}={getattr(config, name)} must be greater than 0")


def fraction(name: str, value: float) -> None:
    """Checks a probability of dropping."""
    if not 0 <= value < 1:
        raise ConfigError(f"{name}={value} must lie in [0, 1): it is the probability of dropping")
