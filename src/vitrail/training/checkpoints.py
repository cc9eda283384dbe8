"""Checkpoints of training state: `checkpoints/step-00001234/` is there whole, or not at all.

A state is a mapping of tensors and a dictionary of plain values. `save` copies it and returns; a thread writes it.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from vitrail.errors import ConfigError, VitrailError
from vitrail.training.locks import FolderLock
from vitrail.training.manifest import TENSORS, FileEntry, Found, find_fault, list_checkpoints, name_of
from vitrail.training.sharded import Gather, agree, gather_in, load_into, own_pieces, read_whole
from vitrail.training.snapshots import Piece, Snapshot, find_non_finite, whole_pieces
from vitrail.training.writer import Room, discard, tidy
from vitrail.weights.files import State


def find_latest(folder: Path) -> Found | None:
    """The newest checkpoint that is whole, by the hashes of its files. Others are named in a warning, and stay."""
    for found in list_checkpoints(folder):
        fault = find_fault(found.folder)
        if fault is None:
            return found
        warnings.warn(f"{found.folder} is damaged and not used: {fault}", UserWarning, stacklevel=2)
    return None


def load_checkpoint(found: Found, device: str | torch.device = "cpu") -> tuple[State, dict[str, Any]]:
    """All tensors, whole, also where they were saved in parts; and the plain state."""
    return {name: values.to(device) for name, values in read_whole(found).items()}, found.plain


class Checkpoints:
    """The checkpoints of a run that is being trained. With `world` > 1 each process has one, and all call the same
    methods in the same order. Use it as a context: at its end what is under way is written, and the folder is free."""

    def __init__(self, folder: Path, keep: int = 2, *, rank: int = 0, world: int = 1) -> None:
        if keep < 1:
            raise ConfigError(f"{keep} checkpoints to keep: at least 1 is needed")
        self.folder, self.keep, self.rank, self.world = folder, keep, rank, world
        self.waited_seconds = 0.0  # of training, for checkpoints
        self._pinned: set[int] = set()
        self._snapshot = Snapshot()
        self._job: _Job | None = None
        self._own_group: dist.ProcessGroup | None = None
        self._lock: FolderLock | None = None
        if rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(folder)
            if self._lock.held:
                tidy(folder)

    def save(
        self, step: int, tensors: Mapping[str, Tensor], plain: dict[str, Any], *, check_finite: bool = True
    ) -> None:
        """Saves a state that each process has whole; the first one writes. The tensors may change once it returns.

        It waits for the checkpoint before, whose error it raises. A NaN or an infinity is refused.
        """
        if self.rank == 0:
            self._save(step, whole_pieces(tensors), TENSORS, plain, check_finite, lambda value: [value])

    def save_sharded(
        self, step: int, tensors: Mapping[str, Tensor], plain: dict[str, Any], *, check_finite: bool = True
    ) -> None:
        """Saves a state of which processes hold parts (`DTensor`): each writes its own into one checkpoint, which the
        first one makes whole when all are done. If one of them fails, all raise the same error."""
        name = f"state-{self.rank + 1:05}-of-{self.world:05}.safetensors"
        pieces, gather = own_pieces(tensors, self.rank), gather_in(self._group)
        self._save(step, pieces, name, plain, check_finite, gather)

    def wait(self) -> None:
        """Returns when what was saved is on the disk; raises what went wrong."""
        with self._waiting():
            self._finish()

    def latest(self) -> Found | None:
        """The newest checkpoint that is whole; the first process looks, and all get the same answer."""
        if self.world == 1:
            return find_latest(self.folder)
        return agree(lambda: find_latest(self.folder) if self.rank == 0 else None, gather_in(self._group))[0]

    def load(self, found: Found, device: str | torch.device = "cpu") -> tuple[State, dict[str, Any]]:
        """The whole state, by whatever number of processes it was saved."""
        return load_checkpoint(found, device)

    def load_sharded(self, found: Found, into: Mapping[str, Tensor]) -> dict[str, Any]:
        """Reads the tensors into those given, of which processes may hold parts; returns the plain state."""
        load_into(found, into, self._group)
        return found.plain

    def pin(self, step: int) -> None:
        """Keeps the checkpoint of this step, however old it gets. A training that is resumed pins again."""
        self._pinned.add(step)

    def unpin(self, step: int) -> None:
        self._pinned.discard(step)

    def close(self) -> None:
        """Waits, and gives the memory and the folder free."""
        try:
            self.wait()
        finally:
            self._snapshot = Snapshot()
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(*(() if error is None else (VitrailError,))):  # the first error is the one to show
            self.close()

    @property
    def _group(self) -> dist.ProcessGroup:
        """Processes talk about checkpoints in a group of their own, so that training can go on talking meanwhile."""
        if self._own_group is None:
            self._own_group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
        return self._own_group

    def _save(
        self, step: int, pieces: list[Piece], name: str, plain: dict[str, Any], check_finite: bool, gather: Gather
    ) -> None:
        with self._waiting():
            self._finish()

            def copy() -> tuple[int, bytes]:
                if check_finite and (bad := find_non_finite(pieces)):
                    raise VitrailError(
                        f"step {step} is not saved: {bad} holds numbers that are not finite; lower the learning rate"
                    )
                text = _encode(plain) if self.rank == 0 else b""
                self._snapshot.take(pieces)
                return self._snapshot.nbytes, text

            lengths, texts = zip(*agree(copy, gather), strict=True)
            text, needed = texts[0], sum(lengths) + len(texts[0])
            room = Room(self.folder, step)
            self._job = _Job(lambda: self._write(room, name, text, needed, gather))

    def _write(self, room: Room, name: str, text: bytes, needed: int, gather: Gather) -> None:
        """What the thread does. All processes make each step together."""
        first = self.rank == 0

        def write_own() -> tuple[str, FileEntry]:
            return name, room.write(name, [self._snapshot.header, self._snapshot.data()])

        try:
            agree(lambda: room.make(needed) if first else None, gather)
            files = dict(agree(write_own, gather))
            agree(lambda: room.finish(files, text) if first else None, gather)
        except BaseException as error:
            if first:
                room.remove()
            if isinstance(error, OSError):
                raise room.explain(error, needed) from error
            raise
        if first:
            self._retain(room.step)

    def _retain(self, newest: int) -> None:
        """Removes what is neither among the newest nor pinned. Damaged ones are not counted, and stay."""
        whole = [found.step for found in list_checkpoints(self.folder) if not find_fault(found.folder, deep=False)]
        for step in set(whole[self.keep :]) - self._pinned - {newest}:
            try:
                discard(self.folder, step)
            except OSError as error:
                warnings.warn(f"{self.folder / name_of(step)} cannot be removed: {error}", UserWarning, stacklevel=2)

    def _finish(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.join()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.waited_seconds += time.perf_counter() - started


class _Job:
    """Work in a thread; its error is raised by `join`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def join(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


def _encode(plain: dict[str, Any]) -> bytes:
    """JSON with infinities as Python writes them: the best score before the first one is minus infinity."""
    if _holds_nan(plain):
        raise VitrailError("the state is not saved: a number beside its tensors is NaN; lower the learning rate")
    return json.dumps(plain, indent=1).encode() + b"\n"


def _holds_nan(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_nan, value.values()))
    return any(map(_holds_nan, value)) if isinstance(value, list | tuple) else value != value
