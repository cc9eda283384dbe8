"""A folder of pictures as a source: `<class>/*`, or `{train,val,test}/<class>/*`, or pictures without labels."""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitrail.data.grouping import groups_by_name
from vitrail.data.notes import class_notes, counted, quoted
from vitrail.data.samples import SPLITS, UNSAID, Names, Samples
from vitrail.data.source import Readable, Source
from vitrail.errors import DataError
from vitrail.pictures.sources import SUFFIXES, printable

SPLIT_FOLDERS = {b"train": "train", b"val": "val", b"valid": "val", b"validation": "val", b"test": "test"}

_ENDINGS = frozenset(suffix[1:].encode() for suffix in SUFFIXES)


@dataclass(frozen=True)
class Files:
    """Pictures that are files, by their paths from a folder (or from the root of the file system)."""

    root: str
    names: Names = field(repr=False)

    def read_many(self, rows: Sequence[int]) -> list[Readable]:
        return [os.path.join(self.root, self.names[row]) for row in rows]

    def fingerprint(self, rows: NDArray[np.integer]) -> bytes:
        """Changes when any of these files does: their sizes and times."""
        return b"".join(_stamp(os.path.join(self.root, self.names[int(row)])) for row in rows)


def _stamp(path: str) -> bytes:
    try:
        about = os.stat(path)
    except OSError:
        return b"-"
    return b"%d %d;" % (about.st_size, about.st_mtime_ns)


def from_folder(path: str | os.PathLike[str], *, group_by: str | None = None, everything: bool = False) -> Source:
    """The pictures of a folder. A class is the first folder below the root, or below `train`, `val` or `test`, however
    deep the pictures lie in it; a folder without class folders has no labels.

    With `everything` no picture is left out, wherever it lies: those in no class folder have no label, those beside
    splits are in none. The order is that of the bytes of the names, the same on every machine. `group_by` is a pattern:
    see `vitrail.data.grouping`.
    """
    name = printable(os.fspath(path))
    listing = _list_all(os.fsencode(path), name)
    splits, strangers = _split_folders(listing, name, sure=not everything)
    pictures, classes, labels, split = _label(listing.pictures, splits, everything)
    names = Names.of(pictures)
    samples = Samples(
        names, classes, labels, split, groups=None if group_by is None else groups_by_name(names, group_by)
    )
    notes = [
        *_notes_of_listing(listing, strangers, len(listing.pictures) - len(pictures)),
        *_empty_classes(listing, set(classes), splits),
        *_classes_like_splits(classes, splits),
        *class_notes(samples),
    ]
    return Source(name, samples, Files(os.path.abspath(os.fsdecode(path)), names), notes=tuple(notes))


@dataclass
class _Listing:
    """What lies in a folder: paths from it, with `/`."""

    pictures: list[bytes] = field(default_factory=list)
    folders: list[bytes] = field(default_factory=list)
    others: Counter[bytes] = field(default_factory=Counter)  # files that are no pictures, by their suffix
    closed: list[bytes] = field(default_factory=list)  # folders that cannot be read
    repeated: list[bytes] = field(default_factory=list)  # links to a folder that is listed already
    broken: list[bytes] = field(default_factory=list)  # links to nothing, pipes, devices


def _list_all(root: bytes, name: str) -> _Listing:
    """Everything below a folder, each directory once. Links are followed after all that is really there, so that a
    directory is known by its own place and not by a link's."""
    try:
        with os.scandir(root):
            pass
    except OSError as error:
        raise _unreadable(error, name) from error
    listing = _Listing()
    seen: set[tuple[int, int]] = set()
    real, links = [b""], list[bytes]()
    while real or links:
        folder = real.pop() if real else heapq.heappop(links)
        try:
            about = os.stat(os.path.join(root, folder))
            if (about.st_dev, about.st_ino) in seen:
                listing.repeated.append(folder)
                continue
            seen.add((about.st_dev, about.st_ino))
            _list_one(root, folder, listing, real, links)
        except OSError:
            listing.closed.append(folder)
    listing.pictures.sort()
    listing.folders.sort()
    return listing


def _list_one(root: bytes, folder: bytes, listing: _Listing, real: list[bytes], links: list[bytes]) -> None:
    prefix = folder + b"/" if folder else b""
    if folder:
        listing.folders.append(folder)
    keep = listing.pictures.append
    with os.scandir(os.path.join(root, folder)) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith(b"."):
                continue
            if entry.is_dir(follow_symlinks=False):
                real.append(prefix + name)
            elif entry.is_symlink() and _is_folder(entry):
                heapq.heappush(links, prefix + name)
            elif (ending := name.rpartition(b".")[2].lower()) not in _ENDINGS or ending == name.lower():
                listing.others[b"." + ending if b"." in name else b""] += 1
            elif _is_file(entry):
                keep(prefix + name)
            else:
                listing.broken.append(prefix + name)


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_file(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _unreadable(error: OSError, name: str) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"there is no folder {name}: check the path")
    if isinstance(error, NotADirectoryError):
        return DataError(f"{name} is a file, not a folder: give the folder that holds the class folders")
    if isinstance(error, PermissionError):
        return DataError(f"{name}: reading this folder is not permitted; change its permissions")
    return DataError(f"{name}: this folder cannot be read ({error.strerror}); check the path")


