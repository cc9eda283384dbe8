"""The table of `live`, drawn with rich."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vitrail.training.live import Progress, duration, shown

_COLUMNS = {
    "accuracy": "val accuracy",
    "map": "val mAP",
    "loss": "val loss",
    "knn": "neighbours",
    "train_loss": "train loss",
    "lr": "learning rate",
}


_EVALUATIONS = 8  # at most
_WIDE = 76  # columns of a terminal that has room for everything


def drawn(progress: Progress, title: str, size: ConsoleDimensions) -> RenderableType:
    """How far it is, the present figures, and the latest evaluations with the best, in a terminal of this size."""
    is_wide = size.width >= _WIDE
    figures = _figures(progress, 2 if is_wide else 1)
    parts: list[RenderableType] = [_bar(progress), Text(), figures]
    room = min(_EVALUATIONS, size.height - figures.row_count - 8)  # beside: frame, bar, gaps, head, the cursor's line
    if progress.evaluations and room > 0:
        parts += [Text(), _evaluations(progress, room, is_wide)]
    return Panel(
        Group(*parts), title=Text(title, style="bold"), title_align="left", box=box.ROUNDED, border_style="dim"
    )


def _bar(progress: Progress) -> Table:
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    bar = ProgressBar(total=max(1, progress.total_steps), completed=progress.step, complete_style="cyan")
    line.add_row(bar, Text(f"{progress.part:.0%}  epoch {progress.epoch(progress.step)}"))
    return line


def _figures(progress: Progress, pairs: int) -> Table:
    """Names and values, so many pairs in a row."""
    train, best = progress.train, progress.best
    latest = progress.evaluations[-1] if progress.evaluations else {}
    judge = "map" if "map" in latest else "accuracy"
    left = progress.seconds_left
    cells: list[tuple[str, str | None]] = [
        ("step", f"{progress.step:,} of {progress.total_steps:,}"),
        ("time left", "…" if left is None else duration(left)),
        ("loss", _figure(train, "loss")),
        ("time so far", duration(progress.seconds)),
        ("train accuracy", _figure(train, "accuracy")),
        ("pictures/s", _figure(train, "pictures_per_s")),
        (_COLUMNS[judge], _figure(latest, judge)),
        ("learning rate", _figure(train, "lr")),
        ("best", f"{_figure(best, judge)}, epoch {_at(progress, best)}" if best and best.get(judge) else None),
        ("skipped steps", f"{progress.skipped:,}" if progress.skipped else None),
        ("unreadable", f"{train['bad_pictures']:,} pictures" if train.get("bad_pictures") else None),
    ]
    known = [(name, value) for name, value in cells if value is not None]
    table = Table.grid(padding=(0, 3, 0, 0))
    for style in ("dim", "bold") * pairs:
        table.add_column(style=style, no_wrap=True)
    for place in range(0, len(known), pairs):
        table.add_row(*(cell for pair in known[place : place + pairs] for cell in pair))
    return table


def _evaluations(progress: Progress, most: int, is_wide: bool) -> Table:
    """The latest, and the best wherever it was."""
    rows = progress.evaluations[-most:]
    if progress.best is not None and not any(row is progress.best for row in rows):
        rows = [progress.best, *rows[1:]]
    columns = {key: name for key, name in _COLUMNS.items() if any(row.get(key) is not None for row in rows)}
    if not is_wide:
        columns.pop("lr", None)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
    for name in ("epoch", *columns.values(), ""):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        is_best = row is progress.best
        cells = [_figure(row, key) or "" for key in columns]
        table.add_row(_at(progress, row), *cells, "best" if is_best else "", style="green" if is_best else "")
    return table


def _at(progress: Progress, row: dict[str, Any]) -> str:
    return progress.epoch(row["step"]).partition("/")[0]


def _figure(row: dict[str, Any], key: str) -> str | None:
    return None if row.get(key) is None else shown(key, row[key])
