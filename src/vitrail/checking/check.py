"""`vitrail.check`: what is wrong with the pictures and labels of a source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.checking.duplicates import find_duplicates
from vitrail.checking.mislabelled import find_wrong_labels, refuse_several_labels
from vitrail.checking.report import CheckReport, Finding, Group
from vitrail.checking.survey import Progress, survey
from vitrail.data.opening import open_source
from vitrail.data.source import Source
from vitrail.data.workers import processors
from vitrail.errors import DataError, VitrailError
from vitrail.whole import refuse_to_replace, written_whole

if TYPE_CHECKING:
    from vitrail.classifier import Classifier

PAGE = "check.html"


def check(
    data: str | os.PathLike[str] | Source,
    *,
    model: str | os.PathLike[str] | Classifier | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    index: bool = False,
    device: str | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> CheckReport:
    """Looks at every picture once: unreadable and suspicious files, duplicates, the same picture in two splits or
    under two labels, what the classes and sizes are.

    model: whatever `vitrail.load` takes; labels that are likely wrong are looked for with its features.
    out: a folder to make, with `check.html` and the full lists as tables; `overwrite` replaces an earlier one.
    index: make the index of tar shards anew first.
    workers: processes that read pictures; by default one for each processor, 0 for none.
    seed: of the folds, in which the labels are judged.
    options: of `open_source`, such as `data_dir` and `group_by`.
    """
    say = progress or _silent
    folder = None if out is None else Path(out)
    if index:
        _make_index(data, say)
    source = data if isinstance(data, Source) else open_source(data, **options)
    if folder is not None:
        _refuse_what_is_not_ours(folder, overwrite)
    if not len(source):
        raise DataError(f"there are no pictures in {source.name}: nothing can be checked")
    judge = None if model is None else _judge(source, model)
    count = processors() if workers is None else workers
    seen = survey(source, count, say)
    duplicates = find_duplicates(seen.records)
    labels = None
    if judge is not None:
        labels = find_wrong_labels(
            source,
            seen,
            duplicates,
            judge,
            device=_device(device),
            batch_size=batch_size,
            workers=count,
            seed=seed,
            progress=say,
        )
    report = CheckReport(
        source,
        seen.records,
        [Finding(row, reason) for row, reason in seen.unreadable.items()],
        [Group(rows, duplicates.is_exact(rows)) for rows in duplicates.groups()],
        labels,
    )
    if folder is not None:
        write(report, folder, overwrite=overwrite)
    return report


def write(report: CheckReport, folder: Path, *, overwrite: bool = False) -> None:
    """The page and the tables, in a folder that is there whole or not at all."""
    from vitrail.checking.page import make_page
    from vitrail.checking.tables import write_tables

    with written_whole(folder, overwrite=overwrite) as new:
        new.mkdir()
        write_tables(report, new)
        (new / PAGE).write_text(make_page(report), encoding="utf-8")


def _refuse_what_is_not_ours(folder: Path, overwrite: bool) -> None:
    from vitrail.checking.tables import BAD, DUPLICATES, LABELS

    refuse_to_replace(folder, {PAGE, BAD, DUPLICATES, LABELS}, "check", overwrite=overwrite)


def _judge(source: Source, model: str | os.PathLike[str] | Classifier) -> Classifier:
    """The model, before the long work too: it may not be there."""
    from vitrail.classifier import Classifier, load

    refuse_several_labels(source.samples)
    return model if isinstance(model, Classifier) else load(model)


def _make_index(data: str | os.PathLike[str] | Source, say: Progress) -> None:
    from vitrail.data.shards import make_index

    if isinstance(data, Source):
        raise VitrailError("an index is made of shards by their address: give that, not an open source")
    make_index(data, lambda done, total: say("indexing", done, total))


def _device(name: str | None) -> str:
    if name is not None:
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def _silent(what: str, done: int, total: int) -> None:
    pass
