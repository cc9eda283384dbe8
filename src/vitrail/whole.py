"""A file or folder that is there whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from vitrail.errors import VitrailError


@contextmanager
def written_whole(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Gives a path beside `target` to write a file or folder to; at the end it is flushed and renamed.

    If anything fails on the way, nothing is left of it, and what was there before stays. An older file is
    replaced in one step; an older folder steps aside before the rename and is removed last.
    """
    if target.exists() and not overwrite:
        raise VitrailError(f"{target} is already there: choose another name, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    room = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        new = room / target.name
        yield new
        for path in [new, *new.rglob("*")] if new.is_dir() else [new]:
            flush(path)
        if target.is_dir():
            os.rename(target, room / "old")
        os.replace(new, target)
        flush(target.parent)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def refuse_to_replace(folder: str | os.PathLike[str], ours: Collection[str], what: str, *, overwrite: bool) -> None:
    """Says no to a folder that is there, before the long work. Only one that holds nothing but `ours`, the files of an
    earlier `what`, is ever replaced."""
    folder = Path(folder)
    if not folder.exists():
        return
    if not overwrite:
        raise VitrailError(f"{folder} is already there: choose another folder, or let it be replaced (--overwrite)")
    if not folder.is_dir() or {path.name for path in folder.iterdir()}.difference(ours):
        raise VitrailError(f"{folder} holds more than an earlier {what}: choose another folder")


def flush(path: Path) -> None:
    """What was written to a file, or the names in a folder, are on the disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
