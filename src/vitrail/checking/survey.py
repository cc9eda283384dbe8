"""One pass over all pictures of a source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from vitrail.checking.looking import Looker
from vitrail.checking.records import RECORD, Records
from vitrail.data.samples import Integers
from vitrail.data.source import Source
from vitrail.data.workers import Rows, in_order

Progress = Callable[[str, int, int], None]  # what is being done; pictures done; of how many

_CHUNK = 32


@dataclass(frozen=True)
class Survey:
    records: Records  # one for each row of the source
    unreadable: dict[int, str]  # row → why


def survey(source: Source, workers: int, progress: Progress) -> Survey:
    """Looks at every picture once, in the order in which they are stored."""
    records = np.zeros(len(source), RECORD)
    unreadable: dict[int, str] = {}
    done = 0
    looker = Looker(source.reader, source.samples.names)
    with closing(in_order(looker, chunks_of(source, np.arange(len(source))), workers)) as looks:
        for rows, (found, reasons) in looks:
            records[list(rows)] = found
            unreadable |= reasons
            done += len(rows)
            progress("reading", done, len(source))
    return Survey(records, dict(sorted(unreadable.items())))


def chunks_of(source: Source, rows: Integers, size: int = _CHUNK) -> Sequence[Rows]:
    """The rows in pieces that are read in one go, in the order of the storage."""
    if source.positions is not None:
        rows = rows[np.argsort(source.positions[rows], kind="stable")]
    size = max(size, source.run)
    return [rows[start : start + size].tolist() for start in range(0, len(rows), size)]
