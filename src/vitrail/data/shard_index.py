"""The index of a set of shards: which picture lies where. It is made once and kept in one file of plain arrays."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.samples import Integers, Names, Samples
from vitrail.data.shard_files import ShardFile, cache_folder, common_folder, is_remote, open_storage
from vitrail.errors import DataError
from vitrail.pictures.sources import printable
from vitrail.whole import written_whole

VERSION = 1
NAME = "vitrail-index.npz"
CLASS_FILES = ("classes.json", "classes.txt")

Progress = Callable[[int, int], None]  # (done, of how many)

_OPTIONAL = ("groups", "weights", "label_list", "label_ends")


@dataclass(frozen=True)
class Index:
    """Row i of `samples` is `size[i]` bytes at `offset[i]` of `files[shard[i]]`."""

    samples: Samples
    shard: NDArray[np.int32] = field(repr=False)
    offset: Integers = field(repr=False)
    size: Integers = field(repr=False)
    files: tuple[ShardFile, ...] = field(repr=False)
    classes_stamp: str = ""  # of the file with the names of the classes
    notes: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Whole or not at all. The shards are named relative to their folder, so that it can move."""
        samples = self.samples
        folder = common_folder(self.files)
        facts = {
            "version": VERSION,
            "classes": samples.classes,
            "files": [(file.address.removeprefix(folder + "/"), file.size, file.stamp) for file in self.files],
            "classes_stamp": self.classes_stamp,
            "notes": self.notes,
        }
        arrays: dict[str, Any] = {
            "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
            "names": samples.names.block,
            "ends": samples.names.ends,
            "labels": samples.labels,
            "splits": samples.splits,
            "shard": self.shard,
            "offset": self.offset,
            "size": self.size,
        }
        optional = {name: getattr(samples, name) for name in _OPTIONAL}
        arrays |= {name: array for name, array in optional.items() if array is not None}
        with written_whole(path, overwrite=True) as new, new.open("wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def read(cls, content: bytes, folder: str) -> Index | None:
        """The index in the bytes of a file; None where that is damaged or of another version."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
            facts = json.loads(found.pop("facts").tobytes())
            if facts["version"] != VERSION:
                return None
            files = tuple(ShardFile(f"{folder}/{name}", size, stamp) for name, size, stamp in facts["files"])
            places = {name: found.pop(name) for name in ("shard", "offset", "size")}
            names = Names(found.pop("names"), found.pop("ends"))
            samples = Samples(names=names, classes=tuple(facts["classes"]), **found)
            ends = np.array([file.size for file in files])[places["shard"]]
            if np.any(places["offset"] < 0) or np.any(places["offset"] + places["size"] > ends):
                return None
            return cls(
                samples, files=files, classes_stamp=facts["classes_stamp"], notes=tuple(facts["notes"]), **places
            )
        except (ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile, DataError):
            return None

    def fits(self, files: Sequence[ShardFile], classes_stamp: str) -> bool:
        """Whether it was made of these files. A stamp of another kind (the shards were uploaded) says nothing."""
        if len(files) != len(self.files) or classes_stamp != self.classes_stamp:
            return False
        for mine, found in zip(self.files, files, strict=True):
            same_kind = mine.stamp.split(" ")[0] == found.stamp.split(" ")[0]
            if mine[:2] != found[:2] or (same_kind and mine.stamp != found.stamp):
                return False
        return True


def read_small(address: str) -> bytes | None:
    """A file beside the shards, if it is there."""
    try:
        if is_remote(address):
            fs, path = open_storage(address)
            content = fs.cat_file(path)
            return content if isinstance(content, bytes) else None
        return Path(address).read_bytes()
    except Exception:  # a server has many ways to say that there is no such file
        return None


def read_classes(folder: str) -> tuple[tuple[str, ...] | None, str]:
    """The names of the classes in order, from `classes.json` or `classes.txt` beside the shards; and a stamp."""
    for name in CLASS_FILES:
        content = read_small(f"{folder}/{name}")
        if content is not None:
            try:
                return _class_names(name, content), hashlib.sha256(content).hexdigest()
            except (ValueError, KeyError, TypeError):
                place = printable(f"{folder}/{name}")
                raise DataError(f"{place}: is no list of class names; write one name per line, in order") from None
    return None, ""


def _class_names(file: str, content: bytes) -> tuple[str, ...]:
    if file.endswith(".txt"):
        return tuple(line.strip() for line in content.decode().splitlines() if line.strip())
    said = json.loads(content)
    if isinstance(said, dict) and all(isinstance(value, int) for value in said.values()):
        said = {number: name for name, number in said.items()}  # name: number
    if isinstance(said, dict):
        numbered = {int(number): name for number, name in said.items()}
        said = [numbered[number] for number in range(len(numbered))]
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said) or len(set(said)) < len(said):
        raise ValueError
    return tuple(said)


def _key(files: Sequence[ShardFile]) -> str:
    return hashlib.sha256("\n".join(f.address for f in files).encode(errors="surrogateescape")).hexdigest()


def stored_index(files: Sequence[ShardFile], classes_stamp: str) -> Index | None:
    """An index that was made before and still fits: beside the shards, or in the cache folder."""
    folder = common_folder(files)
    places = [f"{folder}/{NAME}", str(_in_cache(files))]
    if not is_remote(folder):
        places.insert(1, str(_of_some(files)))
    for place in places:
        content = read_small(place)
        index = None if content is None else Index.read(content, folder)
        if index is not None and index.fits(files, classes_stamp):
            return index
    return None


def store_index(index: Index, *, whole_folder: bool) -> Path:
    """Writes it beside the shards, or into the cache folder where that cannot be: a bucket, a read-only disk."""
    folder = common_folder(index.files)
    path = Path(f"{folder}/{NAME}") if whole_folder else _of_some(index.files)
    if not is_remote(folder) and os.access(folder or "/", os.W_OK):
        try:
            index.write(path)
            return path
        except OSError:
            pass  # a full disk, or a network disk that says yes and means no
    path = _in_cache(index.files)
    try:
        index.write(path)
    except OSError as error:
        cause = printable(error.strerror or error)
        raise DataError(
            f"the index of {printable(folder)} cannot be written to {path} ({cause}); set XDG_CACHE_HOME to a folder "
            "that can be written to"
        ) from error
    return path


def _of_some(files: Sequence[ShardFile]) -> Path:
    """Where the index of some shards of a folder is kept, beside that of all."""
    folder = common_folder(files)
    names = [file._replace(address=file.address.removeprefix(folder)) for file in files]
    return Path(f"{folder}/{NAME.removesuffix('.npz')}-{_key(names)[:12]}.npz")


def _in_cache(files: Sequence[ShardFile]) -> Path:
    return cache_folder() / "shards" / f"{_key(files)[:32]}.npz"
