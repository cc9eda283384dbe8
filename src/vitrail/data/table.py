"""A table of pictures as a source: CSV, JSON lines or Parquet, with paths from the table's own folder."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.folder import SPLIT_FOLDERS, Files
from vitrail.data.grouping import groups_by_name, numbered
from vitrail.data.notes import class_notes, counted, quoted
from vitrail.data.samples import SPLITS, UNSAID, Names, Samples
from vitrail.data.source import Source
from vitrail.data.table_files import Columns, read_columns
from vitrail.errors import DataError
from vitrail.pictures.sources import printable

# what a column is usually called, best first; case, blanks and dashes make no difference
USUAL = {
    "path": "path file filename file_name filepath file_path image image_path image_file img img_path picture photo",
    "label": "label labels class classes class_name category categories target targets tag tags",
    "split": "split set subset fold partition",
    "group": "group group_id patient patient_id subject subject_id video video_id",
    "weight": "weight weights sample_weight",
}
SPLIT_WORDS = {word.decode(): split for word, split in SPLIT_FOLDERS.items()} | {
    "training": "train", "dev": "val", "testing": "test",
}  # fmt: skip

_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)

Labels = tuple[str, ...]


def from_table(
    path: str | os.PathLike[str],
    *,
    path_column: str | None = None,
    label_column: str | None = None,
    separator: str | None = None,
    group_by: str | None = None,
) -> Source:
    """The pictures that a table names, with their labels and, where it has them, splits, groups and weights.

    Columns are found by their usual names. With `separator` a cell holds several labels; lists in JSON lines and
    Parquet do so anyway. Rows whose file is not there are left out and counted: folders are listed once for that, so
    that a million rows do not ask for a million files. `group_by`, a pattern on the name, goes before a group column.
    """
    table = Path(path)
    name = printable(table)
    columns = read_columns(table, lambda there: _choose(there, name, path_column, label_column))
    entries = _entries(columns, name, os.path.abspath(table.parent), separator)
    kept, repeated = _once_each(entries, name)
    if not kept:
        raise DataError(f"{name} has columns and no rows: add a row for each picture")
    present = _existing(entries, kept, os.path.abspath(table.parent))
    if not present:
        example = printable(os.fsdecode(entries.names[kept[0]]))
        raise DataError(
            f"{name} names {counted(len(kept), 'picture')} and none is there, such as {example}: "
            "paths are relative to the table"
        )
    samples = _samples(entries, present, group_by)
    notes = class_notes(samples)
    if len(present) < len(kept):
        lost = [os.fsdecode(entries.names[i]) for i in sorted(set(kept) - set(present))]
        notes.insert(0, f"{counted(len(lost), 'row')} left out, without a file: {quoted(lost)}")
    if repeated:
        notes.append(f"{counted(repeated, 'row')} left out, the same picture again")
    if samples.classes and not samples.multi_label and (bare := int((samples.labels == UNSAID).sum())):
        notes.append(f"{counted(bare, 'row')} without a label")
    return Source(name, samples, Files(os.path.abspath(table.parent), samples.names), notes=tuple(notes))


def _choose(there: Sequence[str], name: str, path_column: str | None, label_column: str | None) -> dict[str, str]:
    """The column that plays each part. A table of paths alone has no labels; any other must say which they are."""
    chosen: dict[str, str] = {}
    for part, asked in (
        ("path", path_column),
        ("label", label_column),
        ("split", None),
        ("group", None),
        ("weight", None),
    ):
        found = find_column(there, name, part, asked)
        if found is not None and found not in chosen.values():
            chosen[part] = found
    unexplained = set(there) - set(chosen.values())
    for part in ("path", "label"):
        if part not in chosen and (part == "path" or unexplained):
            raise missing_column(there, name, part)
    return chosen


def find_column(there: Sequence[str], name: str, part: str, asked: str | None) -> str | None:
    """The column of the table `name` that plays a part: the one that was asked for, or one with a usual name."""
    plain = {_plain(column): column for column in reversed(there)}
    if asked is not None and asked not in there and _plain(asked) not in plain:
        raise DataError(f"{name} has no column {asked!r}: it has {_all_quoted(there)}")
    names = [asked] if asked is not None else USUAL[part].split()
    return asked if asked in there else next((plain[_plain(n)] for n in names if _plain(n) in plain), None)


def missing_column(there: Sequence[str], name: str, part: str) -> DataError:
    return DataError(
        f"{name} has no {part} column under a usual name: name it with --{part}-column; it has {_all_quoted(there)}"
    )


def _all_quoted(columns: Sequence[str]) -> str:
    return ", ".join(f"'{printable(column)}'" for column in columns[:30]) + (" and more" if len(columns) > 30 else "")


def _plain(column: str) -> str:
    return re.sub(r"[\s-]+", "_", column.strip().lower())


@dataclass
class _Entries:
    """The rows of a table, understood."""

    names: list[bytes]
    labels: list[Labels]
    splits: list[int]
    groups: list[str | None] | None
    weights: list[float] | None
    rows: Sequence[int]
    several: bool  # a picture may have several labels


def _entries(columns: Columns, name: str, base: str, separator: str | None) -> _Entries:
    values, rows = columns.values, columns.rows
    blank = [None] * len(rows)
    labels, several = read_labels(values.get("label", blank), rows, name, separator)
    weights = values.get("weight")
    groups = values.get("group")
    return _Entries(
        [_path(value, row, name, base) for value, row in zip(values["path"], rows, strict=True)],
        labels,
        [_split(value, row, name) for value, row in zip(values.get("split", blank), rows, strict=True)],
        None if groups is None else [_text(value, row, name, "group") for value, row in zip(groups, rows, strict=True)],
        None if weights is None else [_weight(value, row, name) for value, row in zip(weights, rows, strict=True)],
        rows,
        several,
    )


def _path(value: Any, row: int, name: str, base: str) -> bytes:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{name}, row {row}: {'no path' if not value else f'{value!r} is no path'}; correct the row")
    path = os.path.normpath(value.strip())
    if os.path.isabs(path) and path.startswith(base.rstrip(os.sep) + os.sep):
        path = os.path.relpath(path, base)  # the same name wherever the folder lies
    try:
        return os.fsencode(path).replace(os.fsencode(os.sep), b"/")
    except UnicodeEncodeError as error:
        raise DataError(f"{name}, row {row}: {printable(path)} can be no file's name; correct the row") from error


def _text(value: Any, row: int, name: str, what: str) -> str | None:
    """A cell as text; None where it is empty. 3.0 is 3: a column of integers with holes is one of floats."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str | int | float):
        raise DataError(f"{name}, row {row}: a {what} is text or a number, not a {type(value).__name__}")
    return str(value).strip() or None


