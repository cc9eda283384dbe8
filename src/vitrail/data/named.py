"""Well-known sets of pictures by their names, through torchvision; and scikit-learn's handwritten digits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.arrays import Arrays, numbered_source
from vitrail.data.folder import Files
from vitrail.data.named_sets import NAMED, class_names
from vitrail.data.samples import Names
from vitrail.data.source import Reader, Source
from vitrail.errors import DataError
from vitrail.pictures.sources import printable

DIGITS = "digits"
KNOWN = tuple(sorted([DIGITS, *NAMED]))


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
    return numbered_source(
        name, reader, labels, classes, {s: len(part[1]) for s, part in zip(order, taken, strict=True)}, group_by
    )


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


def _digits(group_by: str | None) -> Source:
    """1,797 handwritten digits of 8 x 8 pixels; their 17 shades of grey are spread over 0 to 255."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    shades = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    classes = tuple(map(str, digits.target_names))
    return numbered_source(DIGITS, Arrays(shades), digits.target.astype(np.int64), classes, {"": len(shades)}, group_by)