def _split_folders(listing: _Listing, name: str, *, sure: bool = True) -> tuple[dict[bytes, str], list[bytes]]:
    """The folders that are splits, and the folders with pictures that then stand beside them. Where it is not clear
    what they are, that is an error, or unless it must be `sure` there are none.

    `train` can also be a class, beside `car` and `plane`: then it holds pictures, where a split holds class folders.
    """
    filled, deep = set(), set()
    for path in listing.pictures:
        first, slash, rest = path.partition(b"/")
        if slash:
            filled.add(first)
            if b"/" in rest:
                deep.add(first)
    if not listing.pictures:
        others = f" ({counted(listing.others.total(), 'other file')})" if listing.others else ""
        raise DataError(f"there are no pictures in {name}{others}: expected {name.rstrip('/')}/<class>/*.jpg")
    splits = {folder: SPLIT_FOLDERS[folder.lower()] for folder in sorted(filled) if folder.lower() in SPLIT_FOLDERS}
    beside = sorted(filled - splits.keys())
    if not beside:
        return splits, []
    if not splits.keys() & deep:
        return {}, []
    if len(set(splits.values())) == 1 and not sure:
        return {}, []
    if len(set(splits.values())) == 1:
        raise DataError(
            f"{name}: it is not clear whether {quoted(_texts(splits))} is a split or a class, "
            f"since {quoted(_texts(beside))} stands beside it; rename one of them, or move it away"
        )
    return splits, beside


def _label(
    pictures: list[bytes], splits: dict[bytes, str], everything: bool
) -> tuple[list[bytes], tuple[str, ...], NDArray[np.int32], NDArray[np.int8]]:
    """The pictures that are kept, the classes, and the label and the split of each picture.

    Without any class folder all are kept, unlabelled; otherwise those that lie in a class folder, or everything."""
    numbers = {folder: SPLITS.index(split) for folder, split in splits.items()}
    kept, labels, said = list[bytes](), list[int](), list[int]()
    loose, loose_said = list[bytes](), list[int]()
    found: dict[bytes, int] = {}
    for path in pictures:
        first, _, rest = path.partition(b"/")
        split = UNSAID
        if numbers:
            if first not in numbers:
                if everything:
                    kept.append(path)
                    labels.append(UNSAID)
                    said.append(UNSAID)
                continue
            split = numbers[first]
            first, _, rest = rest.partition(b"/")
        if rest or everything:
            kept.append(path)
            labels.append(found.setdefault(first, len(found)) if rest else UNSAID)
            said.append(split)
        else:
            loose.append(path)
            loose_said.append(split)
    if not kept:
        return loose, (), np.full(len(loose), UNSAID, np.int32), np.array(loose_said, np.int8)
    order = sorted(found)
    place = np.full(len(order) + 1, UNSAID, np.int32)  # the last is that of none
    place[[found[name] for name in order]] = np.arange(len(order))
    return kept, tuple(_texts(order)), place[np.array(labels)], np.array(said, np.int8)


def _notes_of_listing(listing: _Listing, strangers: list[bytes], left_out: int) -> list[str]:
    notes = []
    if left_out:
        beside = f"in {quoted(_texts(strangers))} beside the splits, or " if strangers else ""
        notes.append(f"{counted(left_out, 'picture')} left out, {beside}in no class folder")
    if listing.others:
        kinds = ", ".join(
            f"{printable(os.fsdecode(kind)) or 'no suffix'} {count:,}" for kind, count in listing.others.most_common(5)
        )
        notes.append(f"{counted(listing.others.total(), 'file')} left out, not named like a picture: {kinds}")
    for paths, what in (
        (listing.closed, "left out, a folder that cannot be opened"),
        (listing.repeated, "not listed again, a link to a folder that is listed already"),
        (listing.broken, "left out, a link to nothing or no file"),
    ):
        if paths:
            notes.append(f"{what}: {quoted(_texts(sorted(paths)))}")
    return notes


def _empty_classes(listing: _Listing, classes: set[str], splits: dict[bytes, str]) -> list[str]:
    """Class folders without a picture anywhere; those that one split lacks are found by counting."""
    if not classes:
        return []
    top = [path for path in listing.folders if path.count(b"/") == (1 if splits else 0)]
    if splits:
        top = [path.partition(b"/")[2] for path in top if path.partition(b"/")[0] in splits]
    empty = sorted({name for name in _texts(top) if name not in classes})
    return [f"no class, a folder without pictures: {quoted(empty)}"] if empty else []


def _classes_like_splits(classes: tuple[str, ...], splits: dict[bytes, str]) -> list[str]:
    alike = [name for name in classes if os.fsencode(name).lower() in SPLIT_FOLDERS and not splits]
    return [f"taken as a class and not as a split, since there are pictures in it: {quoted(alike)}"] if alike else []


def _texts(names: Sequence[bytes] | dict[bytes, str]) -> list[str]:
    return [os.fsdecode(name) for name in names]
