"""Worker processes that never outlive the process they work for, even if it was killed.

A worker that waits would notice by itself, one that is busy would not, and neither would one whose sisters hold the
other ends of its pipes.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that a process gets when its parent dies


@dataclass(frozen=True)
class Leash:
    """Made where workers are started, fastened in each of them."""

    pid: int
    method: str  # how workers are started: fork, forkserver, spawn
    from_main_thread: bool

    @classmethod
    def of_this_process(cls, method: str | None = None) -> Leash:
        """For workers that the current thread starts by this method; None: by the one that is set."""
        is_main = threading.current_thread() is threading.main_thread()
        return cls(os.getpid(), method or multiprocessing.get_start_method(), is_main)

    def fasten(self) -> None:
        """Ends this process at once when the other ends, or if it has ended already."""
        # Linux takes the thread that started a worker for its parent: only the main thread lasts as long as the process
        if sys.platform == "linux" and self.from_main_thread and self.method != "forkserver":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != self.pid:
                os._exit(1)
        else:
            threading.Thread(target=self._watch, name="leash", daemon=True).start()

    def _watch(self) -> None:
        if self.method == "fork":
            while os.getppid() == self.pid:
                time.sleep(1)
        elif (parent := multiprocessing.parent_process()) is not None:
            parent.join()  # of what a fork server started it has a pipe of its own, and no sister holds the end of it
        os._exit(1)
