"""How items become batches, by a worker that only takes notes."""

import asyncio
import ctypes
import threading
import time
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from vitrail.serving.batching import Batcher
from vitrail.serving.refusals import RefusalError


class Notes:
    """Doubles numbers, slowly, and notes its batches."""

    def __init__(self, seconds: float = 0.0, most: int = 4) -> None:
        self.seconds, self.most = seconds, most
        self.batches: list[tuple[Hashable, list[Any]]] = []

    def largest(self, task: Hashable) -> int:
        return self.most

    def __call__(self, task: Hashable, contents: Sequence[Any]) -> list[Any]:
        self.batches.append((task, list(contents)))
        time.sleep(self.seconds)
        if "poison" in contents:
            raise ValueError("poison")
        return [2 * content for content in contents]


def batcher(worker: Notes, **options: Any) -> Batcher:
    given = {"max_wait": 0.05, "name": "notes", "observe": lambda *_: None, "died": lambda: None, **options}
    return Batcher(worker, **given)


async def submitted(one: Batcher, *contents: Any, task: Hashable = "t", seconds: float = 60) -> list[Any]:
    one.expect(len(contents))
    items = [one.submit(task, content, time.monotonic() + seconds) for content in contents]
    return await asyncio.gather(*(item.future for item in items), return_exceptions=True)


def test_batches_are_full_when_there_is_enough_and_never_larger() -> None:
    worker = Notes(0.02)

    async def go() -> list[Any]:
        one = batcher(worker)
        found = await submitted(one, *range(11))
        await one.close()
        return found

    assert asyncio.run(go()) == [2 * i for i in range(11)]
    sizes = [len(contents) for _, contents in worker.batches]
    assert sum(sizes) == 11
    assert max(sizes) == 4
    assert len(sizes) <= 4


def test_a_client_that_is_alone_does_not_wait() -> None:
    async def go() -> float:
        one = batcher(Notes(), max_wait=1.0)
        began = time.monotonic()
        await submitted(one, 1)
        seconds = time.monotonic() - began
        await one.close()
        return seconds

    assert asyncio.run(go()) < 0.5


def test_a_batch_waits_for_what_is_being_decoded_and_not_for_ever() -> None:
    worker = Notes()

    async def go() -> None:
        one = batcher(worker, max_wait=0.3)
        one.expect(2)
        first = one.submit("t", 1, time.monotonic() + 60)
        await asyncio.sleep(0.05)
        second = one.submit("t", 2, time.monotonic() + 60)
        assert [await first.future, await second.future] == [2, 4]
        one.expect(1)  # and never comes
        await asyncio.wait_for(submitted(one, 3), 2)
        one.expect(-1)
        await one.close()

    asyncio.run(go())
    assert [contents for _, contents in worker.batches] == [[1, 2], [3]]


def test_tasks_are_not_mixed_and_none_is_passed_over() -> None:
    worker = Notes(0.01)

    async def go() -> list[Any]:
        one = batcher(worker)
        found = await asyncio.gather(
            submitted(one, 1, 2, task="a"), submitted(one, 3, task="b"), submitted(one, 4, task="a")
        )
        await one.close()
        return found

    assert asyncio.run(go()) == [[2, 4], [6], [8]]
    assert all(len({task}) == 1 for task, _ in worker.batches)


def test_what_nobody_waits_for_is_not_computed() -> None:
    worker = Notes(0.1)

    async def go() -> None:
        one = batcher(worker)
        running = asyncio.create_task(submitted(one, "busy"))
        await asyncio.sleep(0.05)
        one.expect(2)
        late = one.submit("t", "late", time.monotonic() + 0.01)
        gone = one.submit("t", "gone", time.monotonic() + 60)
        gone.future.cancel()
        await running
        await submitted(one, "next")
        assert not late.future.done()
        await one.close()

    asyncio.run(go())
    assert [contents for _, contents in worker.batches] == [["busy"], ["next"]]


def test_what_came_too_long_ago_is_given_up_and_told_so() -> None:
    worker = Notes(0.1)

    async def go() -> list[Any]:
        one = batcher(worker)
        one.patience, one.refused = 5.0, time.monotonic() - 5.5
        running = asyncio.create_task(submitted(one, "busy"))
        await asyncio.sleep(0.05)
        one.expect(4)
        now = time.monotonic()
        items = [
            one.submit("t", "late", now + 60, now - 6),
            one.submit("t", "in time", now + 60, now - 4),
            one.submit("t", "no other came", now + 60, now - 5.2),
            one.submit("other", "late as well", now + 60, now - 6),
        ]
        found = await asyncio.gather(running, *(item.future for item in items), return_exceptions=True)
        await one.close()
        return found

    _, late, in_time, alone, other = asyncio.run(go())
    assert (in_time, alone) == (2 * "in time", 2 * "no other came")
    for refused in (late, other):
        assert isinstance(refused, RefusalError)
        assert (refused.status, refused.reason, refused.retry_after) == (429, "late", 1)
    assert [contents for _, contents in worker.batches] == [["busy"], ["in time", "no other came"]]


def test_an_item_that_fails_costs_its_own_answer_alone(capsys: pytest.CaptureFixture[str]) -> None:
    async def go() -> list[Any]:
        one = batcher(Notes())
        found = await submitted(one, 1, "poison", 3)
        found += await submitted(one, 4)
        await one.close()
        return found

    first, second, third, fourth = asyncio.run(go())
    assert (first, third, fourth) == (2, 6, 8)
    assert isinstance(second, RefusalError)
    assert second.status == 503
    assert "ValueError: poison" in capsys.readouterr().err


def kill(thread: threading.Thread) -> None:
    """What a thread is never told in earnest: it ends at its next step."""
    assert (
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)) == 1
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_started_again_and_its_batch_is_told() -> None:
    deaths: list[int] = []

    async def go() -> tuple[list[Any], list[Any]]:
        one = batcher(Notes(0.2), died=lambda: deaths.append(1))
        dying = asyncio.create_task(submitted(one, 1))
        await asyncio.sleep(0.1)
        kill(one.thread)
        lost = await dying
        with pytest.raises(RefusalError):
            one.submit("t", 1, time.monotonic() + 1)
        while not one.alive:
            await asyncio.sleep(0.01)
        back = await submitted(one, 2)
        await one.close()
        return lost, back

    (lost,), back = asyncio.run(go())
    assert (lost.status, lost.retry_after) == (503, 1)
    assert back == [4]
    assert deaths == [1]


def test_closing_computes_what_waits_and_leaves_no_thread() -> None:
    async def go() -> list[Any]:
        one = batcher(Notes(0.02))
        waiting = asyncio.create_task(submitted(one, *range(9)))
        await asyncio.sleep(0)
        await one.close()
        return await waiting

    assert asyncio.run(go()) == [2 * i for i in range(9)]
    time.sleep(0.05)
    assert not [thread for thread in threading.enumerate() if thread.name == "model notes"]
