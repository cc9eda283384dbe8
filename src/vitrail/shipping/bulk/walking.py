"""Folders and patterns, listed as they are walked through: in one order everywhere, one folder in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from vitrail.errors import DataError
from vitrail.pictures.sources import SUFFIXES, printable

MAGIC = frozenset("*?[")


def is_picture(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def walk(folder: str) -> Iterator[str]:
    """The files below a folder, by their paths from it. Links to folders are followed, but not in circles."""
    left, above, here = [_listed(folder)], [_inode(folder)], [""]
    while left:
        if not left[-1]:
            for stack in (left, above, here):
                stack.pop()
            continue
        path = here[-1] + left[-1].pop()
        if not path.endswith("/"):
            yield path
        elif (inode := _inode(os.path.join(folder, path))) not in above:
            left.append(_listed(os.path.join(folder, path)))
            above.append(inode)
            here.append(path)


def _listed(folder: str) -> list[str]:
    """The names in a folder, the first last; those of folders end with a slash. Pipes and links to nothing are not
    listed."""
    try:
        with os.scandir(folder) as entries:
            names = [name for entry in entries if (name := _name(entry))]
    except OSError as error:
        cause = printable(error.strerror or error)
        message = f"{printable(folder)}: this folder cannot be read ({cause}); change its permissions, or leave it out"
        raise DataError(message) from error
    names.sort(key=lambda name: name.rstrip("/"), reverse=True)
    return names


def _name(entry: os.DirEntry[str]) -> str:
    try:
        return entry.name + "/" if entry.is_dir() else entry.name if entry.is_file() else ""
    except OSError:  # a link to itself
        return ""


def _inode(folder: str) -> tuple[int, int]:
    try:
        about = os.stat(folder)
    except OSError:  # whoever lists it will say why it cannot be
        return -1, -1
    return about.st_dev, about.st_ino


def match(pattern: str) -> Iterator[str]:
    """The files and folders that a pattern means, as a shell writes them out; from `**` on, which is any number of
    folders, files alone. `[*]` is a star and no pattern."""
    steps = [step for step in pattern.split("/") if step]
    return _match("/" if pattern.startswith("/") else "", steps)


def _match(base: str, steps: Sequence[str]) -> Iterator[str]:
    if not steps:
        yield base
        return
    step, rest = steps[0], steps[1:]
    if not MAGIC & set(step):
        if os.path.lexists(path := os.path.join(base, step)):
            yield from _match(path, rest)
    elif base and not os.path.isdir(base):
        return
    elif step == "**":
        for path in walk(base or "."):
            if fits(path.split("/"), steps):
                yield os.path.join(base, path)
    else:
        for name in reversed(_listed(base or ".")):
            if fits([name.rstrip("/")], [step]) and (name.endswith("/") or not rest):
                yield from _match(os.path.join(base, name.rstrip("/")), rest)


def fits(names: Sequence[str], steps: Sequence[str]) -> bool:
    """Whether the names of a path are those of a pattern. A star finds no hidden file."""
    if not steps:
        return not names
    if steps[0] == "**":
        deepest = next((k for k, name in enumerate(names) if name.startswith(".")), len(names))
        if len(steps) == 1:  # what comes before it is a folder, so there is something below
            return 0 < len(names) == deepest
        return any(fits(names[k:], steps[1:]) for k in range(deepest + 1))
    if not names or (names[0].startswith(".") and not steps[0].startswith(".")):
        return False
    return fnmatchcase(names[0], steps[0]) and fits(names[1:], steps[1:])


def walk_storage(storage: Any, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files below a folder of fsspec's, with what the storage says of each; one listing in memory at a time."""
    waiting = [folder.rstrip("/")]
    while waiting:
        here = waiting.pop()
        entries = {str(entry["name"]).rstrip("/"): entry for entry in storage.ls(here, detail=True)}
        entries.pop(here, None)  # some storages list a folder in itself
        for name in sorted(entries):
            if entries[name].get("type") != "directory":
                yield name, entries[name]
        waiting += [name for name in sorted(entries, reverse=True) if entries[name].get("type") == "directory"]
