"""A server that is asked for more than it can do, by a model whose speed swings; and how quickly bytes go out."""

import asyncio
import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.running import Running, picture, raw_connection, running
from vitrail.serving.computing import Loaded
from vitrail.serving.writing import Joined

BATCH, QUEUE = 4, 64
QUICK, SLOW = 0.04, 0.1  # seconds of a batch
SWING = 2.0  # seconds at one speed


@pytest.fixture
def swinging(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A model that is slow for two seconds of each four; the seconds of its batches."""
    compute, began, seconds = Loaded.__call__, time.monotonic(), list[float]()

    def slowly(self: Loaded, task: Any, contents: Sequence[Any]) -> Any:
        now = time.monotonic()
        time.sleep(SLOW if (now - began) // SWING % 2 else QUICK)
        found = compute(self, task, contents)
        seconds.append(time.monotonic() - now)
        return found

    monkeypatch.setattr(Loaded, "__call__", slowly)
    return seconds


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    return int(head[9:12]), await reader.readexactly(int(length[1]))


class Crowd:
    """Twice as many clients as the queue holds; who is refused comes back soon."""

    def __init__(self, port: int, seconds: float) -> None:
        self.port, self.until = port, time.monotonic() + seconds
        self.statuses: Counter[int] = Counter()
        self.latencies: list[float] = []
        self.bodies: set[bytes] = set()

    async def client(self, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = picture(0)
        head = f"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        await asyncio.sleep(number / 300)
        while (began := time.monotonic()) < self.until:
            writer.write(head + body)
            status, said = await answered(reader)
            self.statuses[status] += 1
            if status == 200:
                self.latencies.append(time.monotonic() - began)
                self.bodies.add(said[said.index(b'"predictions"') :])
            else:
                await asyncio.sleep(0.25)
        writer.close()

    async def press(self) -> None:
        await asyncio.gather(*(self.client(number) for number in range(2 * QUEUE)))


def test_answers_of_an_overloaded_server_are_in_time_though_its_model_swings(tiny: Path, swinging: list[float]) -> None:
    with running(tiny, batch_size=BATCH, queue=QUEUE, max_pictures=4) as server:
        asyncio.run(Crowd(server.port, 2.0).press())  # it learns how fast it is
        before, began = len(swinging), time.monotonic()
        crowd = Crowd(server.port, 8.0)
        asyncio.run(crowd.press())
        taken = time.monotonic() - began
    assert set(crowd.statuses) == {200, 429}
    assert len(crowd.bodies) == 1  # all are the same picture
    bound = QUEUE / (crowd.statuses[200] / taken) + 2 * statistics.mean(swinging[before:])
    assert np.quantile(crowd.latencies, 0.99) <= bound
    assert crowd.statuses[200] >= 0.9 * BATCH * len(swinging[before:])  # batches are full


def test_who_was_let_in_is_given_up_only_while_others_are_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, pause = Loaded.__call__, list[float]()

    def held_up(self: Loaded, task: Any, contents: Sequence[Any]) -> Any:
        time.sleep(pause.pop() if pause else 0.02)
        return compute(self, task, contents)

    monkeypatch.setattr(Loaded, "__call__", held_up)
    with running(tiny, batch_size=2, queue=16, max_pictures=2) as server, ThreadPoolExecutor(48) as pool:

        def ask(number: int) -> int:
            return server.post(content=picture(number)).status_code

        def late() -> float:
            found = re.search(r'vitrail_rejects_total{reason="late"} (.+)', server.get("/metrics").text)
            return 0.0 if found is None else float(found[1])

        for _ in range(4):  # it learns how fast it is
            assert set(pool.map(ask, range(12))) == {200}
        pause.append(1.0)
        assert set(pool.map(ask, range(8))) == {200}  # late, and nobody else wanted to come in
        assert late() == 0
        pause.append(1.0)
        assert set(pool.map(ask, range(48))) == {200, 429}
        assert late() > 0


def test_a_client_that_keeps_its_connection_does_not_wait_for_the_second_half_of_an_answer(server: Running) -> None:
    seconds = []
    with raw_connection(server.port) as connection:
        for _ in range(60):  # the kernel acknowledges at once at first, and only then waits for 40 ms
            began = time.monotonic()
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            said = b""
            while not said.endswith(b"}"):
                said += connection.recv(65536)
            seconds.append(time.monotonic() - began)
    assert statistics.median(seconds[30:]) < 0.03


class Pipe:
    """What a transport is told."""

    def __init__(self) -> None:
        self.told: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.told.append(data)

    def close(self) -> None:
        self.told.append("closed")

    def abort(self) -> None:
        self.told.append("aborted")

    def get_write_buffer_size(self) -> int:
        return 7

    def is_closing(self) -> bool:
        return "closed" in self.told


@pytest.mark.parametrize(
    ("writes", "end", "told"),
    [
        ([b"head", b"body"], "", [b"headbody"]),
        ([b"head", bytes(100_000), b"x", b"y"], "", [b"head", bytes(100_000), b"xy"]),
        ([b"head", b"body"], "close", [b"headbody", "closed"]),
        ([b"head", b"body"], "abort", ["aborted"]),
    ],
)
def test_what_is_written_in_one_turn_leaves_in_one_piece_and_in_order(
    writes: list[bytes], end: str, told: list[Any]
) -> None:
    pipe = Pipe()

    async def go() -> None:
        joined = Joined(pipe, asyncio.get_running_loop())  # type: ignore[arg-type]
        for data in writes:
            joined.write(data)
        if not end:
            assert joined.get_write_buffer_size() == 7 + sum(map(len, writes)) - sum(
                len(data) for data in pipe.told if isinstance(data, bytes)
            )
        else:
            getattr(joined, end)()
        await asyncio.sleep(0.01)
        assert joined.get_write_buffer_size() == 7
        assert joined.is_closing() == (end == "close")

    asyncio.run(go())
    assert pipe.told == told