def read_labels(
    cells: Iterable[Any], rows: Iterable[int], name: str, separator: str | None = None
) -> tuple[list[Labels], bool]:
    """The labels in each cell, and whether a cell may hold several."""
    if separator == "":
        raise DataError("the separator of labels is empty: give the character between them, such as '|'")
    several = separator is not None
    known: dict[Any, Labels] = {}  # equal labels are one object
    found = []
    for cell, row in zip(cells, rows, strict=True):
        is_list = isinstance(cell, list | tuple)
        several = several or is_list
        parts = cell if is_list else [cell]
        texts = [text for part in parts if (text := _text(part, row, name, "label")) is not None]
        if separator is not None and not is_list:
            texts = [part.strip() for text in texts for part in text.split(separator) if part.strip()]
        labels = tuple(dict.fromkeys(texts))
        found.append(known.setdefault(labels, labels))
    return found, several


def _split(value: Any, row: int, name: str) -> int:
    text = _text(value, row, name, "split")
    if text is None:
        return UNSAID
    if text.lower() not in SPLIT_WORDS:
        raise DataError(f"{name}, row {row}: split {printable(text)!r} is none of train, val and test; correct the row")
    return SPLITS.index(SPLIT_WORDS[text.lower()])


def _weight(value: Any, row: int, name: str) -> float:
    text = _text(value, row, name, "weight")
    try:
        weight = 1.0 if text is None else float(text)
    except ValueError:
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise DataError(f"{name}, row {row}: weight {printable(text)!r} is no number from 0 up; correct the row")
    return weight


