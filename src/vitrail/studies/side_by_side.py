"""Runs of a study in several processes at once: small models leave most of a GPU, or of many cores, idle."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker, set_start_method
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from vitrail.data.leash import Leash
from vitrail.data.opening import open_source
from vitrail.errors import NO_MEMORY, ShortMemoryError
from vitrail.studies.workplace import Failure, Workplace
from vitrail.training.recipe import Recipe
from vitrail.training.stopping import StoppedError, listening

THREADS = "OMP_NUM_THREADS"


class Task(NamedTuple):
    """What a process needs to know of a run."""

    folder: Path
    recipe: Recipe
    judged: bool  # on the test part, when it is trained


class Answer(NamedTuple):
    failure: Failure | None
    stopped: int | None = None  # by this signal; the run can go on


class Worker:
    """A process that trains one run after the other."""

    def __init__(self, place: tuple[Any, ...]) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, Leash.of_this_process("spawn"), *place))
        resource_tracker.ensure_running()  # its own start, in the midst of the process', would let signals in
        # a Ctrl-C while it imports what it needs waits until it can say so
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.task: int | None = None

    def begin(self, number: int, task: Task) -> None:
        self.task = number
        self.pipe.send(task)

    def answer(self) -> Answer:
        """Of what it was given; it is there to be read, or the process has ended."""
        try:
            found: Answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode or 0
            return Answer(_ended(code))
        return found

    def end(self) -> None:
        if self.task is not None:
            self.process.terminate()  # which saves what it trains
        self.pipe.close()
        self.process.join()


def train_side_by_side(
    tasks: Iterator[tuple[int, Task]],
    jobs: int,
    address: str,
    options: Mapping[str, Any],
    device: str | None,
    done: Callable[[int, Failure | None], None],
) -> None:
    """Trains all; `done` is called with the number of each as it ends, and with what went wrong, if anything did.

    A task is asked for when there is a process for it, so that what has failed till then may bear on what follows.
    A signal to end reaches every process: each saves its run, and `StoppedError` says so.
    """
    place = (address, dict(options), device)
    workers: list[Worker] = []
    with _shared_threads(jobs), _forwarding(workers) as asked:
        try:
            while True:
                while not asked and _has_room(workers, jobs) and (task := next(tasks, None)) is not None:
                    _idle(workers, place).begin(*task)
                busy = {worker.pipe: worker for worker in workers if worker.task is not None}
                if not busy:
                    break
                for pipe in wait(list(busy), timeout=1.0):
                    assert isinstance(pipe, Connection)
                    worker = busy[pipe]
                    number, answer = worker.task, worker.answer()
                    worker.task = None
                    if not worker.process.is_alive():
                        workers.remove(worker)
                    assert number is not None
                    if answer.stopped is None:
                        done(number, answer.failure)
        finally:
            for worker in workers:
                worker.end()
    if asked:
        raise StoppedError("stopped; what was trained is saved: go on", asked[0])


def _ended(code: int) -> Failure:
    """What it means that a process ended by itself."""
    if code == -signal.SIGKILL:  # which few people send
        return Failure(f"its process was killed, most likely as {NO_MEMORY}", ShortMemoryError)
    return Failure(f"its process ended by signal {-code}" if code < 0 else f"its process ended with {code}")


def _has_room(workers: Sequence[Worker], jobs: int) -> bool:
    return len(workers) < jobs or any(worker.task is None for worker in workers)


def _idle(workers: list[Worker], place: tuple[Any, ...]) -> Worker:
    for worker in workers:
        if worker.task is None:
            return worker
    workers.append(Worker(place))
    return workers[-1]


@contextmanager
def _shared_threads(jobs: int) -> Iterator[None]:
    """Threads of several processes that wait for each other on the same cores take longer than the work."""
    before = os.environ.get(THREADS)
    if before is None:
        os.environ[THREADS] = str(max(1, (os.cpu_count() or 1) // jobs))
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS]


@contextmanager
def _forwarding(workers: Sequence[Worker]) -> Iterator[list[int]]:
    """Signals to end are noted, and handed on to the processes, which a terminal does not reach: the first asks for an
    orderly end, the second ends all at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked  # only the main thread may listen
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            if worker.process.is_alive() and worker.process.pid is not None:
                os.kill(worker.process.pid, number)
        asked.append(number)
        if len(asked) > 1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in before:
        signal.signal(number, note)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _serve(pipe: Connection, leash: Leash, address: str, options: Mapping[str, Any], device: str | None) -> None:
    """The process: what it is sent, until there is nothing more or it is asked to end."""
    leash.fasten()
    os.setpgrp()
    # its own workers begin as those of any process do: spawned like this one, each would be sent all pictures
    set_start_method(None, force=True)
    with listening() as asked:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        place = Workplace(address, options, open_source(address, **options), device)
        with suppress(EOFError):
            while True:
                task: Task = pipe.recv()
                pipe.send(Answer(None, asked.signal) if asked else _trained(place, task))


def _trained(place: Workplace, task: Task) -> Answer:
    try:
        return Answer(place.attempt(task.folder, task.recipe, task.judged))
    except StoppedError as stopped:
        return Answer(None, stopped.signal or signal.SIGTERM)
