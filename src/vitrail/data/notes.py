"""What the owner of a source should know, in plain words."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from vitrail.data.samples import SPLITS, Samples
from vitrail.pictures.sources import printable

_SHOWN = 5


def quoted(names: Collection[str]) -> str:
    """The first few of these names, and how many more there are."""
    shown = ", ".join(f"'{printable(name)}'" for name in list(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN:,} more"


def last_part(address: str) -> str:
    """What a model or a set is called for short: the last part of a path; of a run's models, with the run's name."""
    parts = printable(address).rstrip("/").split("/")
    if address.startswith("hf:"):
        return "/".join(parts)
    return "/".join(parts[-2:] if parts[-1] in ("last", "best") else parts[-1:])


def counted(count: int, one: str, many: str | None = None) -> str:
    """'1 picture', '1,000 pictures'."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def missing_classes(samples: Samples, train: NDArray[np.integer], other: NDArray[np.integer], name: str) -> list[str]:
    """The classes that only one of two splits has; `name` is that of the one that is not training."""
    learnt, seen = samples.counts(train) > 0, samples.counts(other) > 0
    lacking = [samples.classes[i] for i in np.flatnonzero(learnt & ~seen)]
    unlearnt = [samples.classes[i] for i in np.flatnonzero(seen & ~learnt)]
    notes = [f"{name} has no pictures of {quoted(lacking)}"] if lacking else []
    return notes + ([f"only {name} has pictures of {quoted(unlearnt)}: they cannot be learnt"] if unlearnt else [])


def class_notes(samples: Samples) -> list[str]:
    """What is uneven in the classes of the splits that a source itself says."""
    notes = []
    if len(samples.classes) == 1:
        notes.append(f"there is one class, {quoted(samples.classes)}: nothing can be told apart")
    train, *others = (np.flatnonzero(samples.splits == number) for number in range(len(SPLITS)))
    for name, rows in zip(SPLITS[1:], others, strict=True):
        if len(train) and samples.counts(rows).any():
            notes += missing_classes(samples, train, rows, name)
    return notes


def write_bad(bad: Mapping[str, str], path: os.PathLike[str]) -> None:
    """`bad_images.csv`: the names of pictures that could not be read, with the reasons."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["name", "reason"])
        lines.writerows((printable(name), reason) for name, reason in sorted(bad.items()))