def _once_each(entries: _Entries, name: str) -> tuple[list[int], int]:
    """The entries in the order of their names, each picture once, and how many repeated one."""
    kept: list[int] = []
    repeated = 0
    for entry in sorted(range(len(entries.names)), key=entries.names.__getitem__):
        if not kept or entries.names[kept[-1]] != entries.names[entry]:
            kept.append(entry)
            continue
        first = kept[-1]
        _check_agreement(entries, first, entry, name)
        if entries.several:
            entries.labels[first] = tuple(dict.fromkeys(entries.labels[first] + entries.labels[entry]))
        repeated += 1
    return kept, repeated


def _check_agreement(entries: _Entries, first: int, again: int, name: str) -> None:
    for what, column in (("split", entries.splits), ("label", entries.labels)):
        if column[first] != column[again] and not (what == "label" and entries.several):
            picture = printable(os.fsdecode(entries.names[first]))
            hint = ", or join several labels in one cell and give --separator" if what == "label" else ""
            raise DataError(
                f"{name}: {picture} has one {what} in row {entries.rows[first]} and another in row "
                f"{entries.rows[again]}; keep one{hint}"
            )


def _existing(entries: _Entries, kept: list[int], base: str) -> list[int]:
    """The entries whose file is there. One listing of each folder is quick even where asking for a file is slow."""
    folders: defaultdict[bytes, list[int]] = defaultdict(list)
    for entry in kept:
        folders[os.path.dirname(entries.names[entry])].append(entry)
    there = []
    for folder, members in folders.items():
        try:
            listed = set(os.listdir(os.path.join(os.fsencode(base), folder)))
        except (OSError, ValueError):  # ValueError: a null character
            continue
        there += [entry for entry in members if os.path.basename(entries.names[entry]) in listed]
    return sorted(there, key=entries.names.__getitem__)


def _samples(entries: _Entries, chosen: list[int], group_by: str | None) -> Samples:
    names = Names.of(entries.names[i] for i in chosen)
    columns = label_columns([entries.labels[i] for i in chosen], several=entries.several)
    groups = None
    if group_by is not None:
        groups = groups_by_name(names, group_by)
    elif entries.groups is not None:
        groups = numbered(entries.groups[i] for i in chosen)
    weights = None if entries.weights is None else np.array([entries.weights[i] for i in chosen], np.float32)
    splits = np.array([entries.splits[i] for i in chosen], np.int8)
    return Samples(names, splits=splits, groups=groups, weights=weights, **columns)


def label_columns(own: Sequence[Labels], *, several: bool, classes: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The columns of `Samples` that say what is on the pictures, from the names of the classes of each.

    Where the classes are not known, they are in the order of their names, numbers in that of their values."""
    if classes is None:
        texts = {label for labels in own for label in labels}
        if all(_INTEGER.fullmatch(text) for text in texts):
            classes = tuple(sorted(texts, key=lambda text: (int(text), text)))
        else:
            classes = tuple(sorted(texts, key=lambda text: text.encode("utf-8", "surrogatepass")))
    number = {text: place for place, text in enumerate(classes)}
    if not several:
        labels = np.array([number[each[0]] if each else UNSAID for each in own], np.int32)
        return {"classes": classes, "labels": labels}
    lists = [sorted(number[label] for label in each) for each in own]
    return {
        "classes": classes,
        "labels": np.empty(0, np.int32),
        "label_list": np.array([label for each in lists for label in each], np.int32),
        "label_ends": np.cumsum([len(each) for each in lists], dtype=np.int64),
    }
