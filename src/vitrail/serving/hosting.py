"""Models by name. A model can be loaded again while it answers: requests that have begun end with the one they know."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vitrail.classifier import Classifier
from vitrail.errors import VitrailError
from vitrail.serving.batching import Batcher
from vitrail.serving.computing import Loaded
from vitrail.serving.metrics import Metrics
from vitrail.serving.options import unknown_model
from vitrail.serving.pace import Pace
from vitrail.serving.refusals import RefusalError
from vitrail.serving.settings import Settings

_LOOK_EVERY = 1.0  # seconds between two looks at the files of a model
_MOMENT = 5.0  # seconds: bodies of honest clients that share a busy line take that long, and must count
_STUCK = 120.0  # seconds of one batch, after which the server calls itself unhealthy

Source = str | Path | Classifier


class Generation:
    """One loading of a model, with its thread; it ends when it is replaced and nobody uses it."""

    def __init__(self, loaded: Loaded, batcher: Batcher, pace: Pace, version: int) -> None:
        self.loaded, self.batcher, self.pace, self.version = loaded, batcher, pace, version
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    def __enter__(self) -> Generation:
        self._users += 1
        self._unused.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            self._unused.set()

    async def end(self) -> None:
        await self._unused.wait()
        await self.batcher.close()
        self.loaded.close()


class Arrivals:
    """Requests whose bodies are on their way. One that takes longer than a moment no longer counts: slow clients
    must not fill the queue."""

    def __init__(self) -> None:
        self._began: dict[object, float] = {}  # in order

    def __len__(self) -> int:
        before = time.monotonic() - _MOMENT
        while self._began and (first := next(iter(self._began.items())))[1] < before:
            del self._began[first[0]]
        return len(self._began)

    @contextmanager
    def one(self) -> Iterator[None]:
        key = object()
        self._began[key] = time.monotonic()
        try:
            yield
        finally:
            self._began.pop(key, None)


class Hosted:
    """A model under its name."""

    def __init__(self, name: str, source: Source, settings: Settings, metrics: Metrics) -> None:
        self.name, self.source, self.settings, self.metrics = name, source, settings, metrics
        self.current: Generation
        self.arrivals = Arrivals()
        self.inside = 0  # pictures that are decoded, wait, are computed, or whose answer is on its way
        self._stamp = _stamp(source)
        self._reloading = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._seconds_each = 0.05  # one picture in the model, by the latest batches
        metrics.queue.labels(name).set_function(lambda: self.inside)
        metrics.room.labels(name).set_function(lambda: self.room)

    @classmethod
    def of(cls, name: str, loaded: Loaded, source: Source, settings: Settings, metrics: Metrics) -> Hosted:
        """On the running loop, from a model that is loaded already."""
        hosted = cls(name, source, settings, metrics)
        hosted.current = hosted._generation(loaded, 1)
        return hosted

    def _generation(self, loaded: Loaded, version: int) -> Generation:
        pace = Pace()

        def observe(task: Hashable, count: int, seconds: float) -> None:
            self._count(task, count, seconds)
            if count == loaded.largest(task):
                pace.note(task, count, seconds, time.monotonic())
            if self.settings.queue > self.settings.least_queue:
                batcher.patience = pace.patience(self.settings.queue)

        batcher = Batcher(
            loaded, max_wait=self.settings.max_wait, name=self.name, observe=observe, died=self._tell_death
        )
        return Generation(loaded, batcher, pace, version)

    def _count(self, task: Hashable, count: int, seconds: float) -> None:
        self._seconds_each += 0.1 * (seconds / count - self._seconds_each)
        self.metrics.pictures.labels(self.name, type(task).__name__.lower()).inc(count)
        self.metrics.batches.labels(self.name).observe(count)
        self.metrics.batch_seconds.labels(self.name).observe(seconds)

    def _tell_death(self) -> None:
        self.metrics.deaths.labels(self.name).inc()
        print(f"the thread of model {self.name} ended; it is started again", file=sys.stderr, flush=True)

    @property
    def ready(self) -> bool:
        return self.current.batcher.alive

    @property
    def healthy(self) -> bool:
        return self.current.batcher.stuck_for < _STUCK

    @property
    def room(self) -> int:
        """Pictures that may be inside: the whole queue, or less while the model's speed swings."""
        return self.current.pace.room(self.settings.queue, self.settings.least_queue, time.monotonic())

    def admit(self, pictures: int) -> None:
        """Refuses what the queue has no room for."""
        waiting, room = self.inside + len(self.arrivals), self.room
        if waiting + pictures > room:
            self.current.batcher.refused = time.monotonic()
            seconds = max(1, round(waiting * self._seconds_each + 0.5))
            words = f"the queue is full ({waiting} of {room} pictures wait): try again in {seconds} s"
            raise RefusalError(429, words, reason="queue", retry_after=seconds)

    async def reload(self) -> None:
        """Loads the model's files again and takes the new model in place of the old one."""
        async with self._reloading:
            stamp = _stamp(self.source)
            try:
                loaded = await asyncio.to_thread(Loaded, self.source, self.settings)
            except Exception as error:
                self.metrics.reloads.labels(self.name, "failed").inc()
                self._stamp = stamp  # not tried again until the files change once more
                words = " ".join(str(error).split())
                kind = "" if isinstance(error, VitrailError) else f"{type(error).__name__}: "
                raise RefusalError(503, f"model {self.name} is not loaded again: {kind}{words}") from error
            old, self.current = self.current, self._generation(loaded, self.current.version + 1)
            self._stamp = stamp
            self.metrics.reloads.labels(self.name, "done").inc()
            task = asyncio.create_task(old.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def watch(self) -> None:
        """Loads the model again whenever its files have changed and are at rest."""
        seen = self._stamp
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            now = await asyncio.to_thread(_stamp, self.source)
            if now and now == seen and now != self._stamp:
                await self.try_reload()
            seen = now

    async def try_reload(self) -> None:
        """`reload`, whose failure is a line: the old model goes on."""
        began = time.monotonic()
        try:
            await self.reload()
            words = (
                f"model {self.name} is loaded again (version {self.current.version}, {time.monotonic() - began:.1f} s)"
            )
        except RefusalError as error:
            words = f"{error.words}; version {self.current.version} goes on"
        print(words, file=sys.stderr, flush=True)

    async def close(self) -> None:
        await asyncio.gather(self.current.end(), *self._ending)


class Models:
    """All models of a server; the first is the one that is meant where none is named."""

    def __init__(self) -> None:
        self._by_name: dict[str, Hosted] = {}

    def add(self, hosted: Hosted) -> None:
        self._by_name[hosted.name] = hosted

    def __iter__(self) -> Iterator[Hosted]:
        return iter(self._by_name.values())

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def find(self, name: str | None) -> Hosted:
        if name is None:
            return next(iter(self._by_name.values()))
        if name not in self._by_name:
            raise unknown_model(name, self.names)
        return self._by_name[name]


def _stamp(source: Source) -> tuple[tuple[str, int, int, int], ...]:
    """What changes when the files of a model do; nothing, for a model that has none here."""
    if isinstance(source, Classifier) or str(source).startswith("hf:"):
        return ()
    path = Path(source)
    found = []
    try:
        if (path / "run.json").is_file():
            path = path / ("best" if (path / "best").is_dir() else "last")
        for file in [path] if path.is_file() else sorted(path.iterdir()):
            state = file.stat()
            found.append((file.name, state.st_mtime_ns, state.st_size, state.st_ino))
    except OSError:
        return ()  # it is being replaced at this moment
    return tuple(found)
