"""One process at a time writes to a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import time
import weakref
from pathlib import Path

from vitrail.errors import VitrailError

_PATIENCE = 10.0  # seconds in which a process that was killed is gone
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # file systems of some clusters


class FolderLock:
    """Held until `release`, until nothing refers to it, or until the process ends, however it ends."""

    def __init__(self, folder: Path, otherwise: str = "train into another run") -> None:
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.release = weakref.finalize(self, os.close, handle)
        self.held = self._take(handle, folder, otherwise)  # False where files know no locks
        _HELD.add(self)

    def _take(self, handle: int, folder: Path, otherwise: str) -> bool:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > until:
                    raise VitrailError(
                        f"another process is writing to {folder}: wait for it, stop it, or {otherwise}"
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                return False


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _drop_copies() -> None:
    """A forked worker inherits the lock: it must not hold it when the process that took it is gone."""
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_drop_copies)
