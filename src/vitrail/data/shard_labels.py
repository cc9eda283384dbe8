"""The labels that shards state, matched to the names of classes."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.notes import counted, quoted
from vitrail.data.samples import UNSAID, Integers
from vitrail.errors import DataError

Label = int | str | list[int | str] | None

_LONGEST_NAME = 200  # of a class in a .txt; a longer text is a caption


@dataclass(frozen=True)
class Matched:
    """Labels as `Samples` has them: one for each row, or where `lists` is given any number."""

    classes: tuple[str, ...]
    labels: NDArray[np.int32]
    lists: tuple[NDArray[np.int32], Integers] | None = None
    notes: tuple[str, ...] = ()

    def columns(self, rows: Integers) -> dict[str, Any]:
        """The columns of `Samples` for these rows in this order."""
        if self.lists is None:
            return {"labels": self.labels[rows]}
        flat, ends = self.lists
        starts = np.concatenate([[0], ends[:-1]])
        pieces = [flat[starts[row] : ends[row]] for row in rows]
        new_ends = np.cumsum(ends[rows] - starts[rows], dtype=np.int64)
        return {"labels": flat[:0], "label_list": np.concatenate(pieces), "label_ends": new_ends}


class Labels:
    """Gathers what samples say, one after another, in few bytes each."""

    def __init__(self) -> None:
        self._known: dict[int | str, int] = {}
        self._flat = array("i")
        self._ends = array("q")
        self._texts: dict[bytes, int] = {}
        self._text = array("i")
        self._several = False
        self._without_text = False

    def add(self, label: Label, text: bytes | None, *, described: bool) -> None:
        """One sample's label and its `.txt`, which counts only where no sample is described by `.cls` or `.json`."""
        self._several |= isinstance(label, list)
        for one in label if isinstance(label, list) else [label]:
            if one is not None and not (isinstance(one, int) and one < 0):  # -1 is how many say: none
                self._flat.append(self._known.setdefault(one, len(self._known)))
        self._ends.append(len(self._flat))
        self._without_text |= described or (text is not None and not 0 < len(text.strip()) <= _LONGEST_NAME)
        if not self._without_text:
            self._text.append(UNSAID if text is None else self._texts.setdefault(text.strip(), len(self._texts)))

    def stated(self) -> bool:
        return self._several or len(self._flat) > 0 or self._by_text()

    def _by_text(self) -> bool:
        return not self._without_text and bool(self._texts)

    def matched(self, listed: tuple[str, ...] | None) -> Matched:
        """`listed` are the names in order that stand beside the shards: numbers point into them, names are found in
        them. Names that are not there come after them, sorted."""
        if not self._flat and self._by_text():
            names = [text.decode(errors="replace") for text in self._texts]
            classes, meaning, notes = _meaning(names, listed)
            return Matched(classes, _look_up(meaning, np.array(self._text, np.int32)), notes=notes)
        classes, meaning, notes = _meaning(list(self._known), listed)
        flat = meaning[np.array(self._flat, np.int32)]
        ends = np.array(self._ends, np.int64)
        if self._several:
            return Matched(classes, flat[:0], (flat, ends), notes)
        labels = np.full(len(ends), UNSAID, np.int32)
        labels[np.diff(ends, prepend=0) == 1] = flat
        return Matched(classes, labels, notes=notes)


def _look_up(meaning: NDArray[np.int32], numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    if not len(meaning):
        return numbers
    return np.where(numbers == UNSAID, UNSAID, meaning[numbers]).astype(np.int32)


def _meaning(
    said: Sequence[int | str], listed: tuple[str, ...] | None
) -> tuple[tuple[str, ...], NDArray[np.int32], tuple[str, ...]]:
    """The classes; for each thing that was said, its class; and what the owner should know."""
    notes: tuple[str, ...] = ()
    if listed is None:
        named = [str(one) for one in said]
        by_number = all(isinstance(one, int) for one in said)
        classes = tuple(sorted(set(named), key=int if by_number else os.fsencode))
    else:
        named = [_listed_name(one, listed) if isinstance(one, int) else one for one in said]
        extra = sorted(set(named) - set(listed), key=os.fsencode)
        classes = listed + tuple(extra)
        if extra:
            notes = (f"{quoted(extra)} not in the list of classes beside the shards: placed after it",)
    place = {name: number for number, name in enumerate(classes)}
    return classes, np.array([place[name] for name in named], np.int32), notes


def _listed_name(number: int, listed: tuple[str, ...]) -> str:
    if number >= len(listed):
        raise DataError(
            f"a label is {number}, but the list of classes beside the shards has {len(listed)}: they are counted from "
            "0; complete the list"
        )
    return listed[number]


def folder_labels(
    names: Sequence[bytes], listed: tuple[str, ...] | None, split_words: Mapping[str, int]
) -> tuple[Matched, NDArray[np.int8]]:
    """Labels and splits from the folders of the names, as in a folder of pictures: `rose/1.jpg`, `train/rose/1.jpg`."""
    folders = [name.decode(errors="surrogateescape").split("/")[:-1] for name in names]
    with_splits = all(parts and parts[0].lower() in split_words for parts in folders)
    splits = np.full(len(names), UNSAID, np.int8)
    if with_splits:
        splits = np.array([split_words[parts[0].lower()] for parts in folders], np.int8)
    said = Labels()
    for parts in folders:
        inner = parts[1:] if with_splits else parts
        said.add(inner[0] if inner else None, None, described=True)
    matched = said.matched(listed)
    loose = int(np.sum(matched.labels == UNSAID))
    if 0 < loose < len(names):
        matched = replace(matched, notes=(*matched.notes, f"{counted(loose, 'picture')} in no class folder: no label"))
    return matched, splits
