"""A server under five times the load that it can bear, and over many requests: statuses, latency, memory, descriptors.

    uv run --all-extras python benchmarks/serve_load.py --model MODEL --pictures FOLDER [--out serve_load.json]

The load comes from this process, the server is another. First its capacity is measured by clients that wait for their
answers; then requests are sent at `--times` that rate, whether answers come or not, for `--seconds`; then `--requests`
more, while memory and open descriptors of the server are watched.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from serve_speed import answer, free_port, load, requests_of, wait_for

BATCH, QUEUE = 16, 256
CONNECTIONS = 900
FRESH = 3.0  # seconds: the server closes connections that are idle for 5


def memory(pid: int) -> float:
    """MiB that the process alone holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Crowd:
    """Requests at a rate, over connections that are kept; a request that finds none free is not sent, and counted."""

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self._port, self._requests = port, requests
        self._free: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = deque()
        self._open = 0
        self.statuses: Counter[str] = Counter()
        self.latencies: list[float] = []

    async def send(self, number: int) -> None:
        while self._free and time.perf_counter() - self._free[0][2] > FRESH:
            self._free.popleft()[1].close()
            self._open -= 1
        if self._free:
            reader, writer, _ = self._free.pop()
        elif self._open < CONNECTIONS:
            self._open += 1
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        else:
            self.statuses["no connection free"] += 1
            return
        began = time.perf_counter()
        try:
            writer.write(self._requests[number % len(self._requests)])
            status = await answer(reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.statuses[type(error).__name__] += 1
            self._open -= 1
            writer.close()
            return
        self.statuses[str(status)] += 1
        if status == 200:
            self.latencies.append(time.perf_counter() - began)
        self._free.append((reader, writer, time.perf_counter()))

    async def press(self, rate: float, seconds: float) -> None:
        tasks: set[asyncio.Task[None]] = set()
        began = time.perf_counter()
        number = 0
        while (now := time.perf_counter() - began) < seconds:
            while number < now * rate:
                task = asyncio.create_task(self.send(number))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                number += 1
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)

    def close(self) -> None:
        for _, writer, _ in self._free:
            writer.close()


async def overload(port: int, requests: list[bytes], rate: float, seconds: float) -> dict[str, Any]:
    crowd = Crowd(port, requests)
    await crowd.press(rate, seconds)
    crowd.close()
    ordered = sorted(crowd.latencies)
    return {
        "statuses": dict(crowd.statuses),
        "answered_per_second": round(len(ordered) / seconds, 1),
        "median_ms": round(1000 * statistics.median(ordered), 1),
        "p99_ms": round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 1),
    }


async def many(port: int, pid: int, requests: list[bytes], count: int) -> dict[str, Any]:
    """So many requests by 32 clients; memory and descriptors ten times on the way."""
    numbers, statuses, marks = iter(range(count)), Counter[str](), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            writer.write(requests[number % len(requests)])
            statuses[str(await answer(reader))] += 1
            if number % (count // 10) == count // 10 - 1:
                marks.append((number + 1, round(memory(pid), 1), descriptors(pid)))
                print(f"{number + 1:,} requests: {marks[-1][1]} MiB, {marks[-1][2]} descriptors", flush=True)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(32)))
    return {
        "statuses": dict(statuses),
        "per_second": round(count / (time.perf_counter() - began), 1),
        "marks": marks,
        "growth_mib": round(marks[-1][1] - marks[0][1], 1),
        "descriptors_growth": marks[-1][2] - marks[0][2],
    }


def batch_seconds(port: int) -> float:
    """The mean of the batches so far, by the server's own metrics."""
    from urllib.request import urlopen

    lines = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode().splitlines()
    found = {line.split("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("vitrail_batch_seconds_")}
    return found["vitrail_batch_seconds_sum"] / found["vitrail_batch_seconds_count"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--times", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    requests, port = requests_of(args.pictures, 50), free_port()
    flags = ["--port", str(port), "--device", "cpu", "--batch-size", str(BATCH), "--queue", str(QUEUE)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result: dict[str, Any] = {
        "model": Path(args.model).name,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "date": time.strftime("%Y-%m-%d"),
    }
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "vitrail", "serve", args.model, *flags]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            asyncio.run(wait_for(port, requests[0], process))
            found = asyncio.run(load(port, requests, 32, min(10, args.seconds), process.pid))
            result["capacity_per_second"] = round(found["per_second"], 1)
            before = memory(process.pid)
            result["overload"] = asyncio.run(overload(port, requests, args.times * found["per_second"], args.seconds))
            result["overload"]["growth_mib"] = round(memory(process.pid) - before, 1)
            bound = QUEUE / result["overload"]["answered_per_second"] + 2 * batch_seconds(port)
            result["overload"]["p99_bound_ms"] = round(1000 * bound, 1)
            print(json.dumps(result["overload"]), flush=True)
            result["many"] = asyncio.run(many(port, process.pid, requests, args.requests))
            process.send_signal(signal.SIGTERM)
            result["exit_code"] = process.wait(60)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            log.seek(0)
            result["log_lines"] = len(log.read().splitlines())
    print(json.dumps(result, indent=2))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
