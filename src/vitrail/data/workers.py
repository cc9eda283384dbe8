"""Work on many pictures in several processes: in order, with little waiting in memory, and past files that crash."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from typing import Any, Protocol, TypeVar

from vitrail.data.leash import Leash

Result_co = TypeVar("Result_co", covariant=True)
Result = TypeVar("Result")
Rows = Sequence[int]

_AHEAD = 4  # chunks for each process that are begun before the first of them is taken


class Task(Protocol[Result_co]):
    def __call__(self, rows: Rows, /) -> Result_co: ...

    def lost(self, row: int, /) -> Result_co:
        """The result of a row that takes the process down."""
        ...


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(task: Task[Result], chunks: Iterable[Rows], workers: int) -> Generator[tuple[Rows, Result]]:
    """Each chunk with its result, in order; with no workers, in this process. Chunks are taken as they are needed.

    A process that dies (a decoder crashed, or memory ran out) takes nothing along: what was under way is done again
    by itself, halved until the row is alone that does it. Such a chunk comes in several pieces.
    """
    if workers < 1:
        for chunk in chunks:
            yield chunk, task(chunk)
        return
    if isinstance(chunks, Sized):
        workers = max(1, min(workers, len(chunks)))
    left = iter(chunks)
    while (first := next(left, None)) is not None:
        begun: deque[Rows] = deque()
        try:
            yield from _until_one_dies(task, chain([first], left), begun, workers)
        except BrokenProcessPool:
            while begun:
                yield from _alone(task, begun.popleft())


def _until_one_dies(
    task: Task[Result], chunks: Iterable[Rows], begun: deque[Rows], workers: int
) -> Iterator[tuple[Rows, Result]]:
    """Of what is `begun`, nothing was given out yet."""
    pool = _pool(task, workers)
    waiting: deque[Future[Result]] = deque()
    try:
        for chunk in chunks:
            begun.append(chunk)
            waiting.append(pool.submit(_work, chunk))
            if len(waiting) >= _AHEAD * workers:
                result = waiting.popleft().result()
                yield begun.popleft(), result
        while waiting:
            result = waiting.popleft().result()
            yield begun.popleft(), result
    finally:
        pool.shutdown(cancel_futures=True)


def _alone(task: Task[Result], chunk: Rows) -> Iterator[tuple[Rows, Result]]:
    pool = _pool(task, 1)
    try:
        yield chunk, pool.submit(_work, chunk).result()
    except BrokenProcessPool:
        if len(chunk) == 1:
            yield chunk, task.lost(chunk[0])
            return
        half = len(chunk) // 2
        yield from _alone(task, chunk[:half])
        yield from _alone(task, chunk[half:])
    finally:
        pool.shutdown(cancel_futures=True)


def _pool(task: Task[Any], workers: int) -> ProcessPoolExecutor:
    # a fork shares the table of names and asks nothing of the caller's script, which a fresh process would run again
    way = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    leash = Leash.of_this_process(way.get_start_method())
    return ProcessPoolExecutor(workers, mp_context=way, initializer=_begin, initargs=(task, leash))


_task: Task[Any] | None = None


def _begin(task: Task[Any], leash: Leash) -> None:
    global _task
    _task = task
    leash.fasten()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker at once and without a word
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff writes its complaints there, past everybody


def _work(chunk: Rows) -> Any:
    assert _task is not None
    return _task(chunk)
