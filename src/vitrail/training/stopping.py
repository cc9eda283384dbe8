"""Signals: the first asks for a checkpoint and an orderly end, the second ends at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from vitrail.errors import VitrailError


class StoppedError(VitrailError):
    """The training was asked to end, by a signal; it is saved, and can go on."""

    def __init__(self, words: str, signal: int | None) -> None:
        super().__init__(words)
        self.signal = signal


class StopRequest:
    """Whether the user or the machine wants the training to end, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


_listening: list[StopRequest] = []  # the innermost last


@contextmanager
def listening() -> Iterator[StopRequest]:
    """SIGINT and SIGTERM are noted in the request, once; the same again does what it always does. Inside another one,
    what that has noted counts."""
    request = StopRequest()
    if _listening:
        request.signal = _listening[-1].signal
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may listen
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        if request:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        request.signal = number

    for number in before:
        signal.signal(number, note)
    _listening.append(request)
    try:
        yield request
    finally:
        _listening.pop()
        for number, handler in before.items():
            signal.signal(number, handler)
