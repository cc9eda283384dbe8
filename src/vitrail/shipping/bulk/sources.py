"""Whatever SOURCE is, a stream of items is made from it: files, folders, patterns, lists, tables, shards, addresses."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vitrail.data.opening import holds_shards, is_archive
from vitrail.data.shard_files import expand_braces, find_shards, is_remote, open_storage, stamp
from vitrail.data.shards import open_index
from vitrail.data.table import find_column, missing_column, read_labels
from vitrail.data.table_files import TABLES, iterate_rows
from vitrail.errors import DataError, VitrailError
from vitrail.pictures.sources import SUFFIXES, printable
from vitrail.shipping.bulk.items import Item, stamp_of
from vitrail.shipping.bulk.walking import MAGIC, is_picture, match, walk, walk_storage

LIST = "-"  # the source that is a list on standard input

_AT_ONCE = 2**16  # bytes


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold paths and labels; None: those with a usual name."""

    path: str | None = None
    label: str | None = None


def items_of(sources: Sequence[str], columns: Columns | None = None, listed: BinaryIO | None = None) -> Iterator[Item]:
    """One item for each picture that is named, in the order in which they are; what is named twice comes twice.

    listed: where the list is read from that `-` stands for; by default standard input.
    """
    columns = columns or Columns()
    if list(sources).count(LIST) > 1:
        raise VitrailError(f"the list on standard input ({LIST}) can be read once: name it once")
    for is_shards, some in groupby(map(_plain, sources), key=_names_shards):
        if is_shards:
            yield from _of_shards(list(some))
            continue
        for source in some:
            if source == LIST:
                yield from _of_list(listed)
            elif is_remote(source):
                yield from _of_address(source, columns)
            else:
                yield from _of_path(source, columns)


def _plain(source: str | os.PathLike[str]) -> str:
    text = os.fspath(source).removeprefix("file://")
    return text if is_remote(text) else os.path.expanduser(text)


def _names_shards(source: str) -> bool:
    """One archive, a pattern of them, or a folder of them without pictures. Those that stand together are one set."""
    if not os.path.isdir(source):
        return is_archive(source)
    return holds_shards(source) and not any(map(is_picture, os.listdir(source)))


def _of_path(source: str, columns: Columns) -> Iterator[Item]:
    if os.path.isdir(source):
        yield from _of_folder(source)
    elif os.path.exists(source):
        yield from _of_table(source, columns) if source.lower().endswith(TABLES) else [_file(source)]
    elif MAGIC & set(source) or "{" in source:
        found = False
        for pattern in expand_braces(source):
            for path in match(pattern):
                found = True
                yield from _of_path(path, columns) if not _names_shards(path) else _of_shards([path])
        if not found:
            raise VitrailError(f"nothing fits {printable(source)}: check the pattern")
    else:
        raise VitrailError(f"there is no {printable(source)}: check the path")


def _file(path: str, truth: str | None = None) -> Item:
    return Item(path, path, stamp_of(path), truth)


def _of_folder(folder: str) -> Iterator[Item]:
    base = "" if (tidy := str(Path(folder))) == "." else tidy
    found = False
    for path in walk(folder):
        if is_picture(path):
            found = True
            yield _file(os.path.join(base, path))
    if not found:
        raise VitrailError(f"there are no pictures in {printable(folder)}: it is searched for {_searched()}")


def _searched() -> str:
    return " ".join(sorted(SUFFIXES))


def _of_list(listed: BinaryIO | None) -> Iterator[Item]:
    """Paths and addresses, one to a line, or with a zero byte after each as `find -print0` writes them."""
    if listed is None and sys.stdin.isatty():
        raise VitrailError(f"{LIST} reads a list of paths from standard input: find photos -name '*.jpg' | vitrail …")
    for name in _lines(listed or sys.stdin.buffer):
        place = os.fsdecode(name)
        yield Item(place, place) if is_remote(place) else _file(place)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    block = stream.read(_AT_ONCE)
    mark = b"\0" if b"\0" in block else b"\n"  # no name has a zero byte in it
    rest = b""
    while block:
        *whole, rest = (rest + block).split(mark)
        yield from filter(None, map(_without_return, whole) if mark == b"\n" else whole)
        block = stream.read(_AT_ONCE)
    if rest:
        yield _without_return(rest) if mark == b"\n" else rest


def _without_return(line: bytes) -> bytes:
    return line.removesuffix(b"\r")


