"""One input of a bulk prediction: where its picture is, and how it is got at."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.shard_files import is_remote, open_storage
from vitrail.data.shards import Shards
from vitrail.errors import DataError, PictureError
from vitrail.pictures.sources import printable

WHOLE = -1

_PAUSES = (0.5, 2.0)  # seconds before an address that failed is asked again


class Item(NamedTuple):
    """A picture by its place, before anything of it is read."""

    path: str  # what the output calls it
    place: str  # a file, or any address that fsspec knows
    stamp: str = ""  # changes when the picture does; empty where nobody was asked
    truth: str | None = None  # the label that a table or a shard gives it
    start: int = 0
    end: int = WHOLE  # of the bytes in `place`, where that is a shard


def read_many(items: Sequence[Item]) -> list[str | bytes | PictureError]:
    """What to decode for each item: the path of a local file, or bytes. What cannot be got is an error in its place."""
    found: list[str | bytes | PictureError] = [item.place for item in items]
    inside = [k for k, item in enumerate(items) if item.end != WHOLE]
    remote = [k for k, item in enumerate(items) if item.end == WHOLE and is_remote(item.place)]
    for places, read in ((inside, _read_members), (remote, _read_addresses)):
        for k, content in zip(places, read([items[k] for k in places]), strict=True):
            found[k] = content
    return found


def _read_members(items: list[Item]) -> list[bytes | PictureError]:
    """Members of shards: neighbours in one read, and where that fails one by one."""
    if not items:
        return []
    addresses = list(dict.fromkeys(item.place for item in items))
    shard = np.array([addresses.index(item.place) for item in items], np.int32)
    start, end = (np.array(column, np.int64) for column in zip(*(item[-2:] for item in items), strict=True))
    try:
        return [bytes(content) for content in Shards(addresses, shard, start, end - start).read_many(range(len(items)))]  # type: ignore[arg-type]
    except DataError as error:
        if len(items) == 1:
            return [PictureError(str(error))]
        half = len(items) // 2
        return _read_members(items[:half]) + _read_members(items[half:])


def _read_addresses(items: list[Item]) -> list[bytes | PictureError]:
    """Whole files at addresses, several at once. A request that fails is made again twice."""
    found: list[Any] = [None] * len(items)
    missing = list(range(len(items)))
    for pause in (*_PAUSES, None):
        for places in _by_storage(items, missing):
            for k, content in zip(places, _request([items[k].place for k in places]), strict=True):
                found[k] = content
        missing = [k for k in missing if isinstance(found[k], Exception) and not _is_final(found[k])]
        if not missing or pause is None:
            break
        time.sleep(pause)
    return [
        _told(item.place, content) if isinstance(content, Exception) else content
        for item, content in zip(items, found, strict=True)
    ]


def _by_storage(items: list[Item], places: list[int]) -> list[list[int]]:
    """Those that one storage can be asked for together."""
    groups: dict[str, list[int]] = {}
    for k in places:
        address = items[k].place
        together = address.split("://", 1)[0] if "::" not in address else address.split("::", 1)[1]
        groups.setdefault(together, []).append(k)
    return list(groups.values())


def _request(addresses: list[str]) -> list[bytes | Exception]:
    try:
        storage, _ = open_storage(addresses[0])
        paths = [open_storage(address)[1] for address in addresses]
        # not `cat`, which would take a name with a bracket in it for a pattern
        return list(storage.cat_ranges(paths, [None] * len(paths), [None] * len(paths), on_error="return"))
    except Exception as error:  # a storage may raise anything
        return [error] * len(addresses)


def _is_final(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | DataError)


def _told(address: str, error: Exception) -> PictureError:
    if isinstance(error, DataError):
        return PictureError(str(error))
    name = printable(address)
    if isinstance(error, FileNotFoundError):
        return PictureError(f"{name}: there is no such file; check the address")
    return PictureError(f"{name}: cannot be read ({printable(str(error) or type(error).__name__)})")


def stamp_of(path: str) -> str:
    """What changes when a local file does: its size and its time."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null character
        return "-"
    return f"{about.st_size} {about.st_mtime_ns}"
