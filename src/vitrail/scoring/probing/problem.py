"""What all probes of one run share: features and labels of both sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.batch import Bad
from vitrail.data.notes import counted, quoted
from vitrail.data.samples import Integers
from vitrail.data.source import Source, Subset
from vitrail.errors import DataError
from vitrail.pictures.sources import printable
from vitrail.scoring.features import Extractor, extract
from vitrail.scoring.probing.heads import blocks
from vitrail.scoring.probing.sides import Sides

Progress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass(frozen=True)
class Problem:
    """Labels count the classes that can be learnt; -1 is another one."""

    source: Source
    rows: Integers  # of what is learnt from
    learn: Tensor  # (pictures, width)
    learn_labels: Tensor
    held: NDArray[np.bool_]  # of what is learnt from: chooses settings
    judged: Tensor
    judged_labels: Tensor
    classes: int
    bad: tuple[Bad, ...]  # pictures that could not be read: they are on neither side
    notes: tuple[str, ...]
    kept: bool  # all features were computed earlier


def gather(source: Source, sides: Sides, extractor: Extractor, *, progress: Progress | None, **how: Any) -> Problem:
    """Computes or finds the features; `how` is for `extract`."""
    learn, judged = (
        _Side(source, rows, what, extractor, progress, how)
        for what, rows in (("learnt from", sides.learn), ("judged on", sides.judged))
    )
    labels = source.samples.labels
    present = np.unique(labels[learn.rows])
    if len(present) < 2:
        raise DataError(f"pictures of one class alone can be read, {quoted([source.classes[int(present[0])]])}")
    number = np.full(len(source.classes), -1, np.int64)
    number[present] = np.arange(len(present))
    lost = len(np.unique(labels[sides.learn])) - len(present)
    return Problem(
        source,
        learn.rows,
        learn.vectors,
        torch.from_numpy(number[labels[learn.rows]]),
        sides.held[learn.valid],
        judged.vectors,
        torch.from_numpy(number[labels[judged.rows]]),
        len(present),
        (*learn.bad, *judged.bad),
        (f"{counted(lost, 'class', 'classes')} cannot be learnt: no picture can be read",) if lost else (),
        learn.kept and judged.kept,
    )


class _Side:
    """The features of the pictures of one side that can be read."""

    def __init__(
        self,
        source: Source,
        rows: Integers,
        what: str,
        extractor: Extractor,
        progress: Progress | None,
        how: dict[str, Any],
    ) -> None:
        def say(done: int, total: int) -> None:
            if progress is not None:
                progress(f"features {what}", done, total)

        subset = Subset(source, what, rows)
        made = extract(subset, extractor, progress=say, **how)
        if not made.valid.any():
            first = f", the first because: {made.bad[0].reason}" if made.bad else ""
            words = f"none of the {len(rows):,} pictures of {printable(source.name)} that are {what} can be read"
            raise DataError(words + first)
        vectors = torch.from_numpy(made.vectors)
        self.rows, self.valid = rows[made.valid], made.valid
        self.vectors = vectors if made.valid.all() else vectors[torch.from_numpy(made.valid)]
        self.bad, self.kept = made.bad, made.kept
        _refuse_nan(self.vectors, subset, made.valid)


def _refuse_nan(vectors: Tensor, subset: Subset, valid: NDArray[np.bool_]) -> None:
    wrong = torch.cat([~block.isfinite().all(dim=1) for block in blocks(vectors, 1 << 16)])
    if wrong.any():
        first = subset.name_of(int(np.flatnonzero(valid)[int(wrong.nonzero()[0])]))
        raise DataError(
            f"the features of {counted(int(wrong.sum()), 'picture')} are not numbers, the first of {quoted([first])}: "
            "are the weights whole, and does the model need --precision fp32?"
        )
