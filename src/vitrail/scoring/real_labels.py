"""ImageNet's reassessed labels ("ReaL", Beyer et al. 2020): every label that a validation picture may rightly have."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.data.notes import quoted
from vitrail.data.samples import Integers
from vitrail.data.source import Subset
from vitrail.errors import DataError

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")


@dataclass(frozen=True)
class RealScore:
    """Accuracy where any of the valid labels is right."""

    top1: float
    pictures: int
    without_label: int  # no label was found valid: they are not counted


class RealLabels:
    """`real.json`, a list: entry k has the labels of ILSVRC2012_val_{k + 1}, as numbers of outputs."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            with open(path, encoding="utf-8") as file:
                entries = json.load(file)
        except (OSError, ValueError) as error:
            raise DataError(f"the ReaL labels {self.path} cannot be read: {error}") from error
        if not isinstance(entries, list) or not all(isinstance(entry, list) for entry in entries):
            raise DataError(f"{self.path} holds no ReaL labels: it must be a JSON list with a list for each picture")
        self.entries: list[list[int]] = entries

    def check(self, subset: Subset) -> None:
        """Refuses pictures that are not of ImageNet's validation set, before the long work."""
        for name in subset.names():
            self._of(name)

    def score(self, subset: Subset, samples: Integers, answers: Integers) -> RealScore:
        valid: Sequence[list[int]] = [self._of(subset.name_of(int(sample))) for sample in samples]
        hits = sum(answer in labels for answer, labels in zip(answers.tolist(), valid, strict=True))
        counted = sum(map(bool, valid))
        return RealScore(hits / counted if counted else float("nan"), counted, len(valid) - counted)

    def _of(self, name: str) -> list[int]:
        found = _NUMBER.search(name)
        number = int(found[1]) if found else 0
        if not 1 <= number <= len(self.entries):
            raise DataError(
                f"{quoted([name])} has no ReaL labels: pictures must have the names of ImageNet's validation set, "
                f"ILSVRC2012_val_00000001 to {len(self.entries):08d}"
            )
        return self.entries[number - 1]
