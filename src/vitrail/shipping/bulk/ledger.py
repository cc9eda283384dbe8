"""What a job is and which of its parts are done: killed at any moment, it goes on where it was, and no row is lost or
written twice.

A part counts once it is whole under its name and a line of the ledger says so. One that was renamed and not yet noted
is made again, with the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.pictures.sources import printable
from vitrail.training.locks import FolderLock
from vitrail.whole import flush

JOB, DONE = "job.json", "done.jsonl"


@dataclass(frozen=True)
class Done:
    """A part that is whole."""

    part: int
    file: str
    rows: int
    errors: int
    size: int
    sha256: str


class Ledger:
    """A hidden folder beside the parts. One process at a time has it."""

    def __init__(self, folder: Path, shown: str) -> None:
        self.folder = folder
        self.shown = shown  # how the user called the output
        self._made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(folder, "choose another --out")
        self._clear()
        self.job = self._read_job()
        self.done = self._read_done()

    def _clear(self) -> None:
        """What a process that was killed was writing."""
        for path in self.folder.iterdir():
            if path.name not in (JOB, DONE, ".lock"):
                path.unlink()

    def _read_job(self) -> dict[str, Any] | None:
        path = self.folder / JOB
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def _read_done(self) -> dict[int, Done]:
        """The parts that are noted and there. A line that a crash cut off is no note, and is cut away."""
        path, found, good = self.folder / DONE, {}, 0
        if not path.exists():
            return {}
        for line in path.read_bytes().splitlines(keepends=True):
            try:
                note = Done(**json.loads(line))
            except (ValueError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            good += len(line)
            if _is_there(self.folder.parent / note.file, note.size):
                found[note.part] = note
            else:
                found.pop(note.part, None)
        os.truncate(path, good)
        return found

    def refuse(self, job: Mapping[str, Any]) -> None:
        """Says no to a job that began as another, as far as this one is known."""
        if self.job is not None:
            refuse_other(self.shown, {key: self.job.get(key) for key in job}, job)

    def begin(self, job: Mapping[str, Any]) -> None:
        """Notes what the job is, or refuses if it began as another."""
        if self.job is not None:
            refuse_other(self.shown, self.job, job)
            return
        new = self.folder / "job.new"
        new.write_text(json.dumps(job, indent=1), encoding="utf-8")
        flush(new)
        os.replace(new, self.folder / JOB)
        flush(self.folder)
        self.job = dict(job)

    def add(self, done: Done) -> None:
        line = json.dumps(asdict(done)).encode() + b"\n"
        handle = os.open(self.folder / DONE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.write(handle, line) < len(line):
                raise OSError("the disk is full")
            os.fsync(handle)
        except OSError as error:
            cause = printable(error.strerror or error)
            raise VitrailError(f"{self.folder / DONE} is not written ({cause}): make room, and run it again") from error
        finally:
            os.close(handle)
        self.done[done.part] = done

    def close(self) -> None:
        """Lets another process have it; of a job that never began, nothing is left."""
        self._lock.release()
        if self.job is None and self._made:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):  # others may use it by now
                for path in self._made[1:]:
                    path.rmdir()


def _is_there(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


_FLAGS = {
    "out": "--out", "top": "--top", "features": "--features", "engine": "--engine", "batch_size": "--batch-size",
    "shard": "--shard", "rows_per_part": "--rows-per-part",
}  # fmt: skip


def refuse_other(shown: str, began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """One line that says in what a job differs from the one that began, if it does."""
    differ = [key for key in {**began, **now} if began.get(key) != now.get(key)]
    if not differ:
        return
    if "version" in differ:
        what = "by another version of vitrail"
    elif "model" in differ:
        what = "with another model, or at another --img-size"
    elif flags := [key for key in _FLAGS if key in differ]:
        what = " and ".join(f"with {_FLAGS[key]} {began.get(key)}, not {now.get(key)}" for key in flags)
    else:
        what = f"from other inputs: {began['inputs']['count']:,} then, {now['inputs']['count']:,} now"
        if began["inputs"]["count"] == now["inputs"]["count"]:
            what += ", and some of them changed"
    raise VitrailError(
        f"{printable(shown)} was begun {what}; run it as it began, choose another --out, or begin again (--overwrite)"
    )
