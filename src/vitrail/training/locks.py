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
    """Held until `release`, or until the process ends, however it ends. `held` is False where files know no locks."""

    def __init__(self, folder: Path) -> None:
        path = folder / ".lock"
        self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.held = False
        _HELD.add(self)
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.held = True
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    self.release()
                    raise VitrailError(
                        f"another process is writing to {folder}: wait for it, stop it, or train into another run"
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                return

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle, self.held = None, False


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _drop_copies() -> None:
    """A forked worker inherits the lock: it must not hold it when the process that took it is gone."""
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_drop_copies)
