"""What a client may say besides its pictures, from the address, a form or JSON: checked, and of one type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.pictures.sources import printable
from vitrail.serving.refusals import RefusalError, bad

PARTS = ("weights", "rollout", "attribution")
DROPPINGS = ("blank", "remove")
_TRUE = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
    "": True,
}
_LONGEST_LIST = 65536


@dataclass(frozen=True)
class Options:
    """Of predict and of embed; every field is the option's name but `class_`, which is `class`."""

    model: str | None = None
    top: int = 5
    attention: bool = False
    parts: tuple[str, ...] = PARTS
    layers: tuple[int, ...] | None = None  # None: all
    class_: int | str | None = None  # whose attribution: an index or a label; None: the best class
    drop: tuple[int, ...] = ()  # panes, counted by rows
    dropping: str = "blank"
    logits: bool = False
    seen: bool = False
    timeout: float | None = None  # seconds, at most the server's deadline


def read_options(query: Mapping[str, str], body: Mapping[str, Any], allowed: tuple[str, ...]) -> Options:
    """Options of a request; those of its body win."""
    given = {**query, **body}
    for name in given:
        if name not in allowed:
            raise bad(f"the option {printable(name)!r} is not known here: known are {', '.join(allowed)}")
    found: dict[str, Any] = {
        ("class_" if name == "class" else name): _READERS[name](name, value) for name, value in given.items()
    }
    return Options(**found)


PREDICT = ("model", "top", "attention", "parts", "layers", "class", "drop", "dropping", "logits", "seen", "timeout")
EMBED = ("model", "timeout")


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE:
        return _TRUE[value.lower()]
    raise bad(f"{name}={_shown(value)} is neither true nor false")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) < 10:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 10**9:
        raise bad(f"{name}={_shown(value)} is not a whole number")
    return value


def _top(name: str, value: Any) -> int:
    number = _whole(name, value)
    if number < 1:
        raise bad(f"{name}={number} must be at least 1")
    return number


def _list(name: str, value: Any) -> tuple[int, ...]:
    items = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(items, list) or len(items) > _LONGEST_LIST:
        raise bad(f"{name}={_shown(value)} is not a list of whole numbers, such as 3,17")
    return tuple(_whole(name, item.strip() if isinstance(item, str) else item) for item in items)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise bad(f"{name}={_shown(value)} is not a text")
    return value


def _parts(name: str, value: Any) -> tuple[str, ...]:
    items = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(items, list) or not items or any(item not in PARTS for item in items):
        raise bad(f"{name}={_shown(value)} must be of {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in items)


def _dropping(name: str, value: Any) -> str:
    if value not in DROPPINGS:
        raise bad(f"{name}={_shown(value)} is neither {' nor '.join(DROPPINGS)}")
    return str(value)


def _class(name: str, value: Any) -> int | str:
    if isinstance(value, str) and not value.removeprefix("-").isdigit():
        return value
    return _whole(name, value)


def _seconds(name: str, value: Any) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not 0 < number < math.inf:
        raise bad(f"{name}={_shown(value)} must be seconds, above 0")
    return number


def _shown(value: Any) -> str:
    return printable(value)


_READERS = {
    "model": _text,
    "top": _top,
    "attention": _flag,
    "parts": _parts,
    "layers": _list,
    "class": _class,
    "drop": _list,
    "dropping": _dropping,
    "logits": _flag,
    "seen": _flag,
    "timeout": _seconds,
}


def class_index(wanted: int | str | None, classes: list[str]) -> int | None:
    """The place of a class that was named."""
    if wanted is None:
        return None
    if isinstance(wanted, str):
        if wanted not in classes:
            raise bad(f"there is no class {printable(wanted)!r}")
        return classes.index(wanted)
    if not 0 <= wanted < len(classes):
        raise bad(f"there is no class {wanted}: the model has 0 to {len(classes) - 1}")
    return wanted


def unknown_model(name: str, known: list[str]) -> RefusalError:
    return RefusalError(404, f"there is no model {printable(name)!r}: known are {', '.join(known)}")
