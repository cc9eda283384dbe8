"""Writes tar shards whose bytes depend on nothing but what is put into them."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from vitrail.data.samples import Names
from vitrail.data.tars import BLOCK
from vitrail.pictures.sources import SUFFIXES

_END = bytes(2 * BLOCK)


def split_suffix(name: str) -> tuple[str, str]:
    """A name without the suffix of a picture, and that suffix without its dot, if it has one."""
    stem, _, suffix = name.rpartition(".")
    known = f".{suffix.lower()}" in SUFFIXES and stem and not stem.endswith("/")
    return (stem, suffix) if known else (name, "")


def keys_of(names: Iterable[str]) -> Names:
    """The WebDataset key of each name: the name without its suffix.

    Readers of that layout end a key at the first dot of the base name, so dots there are written %2E, and % is written
    %25. Where two names would have one key (`a.jpg` and `a.png`) the later ones end in %2F and a number. A name never
    leads out of the folder that an archive is extracted to.
    """
    taken: set[str] = set()
    return Names.of(_unique(_key(split_suffix(name)[0]), taken) for name in names)


def _key(name: str) -> str:
    *folders, base = name.split("/")
    kept = [folder.replace("%", "%25") for folder in folders if folder]
    safe = [folder.replace(".", "%2E") if folder in (".", "..") else folder for folder in kept]
    return "/".join([*safe, base.replace("%", "%25").replace(".", "%2E") or "%2E"])


def _unique(key: str, taken: set[str]) -> str:
    free, number = key, 1
    while free in taken:
        number += 1
        free = f"{key}%2F{number}"
    taken.add(free)
    return free


class ShardWriter:
    """One archive after another, each of about `limit` bytes: `train-000000.tar`, `train-000001.tar`, …"""

    def __init__(self, folder: Path, limit: int) -> None:
        self.paths: list[Path] = []
        self._folder = folder
        self._limit = limit
        self._file: BinaryIO | None = None
        self._at = 0
        self._prefix = ""
        self._numbers: dict[str, int] = {}

    def begin(self, prefix: str) -> None:
        """The next sample goes into a new shard of this name."""
        self.close()
        self._prefix = prefix

    def add(self, members: list[tuple[str, bytes]]) -> tuple[int, int]:
        """Writes the members of one sample side by side. Returns the number of the shard and the offset of the data of
        the first member."""
        blocks = [(_header(name, len(data)), data, bytes(-len(data) % BLOCK)) for name, data in members]
        length = sum(len(part) for parts in blocks for part in parts)
        if self._file is not None and self._at + length + len(_END) > self._limit:
            self.close()
        if self._file is None:
            self._file = self._next()
        first = self._at + len(blocks[0][0])
        for parts in blocks:
            for part in parts:
                self._file.write(part)
        self._at += length
        return len(self.paths) - 1, first

    def _next(self) -> BinaryIO:
        number = self._numbers.get(self._prefix, 0)
        self._numbers[self._prefix] = number + 1
        self.paths.append(self._folder / f"{self._prefix}-{number:06}.tar")
        self._at = 0
        return self.paths[-1].open("wb", buffering=2**20)

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                file.write(_END)

    def abandon(self) -> None:
        """Closes the file without minding what could not be written."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):  # the disk is full: this is why it is abandoned
                file.close()


def _header(name: str, size: int) -> bytes:
    """GNU's form: names of any bytes and any length, in one block where they are short."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mtime = 0
    member.mode = 0o644
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
