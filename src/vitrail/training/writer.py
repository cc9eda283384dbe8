"""Writes a checkpoint's folder so that it is there whole or not at all, also when the process is killed or the disk
is full. What is under way, aside or going has a hidden name; `tidy` clears what a killed process left of it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import shutil
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.training.manifest import FORMAT, MANIFEST, STATE, VERSION, FileEntry, find_fault, name_of
from vitrail.whole import flush

_CHUNK = 2 * 2**20  # written while it is in the cache from being hashed
_UNDER_WAY, _ASIDE, _GOING = "tmp", "aside", "gone"


@dataclass(frozen=True)
class Room:
    """The hidden folder that a checkpoint is written to, beside its place."""

    folder: Path  # of all checkpoints
    step: int

    @property
    def path(self) -> Path:
        return _hidden(self.folder, self.step, _UNDER_WAY)

    def make(self, needed: int) -> None:
        """Makes the folder, after a look at the space that is free."""
        self.remove()
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.path.mkdir()

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> FileEntry:
        """Writes a file, hashing what it writes; on return it is on the disk."""
        digest, length = hashlib.sha256(), 0
        with (self.path / name).open("xb", buffering=0) as file:
            for part in parts:
                view = memoryview(part)
                for begin in range(0, len(view), _CHUNK):
                    chunk = view[begin : begin + _CHUNK]
                    digest.update(chunk)
                    done = 0
                    while done < len(chunk):  # the system may write less than it was asked to
                        done += file.write(chunk[done:])
                length += len(view)
            os.fsync(file.fileno())
        return FileEntry(length, digest.hexdigest())

    def finish(self, files: Mapping[str, FileEntry], plain: bytes) -> None:
        """Adds the plain state and the manifest, and gives the folder its name."""
        entries = dict(files) | {STATE: self.write(STATE, [plain])}
        listed = {name: asdict(entry) for name, entry in sorted(entries.items())}
        manifest = {"format": FORMAT, "version": VERSION, "step": self.step, "files": listed}
        self.write(MANIFEST, [json.dumps(manifest, indent=1).encode() + b"\n"])
        flush(self.path)
        target, aside = self.folder / name_of(self.step), _hidden(self.folder, self.step, _ASIDE)
        if target.exists():
            _step_aside(target, aside)
        os.rename(self.path, target)
        flush(self.folder)
        if aside.exists():
            shutil.rmtree(aside)

    def remove(self) -> None:
        """Nothing is left of what was under way."""
        shutil.rmtree(self.path, ignore_errors=True)

    def explain(self, error: OSError, needed: int) -> VitrailError:
        """An error of the file system as one line; asked when the room is removed, so that its space counts as free."""
        what = f"the checkpoint of step {self.step} is not written"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self.folder).free
            return VitrailError(
                f"{what}: it needs {needed:,} bytes in {self.folder}, where {free:,} are free"
                f" ({error.strerror}); earlier checkpoints are untouched: make room, and go on with --resume"
            )
        if error.errno == errno.EFBIG:
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            return VitrailError(
                f"{what}: it needs {needed:,} bytes, but files here may have {limit:,} at most (ulimit -f);"
                " earlier checkpoints are untouched: raise the limit, and go on with --resume"
            )
        if error.errno == errno.ENOENT:
            return VitrailError(f"{what}: {self.folder} must be a folder that all processes of the training see")
        return VitrailError(f"{what} to {self.folder}: {error.strerror or error}; earlier checkpoints are untouched")


def _hidden(folder: Path, step: int, suffix: str) -> Path:
    return folder / f".{name_of(step)}.{suffix}"


def _step_aside(target: Path, aside: Path) -> None:
    """An older checkpoint of the same step makes way. If the process is killed before the new one has the name,
    `tidy` gives it back; one that is damaged is kept for whoever wants to look at it."""
    fault = find_fault(target)
    if fault is None:
        os.rename(target, aside)
        return
    number = 1
    while (kept := target.with_name(f"{target.name}.damaged-{number}")).exists():
        number += 1
    os.rename(target, kept)
    warnings.warn(f"{target} was damaged ({fault}): it is now {kept.name}", UserWarning, stacklevel=2)


def discard(folder: Path, step: int) -> None:
    """Removes a checkpoint. It loses its name first: a folder that is removed halfway may look whole."""
    going = _hidden(folder, step, _GOING)
    shutil.rmtree(going, ignore_errors=True)
    os.rename(folder / name_of(step), going)
    flush(folder)
    shutil.rmtree(going)


def tidy(folder: Path) -> None:
    """Clears what a killed process left. No other process may be writing there."""
    for path in sorted(folder.glob(".step-*.*")):
        target = folder / path.stem.removeprefix(".")
        if path.suffix == f".{_ASIDE}" and not target.exists():
            os.rename(path, target)
        elif path.suffix in (f".{_UNDER_WAY}", f".{_ASIDE}", f".{_GOING}"):
            shutil.rmtree(path, ignore_errors=True)
