"""Well-known sets of pictures by their names, through torchvision; and scikit-learn's handwritten digits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.folder import Files
from vitrail.data.grouping import groups_by_name
from vitrail.data.named_sets import NAMED, class_names
from vitrail.data.notes import class_notes
from vitrail.data.samples import SPLITS, UNSAID, Names, Samples
from vitrail.data.source import Readable, Reader, Source
from vitrail.errors import DataError
from vitrail.pictures.sources import printable

DIGITS = "digits"
KNOWN = tuple(sorted([DIGITS, *NAMED]))


@dataclass(frozen=True)
class Arrays:
    """Pictures of one size in one array of bytes, (pictures, height, width, channels)."""

    array: NDArray[np.uint8] = field(repr=False)

    def read_many(self, rows: Sequence[int]) -> list[Readable]:
        return [self.array[row] for row in rows]


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where named sets are kept: `data_dir`, else $VITRAIL_DATA, else ~/.cache/vitrail/data."""
    return Path(data_dir or os.environ.get("VITRAIL_DATA") or "~/.cache/vitrail/data").expanduser()


def from_named(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    group_by: str | None = None,
) -> Source:
    """A set that everyone knows, with the splits and the order it is published with: all that have labels, without
    SVHN's extra part. A picture is called `train/000123`: its place in its split. Nothing is downloaded unless
    `download` says so; the digits come with scikit-learn.
    """
    if name == DIGITS:
        return _digits(group_by)
    if name not in NAMED:
        raise DataError(f"there is no set called {printable(name)}: choose from {', '.join(KNOWN)}")
    named, root = NAMED[name], data_folder(data_dir)
    order = sorted(named.splits)  # that of the names, as samples have it
    datasets = [_dataset(name, root, named.splits[split], download) for split in order]
    classes = class_names(named, datasets[0])
    if any(class_names(named, dataset) != classes for dataset in datasets):
        raise DataError(f"{name} in {printable(root)} has other classes in each split: get it again")
    taken = [named.take(dataset) for dataset in datasets]
    reader: Reader
    if isinstance(taken[0][0], np.ndarray):
        reader = Arrays(_joined([pictures for pictures, _ in taken]))
    else:
        absolute = os.path.abspath(root)
        reader = Files(absolute, Names.of(_below(path, absolute) for paths, _ in taken for path in paths))
    labels = np.concatenate([labels for _, labels in taken])
    return _source(
        name, reader, labels, classes, {s: len(part[1]) for s, part in zip(order, taken, strict=True)}, group_by
    )


def from_arrays(
    name: str, pictures: NDArray[np.uint8], labels: NDArray[np.int64], classes: Sequence[str], sizes: dict[str, int]
) -> Source:
    """Pictures that are in memory already, (pictures, height, width, channels), one split after the other: `sizes`
    says how many each has, `{"train": 50_000, "test": 10_000}`."""
    return _source(name, Arrays(pictures), labels, tuple(classes), sizes, None)


def _dataset(name: str, root: Path, arguments: dict[str, Any], download: bool) -> Any:
    import torchvision.datasets

    named = NAMED[name]
    maker = getattr(torchvision.datasets, named.maker)
    folder = root / named.folder
    if named.folder and not folder.is_dir() and not download:
        folder = root  # as torchvision itself would have put it
    get = {"download": True} if download and named.can_download else {}
    try:
        if get:
            folder.mkdir(parents=True, exist_ok=True)
        elif not folder.is_dir():  # some makers would make it
            raise FileNotFoundError("there is no such folder")
        return maker(str(folder), **arguments, **get)
    except Exception as error:  # the network, the disk and torchvision raise many kinds
        said = printable(" ".join(str(error).split()).partition(" You can use download")[0] or type(error).__name__)
        if get:
            raise DataError(f"{name} could not be downloaded to {printable(folder)}: {said}") from error
        remedy = "--download gets it" if named.can_download else "it cannot be downloaded, put it there by hand"
        raise DataError(
            f"{name} is not in {printable(folder)}, or not whole ({said.rstrip('.')}): {remedy}, "
            "or name another folder with --data-dir"
        ) from error


def _joined(parts: Sequence[Any]) -> NDArray[np.uint8]:
    """The parts after each other, in the order in which a picture is written; several are stored channel by channel."""
    whole = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), np.uint8)
    return np.concatenate(parts, out=whole)


def _below(path: str, root: str) -> str:
    return os.path.relpath(os.path.abspath(path), root)


def numbered_names(sizes: Mapping[str, int]) -> Names:
    """`train/000123` for each place in each split, in the order of the names if that of the splits is; in a split that
    is called "", `000123`."""
    names = []
    for split, size in sizes.items():
        width = max(6, len(str(size - 1)))
        names += [f"{split}/{place:0{width}d}" if split else f"{place:0{width}d}" for place in range(size)]
    return Names.of(names)


def _source(
    name: str,
    reader: Reader,
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    sizes: dict[str, int],
    group_by: str | None,
) -> Source:
    names = numbered_names(sizes)
    splits = np.repeat([SPLITS.index(split) if split else UNSAID for split in sizes], list(sizes.values()))
    samples = Samples(
        names,
        classes,
        labels.astype(np.int32),
        splits.astype(np.int8),
        groups=None if group_by is None else groups_by_name(names, group_by),
    )
    return Source(name, samples, reader, notes=tuple(class_notes(samples)))


def _digits(group_by: str | None) -> Source:
    """1,797 handwritten digits of 8 x 8 pixels; their 17 shades of grey are spread over 0 to 255."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    shades = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    classes = tuple(map(str, digits.target_names))
    return _source(DIGITS, Arrays(shades), digits.target.astype(np.int64), classes, {"": len(shades)}, group_by)
