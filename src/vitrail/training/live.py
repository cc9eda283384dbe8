"""What someone who waits for a training sees: a table that is drawn anew on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from vitrail.pictures.sources import printable

_SECONDS_BETWEEN_DRAWINGS = 0.25
_SECONDS_BETWEEN_LINES = 10.0
_MOST_SECONDS_BETWEEN_LINES = 300.0
_PART = 0.05  # of all steps, or of the time so far, after which a line is due

Row = Mapping[str, Any]


class Progress:
    """How far a training is and how it does, gathered from the rows of its log."""

    def __init__(self, total_steps: int, steps_per_epoch: int, work: Callable[[int], float] = float) -> None:
        """`work`: what all steps before a step have to compute, in any unit."""
        self.total_steps, self.steps_per_epoch, self.work = total_steps, steps_per_epoch, work
        self.step, self.seconds = 0, 0.0
        self.train: dict[str, Any] = {}  # the latest of each figure
        self.skipped = 0
        self.evaluations: list[dict[str, Any]] = []  # each with the loss of the training before it
        self.best: dict[str, Any] | None = None
        self._first: tuple[int, float] | None = None  # from where the speed is measured
        self._pace: float | None = None  # seconds for a unit of work, before that

    def take(self, row: Row) -> None:
        self.step, self.seconds = row["step"], row.get("time") or self.seconds
        if self._first is not None and self.step < self._first[0]:  # the training went back
            self._first = None
        known = {key: value for key, value in row.items() if value is not None}
        if row["kind"] == "eval":
            self._evaluated({"train_loss": self.train.get("loss"), "lr": self.train.get("lr")} | known)
        elif row["kind"] == "train":
            self.train |= known
            self.skipped += known.get("skipped_steps", 0)
            self._first = self._first or (self.step, self.seconds)  # the first steps are slow: they are not counted
        elif row.get("stage"):  # so are those of another kind
            self._pace, self._first = self._present_pace, None

    def forget_speed(self) -> None:
        """What was before a stop says nothing about the time that is left."""
        self._pace, self._first = None, None

    def _evaluated(self, row: dict[str, Any]) -> None:
        self.evaluations.append(row)
        if goodness(row) > (goodness(self.best) if self.best is not None else float("-inf")):
            self.best = row

    @property
    def seconds_left(self) -> float | None:
        pace = self._present_pace
        return None if pace is None else pace * max(0.0, self.work(self.total_steps) - self.work(self.step))

    @property
    def _present_pace(self) -> float | None:
        if self._first is None or self.step <= self._first[0]:
            return self._pace
        return (self.seconds - self._first[1]) / (self.work(self.step) - self.work(self._first[0]))

    @property
    def part(self) -> float:
        return min(1.0, self.step / max(1, self.total_steps))

    def epoch(self, step: int) -> str:
        of = self.total_steps / max(1, self.steps_per_epoch)
        at = step / max(1, self.steps_per_epoch)
        digits = 1 if of >= 10 else 2
        return "/".join(f"{one:.{0 if one == round(one) else digits}f}" for one in (at, of))


class View(Protocol):
    def show(self, progress: Progress, row: Row) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self) -> None: ...


class Live:
    """Shows the rows of a log as they come.

    `stream` is where to, the standard output if nothing is said; `before` are the rows of the part of the run that is
    done already. No thread draws, since the training forks workers, and a fork must not inherit a lock that is held.
    """

    def __init__(
        self,
        total_steps: int,
        steps_per_epoch: int,
        *,
        title: str = "",
        stream: TextIO | None = None,
        quiet: bool = False,
        before: Iterable[Row] = (),
        work: Callable[[int], float] = float,
    ) -> None:
        self.progress = Progress(total_steps, steps_per_epoch, work)
        for row in before:
            self.progress.take(row)
        self.progress.forget_speed()
        self._view: View | None = None
        if not quiet:
            stream = stream or sys.stdout
            drawn = stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
            self._view = _Table(stream, title) if drawn else _Lines(stream)

    def update(self, row: Row) -> None:
        self.progress.take(row)
        if row["kind"] == "event":
            self.note(row.get("text", ""))
        elif self._view:
            self._view.show(self.progress, row)

    def note(self, text: str) -> None:
        """A line that stays."""
        if self._view:
            self._view.note(printable(text))

    def close(self) -> None:
        view, self._view = self._view, None
        if view:
            view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last_time, self._last_part = time.monotonic(), 0.0

    def show(self, progress: Progress, row: Row) -> None:
        waited = time.monotonic() - self._last_time
        long = min(_MOST_SECONDS_BETWEEN_LINES, max(_SECONDS_BETWEEN_LINES, _PART * progress.seconds))
        far = progress.part - self._last_part >= _PART and waited >= 1
        if row["kind"] == "eval":
            self.note(self._evaluation(progress))
        elif row["kind"] == "train" and (waited >= long or far):
            self.note(self._training(progress))
        else:
            return
        self._last_time, self._last_part = time.monotonic(), progress.part

    def _training(self, progress: Progress) -> str:
        figures = progress.train
        words = [
            f"epoch {progress.epoch(progress.step)}",
            f"step {progress.step:,}/{progress.total_steps:,}",
            *(f"{name} {shown(key, figures[key])}" for key, name in _BRIEF.items() if figures.get(key) is not None),
            *_left(progress),
        ]
        return "  ".join(words)

    def _evaluation(self, progress: Progress) -> str:
        row = progress.evaluations[-1]
        words = [f"epoch {progress.epoch(row['step'])}"]
        words += [f"{name} {shown(key, row[key])}" for key, name in _JUDGED.items() if row.get(key) is not None]
        if row is progress.best:
            words.append("best so far")
        return "  ".join(words + _left(progress))

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        self._stream.flush()


class _Table:
    """One screen that is drawn by whoever calls, at most four times a second."""

    def __init__(self, stream: TextIO, title: str) -> None:
        from rich.console import Console
        from rich.live import Live as Screen

        self._console = Console(file=stream, highlight=False)
        self._title = printable(title)
        self._screen = Screen(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._screen.start()
        self._last = 0.0
        self._progress: Progress | None = None

    def show(self, progress: Progress, row: Row) -> None:
        self._progress = progress
        if row["kind"] != "train" or time.monotonic() - self._last >= _SECONDS_BETWEEN_DRAWINGS:
            self._draw()

    def _draw(self) -> None:
        from vitrail.training.screen import drawn

        if self._progress is not None:
            self._screen.update(drawn(self._progress, self._title, self._console.size), refresh=True)
            self._last = time.monotonic()

    def note(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        self._draw()
        self._screen.stop()


_BRIEF = {"loss": "loss", "accuracy": "accuracy", "lr": "lr", "pictures_per_s": "pictures/s"}
_JUDGED = {
    "accuracy": "val accuracy",
    "map": "val mAP",
    "loss": "val loss",
    "knn": "neighbours",
    "train_loss": "train loss",
}


def _left(progress: Progress) -> list[str]:
    return [f"{duration(progress.seconds_left)} left"] if progress.seconds_left else []


def goodness(row: Row) -> float:
    """What makes one evaluation better than another: accuracy, or mAP for several labels, or a lower loss."""
    for key, sign in (("accuracy", 1.0), ("map", 1.0), ("loss", -1.0)):
        if row.get(key) is not None:
            return sign * float(row[key])
    return float("-inf")


def shown(key: str, value: float) -> str:
    if key in ("accuracy", "map", "top5", "knn"):
        return f"{value:.1%}"
    if key == "lr":
        return f"{value:.2e}"
    return f"{value:,.0f}" if key == "pictures_per_s" else f"{value:.3f}"


def duration(seconds: float) -> str:
    """'42 s', '3 min 05 s', '2 h 14 min', '3 d 4 h'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
