"""Pictures of many requests become batches for one thread that computes."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vitrail.serving.refusals import RefusalError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0  # seconds before a thread that died is started again
_CALM = 60.0  # seconds without a death, after which the pauses are short again


class Worker(Protocol):
    """What is computed. A batch holds one kind of task."""

    def largest(self, task: Hashable) -> int:
        """Most items of this task that go together."""
        ...

    def __call__(self, task: Hashable, contents: Sequence[Any]) -> Sequence[Any]: ...


@dataclass(eq=False, slots=True)
class Item:
    """One picture on its way through the model."""

    task: Hashable
    content: Any
    future: asyncio.Future[Any]
    deadline: float
    came: float  # with its request, before it was decoded
    arrived: float
    started: float = 0.0
    done: float = 0.0


Observer = Callable[[Hashable, int, float], None]  # of each batch: its task, its size, its seconds


class Batcher:
    """Takes items on the event loop, computes them in its own thread, and answers on the event loop.

    A batch starts when it is full, when nothing else is on its way, or `max_wait` seconds after its first item came:
    a client that is alone never waits. A thread that dies fails its batch with 503, and is started again. What has
    waited for longer than `patience` while others were refused gets 429.
    """

    def __init__(
        self, worker: Worker, *, max_wait: float, name: str, observe: Observer, died: Callable[[], None]
    ) -> None:
        self._worker, self._max_wait, self._name = worker, max_wait, name
        self._observe, self._tell_death = observe, died
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._waiting: deque[Item] = deque()
        self.patience = math.inf  # seconds after it came, beyond which an item is late
        self.refused = -math.inf  # when the last one found no room
        self._coming = 0  # items that are being decoded
        self._closing = False
        self._closed = asyncio.Event()
        self._pause, self._last_death = _FIRST_PAUSE, 0.0
        self._busy_since: float | None = None
        self.alive = False
        self.thread: threading.Thread
        self._start()

    @property
    def stuck_for(self) -> float:
        """Seconds that the present batch has been computed."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def expect(self, count: int) -> None:
        """So many items are on their way; each is then submitted, or with a negative count taken back."""
        with self._changed:
            self._coming += count
            if count < 0:
                self._changed.notify()

    def submit(self, task: Hashable, content: Any, deadline: float, came: float | None = None) -> Item:
        """An item that was expected, and came with its request earlier than now. Its `future` has the result."""
        if not self.alive:
            raise _gone()
        now = time.monotonic()
        item = Item(task, content, self._loop.create_future(), deadline, now if came is None else came, now)
        with self._changed:
            self._coming -= 1
            self._waiting.append(item)
            self._changed.notify()
        return item

    async def close(self) -> None:
        """Computes what waits, and ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await self._closed.wait()

    def _start(self) -> None:
        if self._closing and not self._waiting:
            self._closed.set()
            return
        self.alive = True
        self.thread = threading.Thread(target=self._run, name=f"model {self._name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        batch: list[Item] = []
        ended = False
        try:
            while True:
                found = self._gather()
                if found is None:
                    break
                batch = found
                self._compute(batch)
                batch = []
            ended = True
        finally:
            self._busy_since = None
            self._call(self._closed.set if ended else self._died, *([] if ended else [batch]))

    def _gather(self) -> list[Item] | None:
        """The next batch; none when the batcher is closed and empty."""
        with self._changed:
            while not self._waiting:
                if self._closing:
                    return None
                self._changed.wait()
            first = self._waiting[0]
            most = self._worker.largest(first.task)
            until = first.arrived + self._max_wait
            while self._coming and len(self._waiting) < most and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._take(first.task, most)

    def _take(self, task: Hashable, most: int) -> list[Item]:
        now = time.monotonic()
        batch: list[Item] = []
        others: list[Item] = []
        late: list[Item] = []
        while self._waiting and len(batch) < most:
            item = self._waiting.popleft()
            if item.future.done() or item.deadline < now:
                continue  # nobody waits for it any more
            (late if self._is_late(item, now) else batch if item.task == task else others).append(item)
        self._waiting.extendleft(reversed(others))
        if late:
            self._call(self._give_up, late)
        return batch

    def _is_late(self, item: Item, now: float) -> bool:
        """Whether to give it up: not if nobody has been refused since it came, so that nobody gains by it."""
        return now - item.came > self.patience and item.came < self.refused

    def _compute(self, batch: list[Item]) -> None:
        if not batch:
            return
        started = self._busy_since = time.monotonic()
        for item in batch:
            item.started = started
        results = self._results(batch)
        done = time.monotonic()
        for item in batch:
            item.done = done
        self._busy_since = None
        self._call(self._deliver, batch, results, done - started)

    def _results(self, batch: list[Item]) -> list[Any]:
        try:
            return list(self._worker(batch[0].task, [item.content for item in batch]))
        except Exception as error:
            if len(batch) > 1:  # one item, or their number, may be the cause: the others need not suffer
                return [result for item in batch for result in self._results([item])]
            print(f"model {self._name} failed:", file=sys.stderr)
            traceback.print_exc()
            return [RefusalError(503, f"the model failed on this request ({type(error).__name__})", reason="failed")]

    def _deliver(self, batch: list[Item], results: list[Any], seconds: float) -> None:
        self._observe(batch[0].task, len(batch), seconds)
        for item, result in zip(batch, results, strict=True):
            if item.future.done():
                continue
            if isinstance(result, Exception):
                item.future.set_exception(result)
            else:
                item.future.set_result(result)

    def _give_up(self, late: list[Item]) -> None:
        words = "the model has become slower, and the answer would be late: try again in 1 s"
        for item in late:
            if not item.future.done():
                item.future.set_exception(RefusalError(429, words, reason="late", retry_after=1))

    def _died(self, batch: list[Item]) -> None:
        self.alive = False
        for item in batch:
            if not item.future.done():
                item.future.set_exception(_gone())
        now = time.monotonic()
        self._pause = _FIRST_PAUSE if now - self._last_death > _CALM else min(2 * self._pause, _LONGEST_PAUSE)
        self._last_death = now
        self._tell_death()
        self._loop.call_later(self._pause, self._start)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits for an answer
            self._closing = True


def _gone() -> RefusalError:
    return RefusalError(503, "the model's thread ended and is being started again", reason="model", retry_after=1)
