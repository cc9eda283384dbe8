"""Workers of loaders end when they are not needed any more, and at the latest with the process that started them.

They leave signals to their parent. So Python, which at its end asks its processes to terminate and then waits for them,
would wait for ever: here they are ended before.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from multiprocessing.util import Finalize
from typing import Any

from torch.utils.data import DataLoader


class _Alive:
    """What one process has started."""

    def __init__(self) -> None:
        self.iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self.workers: weakref.WeakSet[Any] = weakref.WeakSet()  # also of iterators that failed on their way into being
        Finalize(None, self.end_all, exitpriority=100)

    def end(self, batches: Any) -> None:
        if batches in self.iterators:
            self.iterators.discard(batches)
            batches._shutdown_workers()
            for worker in batches._workers:
                if worker.is_alive():  # it does not listen
                    worker.kill()

    def end_all(self) -> None:
        for batches in list(self.iterators):
            self.end(batches)
        left = [worker for worker in self.workers if worker.is_alive()]
        if left and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would complain that they end
        for worker in left:
            worker.kill()


_alive: dict[int, _Alive] = {}  # by process, since a fork begins with its parent's


def _own() -> _Alive:
    pid = os.getpid()
    if pid not in _alive:
        _alive.clear()
        _alive[pid] = _Alive()
    return _alive[pid]


def started(loader: DataLoader[Any]) -> Iterator[Any]:
    """The iterator of a loader; its workers end in `end`, or with this process."""
    own, before = _own(), multiprocessing.active_children()
    try:
        batches = iter(loader)
    finally:
        own.workers.update(set(multiprocessing.active_children()).difference(before))
    if loader.num_workers:
        own.iterators.add(batches)
    return batches


def end(batches: Iterator[Any]) -> None:
    """Ends the workers of an iterator at once."""
    _own().end(batches)
