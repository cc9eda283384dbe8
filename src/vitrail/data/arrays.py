"""Pictures of one size in one array as a source: in memory, or from a `.npz` file as Keras and MedMNIST have them."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.folder import SPLIT_FOLDERS
from vitrail.data.grouping import groups_by_name
from vitrail.data.notes import class_notes
from vitrail.data.samples import SPLITS, UNSAID, Names, Samples
from vitrail.data.source import Readable, Reader, Source
from vitrail.errors import DataError
from vitrail.pictures.sources import printable

CHANNELS = (1, 3, 4)
CLASSES, MOST = "classes", 1_000_000  # the array of their names; so many need none
FORMS = (("x_{}", "{}_images"), ("y_{}", "{}_labels"))  # what arrays of pictures and of labels are called, by split


def _keys(split: str) -> tuple[list[str], list[str]]:
    """What arrays of pictures and of labels may be called."""
    words = [word.decode() for word, meant in SPLIT_FOLDERS.items() if meant == split]
    pictures, labels = ([form.format(word) for word in words for form in forms] for forms in FORMS)
    return pictures, labels


# in the order of names; "": of all pictures together
KEYS = {"": (["x", "images"], ["y", "labels"])} | {split: _keys(split) for split in sorted(SPLITS)}


@dataclass(frozen=True)
class Arrays:
    """Pictures of one size in one array of bytes, (pictures, height, width, channels)."""

    array: NDArray[np.uint8] = field(repr=False)

    def read_many(self, rows: Sequence[int]) -> list[Readable]:
        return [self.array[row] for row in rows]


def from_arrays(
    name: str, pictures: NDArray[np.uint8], labels: NDArray[np.int64], classes: Sequence[str], sizes: dict[str, int]
) -> Source:
    """Pictures that are in memory already, (pictures, height, width, channels), one split after the other: `sizes`
    says how many each has, `{"train": 50_000, "test": 10_000}`."""
    return numbered_source(name, Arrays(pictures), labels, tuple(classes), sizes, None)


def from_npz(path: str | os.PathLike[str], *, group_by: str | None = None) -> Source:
    """The arrays of a `.npz` file: `x_train`, `y_train` and so on, or `train_images`, `train_labels`, with `val` and
    `test` likewise, or `x` and `y` for all together. Pictures are bytes. Labels are numbers from 0, which `classes`
    names if it is there, or names themselves, or a column of zeros and ones for each class; or there are none."""
    said = printable(path)
    arrays = _read(path, said)
    parts = {split: _part(arrays, split, said) for split in KEYS}
    there = {split: part for split, part in parts.items() if part is not None}
    if not there:
        raise DataError(
            f"{said} has no pictures: they are looked for as x_train, x_val, x_test, or train_images and so on, or x; "
            f"it has {', '.join(map(printable, sorted(arrays))) or 'nothing'}"
        )
    if "" in there and len(there) > 1:
        raise DataError(f"{said} has pictures of a split and others of none: name the splits of all, or of none")
    pictures, labels = ([part[kind] for part in there.values()] for kind in (0, 1))
    shapes = {one.shape[1:] for one in pictures}
    if len(shapes) > 1:
        raise DataError(f"{said} has pictures of {len(shapes)} sizes: all in one file must have the same")
    if len({None if label is None else label.shape[1:] for label in labels}) > 1:
        raise DataError(f"{said} has labels of one kind in one split, and others or none in another")
    array = pictures[0] if len(pictures) == 1 else np.concatenate(pictures)
    sizes = {split: len(part[0]) for split, part in there.items()}
    known = None if labels[0] is None else np.concatenate(labels)
    named, classes = _named(known, arrays.get(CLASSES), len(array), said)
    return numbered_source(Path(path).name, Arrays(array), named, classes, sizes, group_by)


def numbered_names(sizes: Mapping[str, int]) -> Names:
    """`train/000123` for each place in each split, in the order of the names if that of the splits is; in a split that
    is called "", `000123`."""
    names = []
    for split, size in sizes.items():
        width = max(6, len(str(size - 1)))
        names += [f"{split}/{place:0{width}d}" if split else f"{place:0{width}d}" for place in range(size)]
    return Names.of(names)


def numbered_source(
    name: str,
    reader: Reader,
    labels: NDArray[np.integer],  # of each picture; or a column of zeros and ones for each class
    classes: tuple[str, ...],
    sizes: dict[str, int],
    group_by: str | None,
) -> Source:
    """Pictures that are known by their places in their splits."""
    names = numbered_names(sizes)
    splits = np.repeat([SPLITS.index(split) if split else UNSAID for split in sizes], list(sizes.values()))
    several: dict[str, Any] = {}
    if labels.ndim == 2:
        rows, columns = np.nonzero(labels)
        ends = np.cumsum(np.bincount(rows, minlength=len(labels)))
        several = {"label_list": columns.astype(np.int32), "label_ends": ends}
        labels = labels.ravel()[:0]
    groups = None if group_by is None else groups_by_name(names, group_by)
    samples = Samples(names, classes, labels.astype(np.int32), splits.astype(np.int8), groups=groups, **several)
    return Source(name, samples, reader, notes=tuple(class_notes(samples)))


def _read(path: str | os.PathLike[str], said: str) -> dict[str, NDArray[Any]]:
    """Those arrays that mean something here."""
    wanted = {CLASSES, *(key for pair in KEYS.values() for keys in pair for key in keys)}
    if not zipfile.is_zipfile(path):
        raise DataError(f"{said} is no .npz file: numpy.savez writes them")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: np.atleast_1d(file[key]) if key in wanted else np.zeros(0) for key in file.files}
    except MemoryError as error:
        raise DataError(f"{said} does not fit into memory: write its pictures as files, or as tar shards") from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError) as error:
        if "allow_pickle" in str(error):
            raise DataError(f"{said} holds Python objects, which are not read: save plain arrays") from error
        raise DataError(f"{said} is damaged: {printable(error)}") from error


def _part(arrays: Mapping[str, NDArray[Any]], split: str, said: str) -> tuple[NDArray[np.uint8], Any] | None:
    """Pictures and labels of one split, if it is there; or, of "", of all together."""
    found = [next((key for key in keys if key in arrays), None) for keys in KEYS[split]]
    if found[0] is None:
        return None
    pictures = _pictures(arrays[found[0]], f"{said}: {found[0]}")
    if found[1] is None:
        return pictures, None
    labels = arrays[found[1]]
    if len(labels) != len(pictures):
        raise DataError(f"{said}: {found[0]} has {len(pictures):,} pictures, {found[1]} {len(labels):,} labels")
    return pictures, labels.reshape(len(labels), -1)[:, 0] if labels.size == len(labels) else labels


def _pictures(array: NDArray[Any], said: str) -> NDArray[np.uint8]:
    """(pictures, height, width, channels)."""
    if array.dtype != np.uint8:
        raise DataError(f"{said} is {array.dtype}: pictures must be bytes from 0 to 255: save them as uint8")
    array = array[..., None] if array.ndim == 3 else array
    if array.ndim == 4 and array.shape[3] not in CHANNELS and array.shape[1] in CHANNELS:
        array = np.ascontiguousarray(np.moveaxis(array, 1, 3))
    if array.ndim != 4 or array.shape[3] not in CHANNELS or array.size == 0:
        raise DataError(f"{said} is {array.shape}: pictures must be (pictures, height, width[, channels])")
    return array


def _named(
    labels: NDArray[Any] | None, given: NDArray[Any] | None, count: int, said: str
) -> tuple[NDArray[np.integer], tuple[str, ...]]:
    """Labels as numbers, and the names of the classes."""
    names = None if given is None else tuple(str(one) for one in given.ravel())
    if labels is None:
        return np.full(count, UNSAID), names or ()
    if labels.dtype.kind == "U" and labels.ndim == 1:
        found, numbers = np.unique(labels, return_inverse=True)
        return numbers, tuple(map(str, found))
    if labels.dtype.kind not in "iub" or labels.ndim > 2:
        raise DataError(f"{said} has labels of {labels.dtype}, {labels.shape}: they must be whole numbers, or names")
    if (labels.ndim == 2 and labels.max(initial=0) > 1) or labels.min(initial=0) < 0:
        raise DataError(f"{said} has labels that are no numbers of classes from 0, nor zeros and ones for each class")
    most = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=0)) + 1
    if names is None and most > MOST:
        raise DataError(f"{said} has labels up to {most - 1:,}: number the classes from 0, or name them in `classes`")
    if names is not None and (len(names) < most or len(set(names)) < len(names)):
        raise DataError(f"{said} names {len(set(names))} classes in `classes`, but has labels of {most}")
    return labels, names or tuple(map(str, range(most)))