def _of_table(table: str, columns: Columns, folder: str | None = None, name: str | None = None) -> Iterator[Item]:
    """The rows of a table; their paths are relative to its folder."""
    folder = os.path.dirname(table) if folder is None else folder
    shown = printable(name or table)

    def choose(there: Sequence[str]) -> dict[str, str]:
        parts = {"path": columns.path, "label": columns.label}
        chosen = {part: found for part, asked in parts.items() if (found := find_column(there, shown, part, asked))}
        if "path" not in chosen:
            raise missing_column(there, shown, "path")
        return chosen

    empty = True
    for row, cells in iterate_rows(Path(table), choose):
        empty = False
        path = cells["path"]
        if not isinstance(path, str) or not path.strip():
            raise DataError(f"{shown}, row {row}: {'no path' if not path else f'{path!r} is no path'}; correct the row")
        labels, _ = read_labels([cells.get("label")], [row], shown)
        truth = "|".join(labels[0]) or None
        path = path.strip()
        place = path if is_remote(path) else f"{folder}/{path}" if is_remote(folder) else os.path.join(folder, path)
        yield Item(place, place, truth=truth) if is_remote(place) else _file(place, truth)
    if empty:
        raise DataError(f"{shown} has columns and no rows: add a row for each picture")


def _of_shards(addresses: list[str]) -> Iterator[Item]:
    """The pictures of tar shards, in the order in which they lie there."""
    for _, some in groupby(addresses, key=is_remote):
        sets = list(some)
        files = tuple(dict.fromkeys(file for address in sets for file in find_shards(address)))
        index, _ = open_index(files, whole_folder=len(sets) == 1 and os.path.isdir(sets[0]))
        samples = index.samples
        for row in np.lexsort((index.offset, index.shard)).tolist():
            shard = index.files[index.shard[row]]
            start, size = int(index.offset[row]), int(index.size[row])
            truth = "|".join(samples.classes[label] for label in samples.labels_of(row)) or None
            path = f"{shard.address.rsplit('/', 1)[-1]}/{samples.names[row]}"
            yield Item(path, shard.address, shard.stamp, truth, start, start + size)


def _of_address(address: str, columns: Columns) -> Iterator[Item]:
    """A file, a folder, a pattern or a table at an address that fsspec knows."""
    web = address.startswith(("http://", "https://"))  # a question mark there begins a query
    plain = address.split("?")[0] if web else address
    with _named(address):
        storage, path = _opened(address)
        if plain.lower().endswith(TABLES):
            yield from _of_remote_table(storage, path, address, columns)
        elif set(path) & (MAGIC - {"?"} if web else MAGIC) and not storage.exists(path):
            names = sorted(str(name) for name in storage.glob(path))
            if not names:
                raise DataError(f"nothing fits {printable(address)}: check the pattern")
            yield from (_remote(address, storage, name, {}) for name in names)
        elif is_picture(plain) or not storage.isdir(path):
            yield Item(address, address, _stamp(storage.info(path)))
        elif _is_folder_of_shards(storage, path):
            yield from _of_shards([address])
        else:
            found = False
            for name, about in walk_storage(storage, path):
                if is_picture(name.split("?")[0]):
                    found = True
                    yield _remote(address, storage, name, about)
            if not found:
                raise DataError(f"there are no pictures in {printable(address)}: it is searched for {_searched()}")


def _is_folder_of_shards(storage: Any, folder: str) -> bool:
    inside = [
        entry for entry in storage.ls(folder, detail=True) if str(entry["name"]).rstrip("/") != folder.rstrip("/")
    ]
    names = [str(entry["name"]) for entry in inside]
    is_flat = not any(entry.get("type") == "directory" for entry in inside)
    return is_flat and any(map(is_archive, names)) and not any(map(is_picture, names))


def _opened(address: str) -> tuple[Any, str]:
    storage, path = open_storage(address)
    storage.invalidate_cache()  # what another listing found may be long ago
    return storage, path


def _of_remote_table(storage: Any, path: str, address: str, columns: Columns) -> Iterator[Item]:
    with tempfile.TemporaryDirectory() as folder:
        table = os.path.join(folder, os.path.basename(path))
        storage.get_file(path, table)
        yield from _of_table(table, columns, folder=address.rsplit("/", 1)[0], name=address)


def _remote(address: str, storage: Any, name: str, about: dict[str, Any]) -> Item:
    """A file that a storage listed. Where an address goes through several (zip://*.jpg::s3://…), so does its own."""
    first, chained, rest = address.partition("::")
    place = f"{first.split('://', 1)[0]}://{name}::{rest}" if chained else str(storage.unstrip_protocol(name))
    return Item(place, place, _stamp(about))


def _stamp(about: dict[str, Any]) -> str:
    return f"{about.get('size', '')} {stamp(about)}" if about else ""


@contextmanager
def _named(address: str) -> Iterator[None]:
    """Whatever a storage raises becomes one line that names the address."""
    try:
        yield
    except VitrailError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"there is no {printable(address)}: check the address") from error
    except Exception as error:
        cause = printable(str(error) or type(error).__name__)
        raise DataError(f"{printable(address)}: cannot be read ({cause}); check the address") from error
