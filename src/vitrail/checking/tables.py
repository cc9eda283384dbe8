"""What was found, as tables: `bad_images.csv`, `duplicates.csv`, `labels.csv`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitrail.checking.report import CheckReport

BAD, DUPLICATES, LABELS = "bad_images.csv", "duplicates.csv", "labels.csv"

_DUPLICATES = ("group", "kind", "name", "split", "label", "bits", "in_two_splits", "two_labels")
_LABELS = ("name", "split", "label", "suggested", "margin", "self_confidence", "probability")


def write_tables(report: CheckReport, folder: Path) -> None:
    """The full lists; the page shows the beginning of each."""
    bad = [(report.name_of(f.row), f.reason, "unreadable") for f in report.unreadable]
    bad += [(report.name_of(f.row), f.reason, "suspicious") for f in report.suspicious]
    _write(folder / BAD, ("name", "reason", "kind"), bad)
    _write(folder / DUPLICATES, _DUPLICATES, _duplicates(report))
    if report.labels is not None:
        _write(folder / LABELS, _LABELS, _labels(report))


def _duplicates(report: CheckReport) -> Iterable[Sequence[object]]:
    leaking = {int(group.rows[0]) for group in report.leaks}
    contradicting = {int(group.rows[0]) for group in report.contradictions}
    for number, group in enumerate(report.duplicates, start=1):
        first = int(group.rows[0])
        for row in map(int, group.rows):
            kind = "exact" if group.exact else "near"
            member = report.name_of(row), report.split_of(row), report.label_of(row), report.distance(group, row)
            yield number, kind, *member, int(first in leaking), int(first in contradicting)


def _labels(report: CheckReport) -> Iterable[Sequence[object]]:
    classes = report.source.classes
    for doubt in report.labels.doubts if report.labels else ():
        numbers = (f"{value:.4f}" for value in (doubt.margin, doubt.self_confidence, doubt.probability))
        name, split = report.name_of(doubt.row), report.split_of(doubt.row)
        yield name, split, classes[doubt.given], classes[doubt.suggested], *numbers


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    # a name that is not UTF-8 keeps its bytes, so that a script can find the file
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(rows)
