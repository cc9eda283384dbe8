"""The stack on which a thread handles signals, kept through libraries that exchange it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Stack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def signal_stack_kept() -> Iterator[None]:
    """What happens inside may exchange this thread's stack for signals; after it, the thread has its own again.

    Each `openvino.Core` sets a stack of its own when it loads the CPU's plugin, and when it goes sets the one back that
    it found. Of two Cores that do not end in the order of a stack, the second sets back what the first has freed
    already; the next signal that is handled there, such as that of a child process that ended, ends the process.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    sigaltstack = ctypes.CDLL(None).sigaltstack
    before = _Stack()
    known = sigaltstack(None, ctypes.byref(before)) == 0
    try:
        yield
    finally:
        if known:
            sigaltstack(ctypes.byref(before), None)
