"""How far a long command is: a bar on a terminal, plain lines elsewhere, always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

_SECONDS_BETWEEN_DRAWINGS = 0.1
_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def shown_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to call with (done, of how many)."""
    if not sys.stderr.isatty():
        yield _lines(what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # drawn by whoever calls, and by no thread: the work may fork, and a fork must not inherit a lock that is held
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(what, total=None)
        last = 0.0

        def draw(done: int, total: int) -> None:
            nonlocal last
            bar.update(task, completed=done, total=total)
            if time.monotonic() - last >= _SECONDS_BETWEEN_DRAWINGS:
                last = time.monotonic()
                bar.refresh()

        yield draw


@contextmanager
def shown_stages() -> Iterator[Callable[[str, int, int], None]]:
    """One bar after the other, as the work goes on."""
    with ExitStack() as stack:
        bars: dict[str, Callable[[int, int], None]] = {}  # the one of now

        def say(what: str, done: int, total: int) -> None:
            if what not in bars:
                stack.close()
                bars.clear()
                bars[what] = stack.enter_context(shown_progress(what))
            bars[what](done, total)

        yield say


def _lines(what: str) -> Callable[[int, int], None]:
    """A line now and then, and after those one at the end; none for what is quickly done."""
    last, told = time.monotonic(), False

    def say(done: int, total: int) -> None:
        nonlocal last, told
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES or (told and done == total):
            last, told = time.monotonic(), True
            print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    return say
