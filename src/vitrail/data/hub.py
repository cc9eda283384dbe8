"""Sets of pictures from the Hugging Face Hub, `hf:owner/name`, through its library `datasets`."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.data.arrays import numbered_names
from vitrail.data.grouping import groups_by_name
from vitrail.data.notes import class_notes, counted, quoted
from vitrail.data.samples import SPLITS, UNSAID, Samples
from vitrail.data.source import Readable, Source
from vitrail.data.table import SPLIT_WORDS, USUAL, label_columns, read_labels
from vitrail.errors import DataError
from vitrail.pictures.sources import printable

ADDRESS = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?(?:@(?P<revision>\w[\w.+/-]*))?", re.ASCII)


@dataclass(frozen=True)
class HubPictures:
    """Pictures in the library's files, which it maps into memory; still encoded."""

    parts: tuple[Any, ...] = field(repr=False)  # one for each split, of one column
    starts: tuple[int, ...]  # the first row of each
    column: str

    def read_many(self, rows: Sequence[int]) -> list[Readable]:
        pictures: list[Readable] = [b""] * len(rows)
        owners = [bisect_right(self.starts, row) - 1 for row in rows]
        for owner in set(owners):
            places = [place for place, own in enumerate(owners) if own == owner]
            found = self.parts[owner][[rows[place] - self.starts[owner] for place in places]][self.column]
            for place, picture in zip(places, found, strict=True):
                pictures[place] = _encoded(picture)
        return pictures


def _encoded(picture: dict[str, Any] | None) -> Readable:
    """Its bytes, or else its path; a hole is a picture without bytes, which decoding refuses."""
    if picture is None:
        return b""
    return picture["bytes"] if picture["bytes"] is not None else picture["path"] or b""


def from_hub(
    address: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    group_by: str | None = None,
) -> Source:
    """The set at `hf:owner/name[/configuration][@revision]`, downloaded if the library does not have it yet.

    Its files go into `data_dir`, or else into the library's own cache. The columns are found by what they hold; names
    of pictures are `train/000123`, with the set's own names of splits.
    """
    match = ADDRESS.fullmatch(address)
    if match is None or ".." in address:
        raise DataError(f"{printable(address)} is no set on the Hub: write hf:owner/name or hf:owner/name@revision")
    parts, notes = _chosen_splits(_load(address, match, data_dir), address)
    features = next(iter(parts.values())).features
    pictures = _picture_column(features, image_column, address)
    labels = _label_column(features, label_column, address)
    names = numbered_names({split: len(part) for split, part in parts.items()})
    said = [_number(split) for split in parts]
    samples = Samples(
        names,
        splits=np.repeat(said, [len(part) for part in parts.values()]).astype(np.int8),
        groups=None if group_by is None else groups_by_name(names, group_by),
        **_labels(parts, labels, address),
    )
    notes += class_notes(samples)
    if labels is None:
        notes.append("it has no column of labels")
    elif not samples.multi_label and (bare := int((samples.labels == UNSAID).sum())):
        notes.append(f"{counted(bare, 'picture')} without a label")
    return Source(address, samples, _reader(parts, pictures), notes=tuple(notes))


def _load(address: str, match: re.Match[str], data_dir: str | os.PathLike[str] | None) -> dict[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise DataError("hf: needs the library datasets: pip install 'vitrail[hub]'") from error
    try:
        found = datasets.load_dataset(
            match["repo"],
            match["config"],
            revision=match["revision"],
            cache_dir=None if data_dir is None else os.fspath(data_dir),
        )
    except Exception as error:  # the library, its HTTP client and the system raise many kinds
        said = printable(" ".join(str(error).split()) or type(error).__name__)
        raise DataError(
            f"{printable(address)} cannot be had ({said}): check the name and the network; "
            "a configuration is written hf:owner/name/configuration"
        ) from error
    return {split: part for split, part in sorted(found.items()) if len(part)}


def _number(split: str) -> int:
    word = SPLIT_WORDS.get(split.lower())
    return UNSAID if word is None else SPLITS.index(word)


def _chosen_splits(parts: dict[str, Any], address: str) -> tuple[dict[str, Any], list[str]]:
    """The splits that are train, val or test; or the only one there is, whatever it is called."""
    if not parts:
        raise DataError(f"{address} holds no pictures: choose another set")
    known = {split: part for split, part in parts.items() if _number(split) != UNSAID}
    others = [split for split in parts if split not in known]
    if known:
        return known, [f"{quoted(others)} left out: neither train, val nor test"] if others else []
    if len(parts) > 1:
        raise DataError(
            f"{address} has the splits {quoted(others)}, and none is train, val or test: download it, and "
            "make a table with a column that says which are"
        )
    return parts, []


def _picture_column(features: Any, asked: str | None, address: str) -> str:
    import datasets

    there = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    if asked is not None and asked not in there:
        raise DataError(f"{address} has no column {asked!r} of pictures: it has {quoted(there or list(features))}")
    if asked is None and len(there) != 1:
        raise DataError(
            f"{address} has {counted(len(there), 'column')} of pictures among {quoted(list(features))}: "
            + ("name one with --path-column" if there else "choose another set")
        )
    return asked or there[0]


def _label_column(features: Any, asked: str | None, address: str) -> str | None:
    """The column that is asked for, or has a usual name, or is the only one that holds classes."""
    import datasets

    if asked is not None:
        if asked not in features:
            raise DataError(f"{address} has no column {asked!r}: it has {quoted(list(features))}")
        return asked
    usual = [name for name in USUAL["label"].split() if name in features]
    if usual:
        return usual[0]
    classes = [name for name, feature in features.items() if isinstance(_inner(feature), datasets.ClassLabel)]
    if len(classes) > 1:
        raise DataError(f"{address} has classes in {quoted(classes)}: choose one with --label-column")
    return classes[0] if classes else None


def _inner(feature: Any) -> Any:
    """What a list holds; anything else is itself."""
    return getattr(feature, "feature", feature)


def _labels(parts: dict[str, Any], column: str | None, address: str) -> dict[str, Any]:
    import datasets

    if column is None:
        return label_columns([()] * sum(map(len, parts.values())), several=False)
    cells: list[Any] = []
    for part in parts.values():
        cells += part.select_columns([column]).with_format("arrow")[:].column(column).to_pylist()
    feature = next(iter(parts.values())).features[column]
    names = None
    if isinstance(_inner(feature), datasets.ClassLabel):
        names = tuple(_inner(feature).names)
        cells = [_named(cell, names) for cell in cells]
    own, several = read_labels(cells, range(1, len(cells) + 1), address)
    return label_columns(own, several=several or _inner(feature) is not feature, classes=names)


def _named(cell: Any, names: tuple[str, ...]) -> Any:
    """The names of the classes for their numbers; -1 is the library's way to say none."""
    if isinstance(cell, list):
        return [names[number] for number in cell if number is not None and number >= 0]
    return None if cell is None or cell < 0 else names[cell]


def _reader(parts: dict[str, Any], column: str) -> HubPictures:
    import datasets

    encoded = tuple(
        part.select_columns([column]).cast_column(column, datasets.Image(decode=False)) for part in parts.values()
    )
    sizes = [len(part) for part in encoded]
    return HubPictures(encoded, tuple(int(start) for start in np.cumsum([0, *sizes[:-1]])), column)
