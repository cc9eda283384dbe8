"""Pillow's warnings, silenced while a picture of ours is being read."""

import logging
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

_FROM_PILLOW = ("ignore", None, Warning, re.compile(r"PIL\."), 0)
logging.getLogger("PIL").addHandler(logging.NullHandler())  # without any handler, Python prints errors by itself
_lock = threading.Lock()
_readers = 0


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """No warning of Pillow's comes out: a picture is either returned or refused in one line.

    `warnings.catch_warnings` saves and restores the whole list of filters, so two threads that overlap can leave it
    wrong for good. Here one entry is put in by the first reader and taken out by the last; the others are not touched.
    """
    global _readers
    with _lock:
        _readers += 1
        if _FROM_PILLOW not in warnings.filters:
            _filters().insert(0, _FROM_PILLOW)
    try:
        yield
    finally:
        with _lock:
            _readers -= 1
            if not _readers and _FROM_PILLOW in warnings.filters:
                _filters().remove(_FROM_PILLOW)


def _filters() -> list[Any]:
    return cast(list[Any], warnings.filters)  # it is typed as a sequence and is a list
