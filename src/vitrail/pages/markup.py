"""HTML that is safe by its making: a text is escaped unless it was made here."""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = ("img", "input", "meta")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable[str | None] | None


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """An element. Children that are plain text are escaped; so are the values of attributes. `class_` is `class`, and
    an attribute that is None or False is left out."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{words}>")
    return Markup(f"<{name}{words}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    parts: list[str] = []
    for child in children:
        if isinstance(child, str):
            parts.append(child if isinstance(child, Markup) else _escaped(child))
        elif child is not None:
            parts.append(joined(*child))
    return Markup("".join(parts))


def _escaped(text: str) -> str:
    """Also without characters that no encoding can write, and those that turn the direction of writing."""
    plain = text.encode("utf-8", "backslashreplace").decode()
    return html.escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain))
