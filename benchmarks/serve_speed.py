"""Answers per second of `vitrail serve` beside LitServe and a naive FastAPI server: same model, same pictures.

    uv run --all-extras python benchmarks/serve_speed.py --pictures FOLDER [--model MODEL] [--out serve_speed.json]

Rounds alternate. In each, a server is started in a process of its own and `--clients` connections ask it for
`--seconds`; each request is one picture as base64 in JSON, which all three take. LitServe has its own batching (the
same bounds on batch and wait) and its quick queue; all decode with the model's own preprocessing, and torch computes.
`vitrail` is the server as it comes, with its exact engine; `vitrail, torch` has the one of the peers, which are
in `serve_peers.py`; `vitrail, int8` and others work too.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BATCH = 16


def command(way: str, model: str, port: int) -> list[str]:
    if way.startswith("vitrail"):
        engine = way.partition(", ")[2] or "exact"
        flags = ["--port", str(port), "--device", "cpu", "--batch-size", str(BATCH), "--engine", engine]
        return [sys.executable, "-m", "vitrail", "serve", model, *flags]
    return [sys.executable, str(Path(__file__).with_name("serve_peers.py")), way, model, str(port)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def requests_of(folder: Path, count: int) -> list[bytes]:
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))[:count]
    if not files:
        sys.exit(f"there are no pictures in {folder}")
    found = []
    for file in files:
        body = json.dumps({"picture": base64.b64encode(file.read_bytes()).decode()}).encode()
        head = (
            f"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        )
        found.append(head.encode() + b"\r\n" + body)
    return found


async def answer(reader: asyncio.StreamReader) -> int:
    """The status of the next answer, which is read to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(length)
    return int(head[9:12])


async def ask(port: int, requests: list[bytes], first: int, until: float, latencies: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = first
    try:
        while time.perf_counter() < until:
            began = time.perf_counter()
            writer.write(requests[number % len(requests)])
            status = await answer(reader)
            if status != 200:
                raise RuntimeError(f"status {status}")
            latencies.append(time.perf_counter() - began)
            number += 1
    finally:
        writer.close()


def processor_seconds(session: int) -> float:
    """Of all processes that a server has."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[3]) == session:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


async def load(port: int, requests: list[bytes], clients: int, seconds: float, session: int) -> dict[str, float]:
    await asyncio.gather(*(ask(port, requests, i, time.perf_counter() + min(2.0, seconds), []) for i in range(clients)))
    latencies: list[float] = []
    began, used = time.perf_counter(), processor_seconds(session)
    await asyncio.gather(*(ask(port, requests, i * 7, began + seconds, latencies) for i in range(clients)))
    taken, used = time.perf_counter() - began, processor_seconds(session) - used
    ordered = sorted(latencies)
    return {
        "per_second": len(latencies) / taken,
        "processor_ms": 1000 * used / len(latencies),
        "median_ms": 1000 * statistics.median(ordered),
        "p99_ms": 1000 * ordered[int(0.99 * (len(ordered) - 1))],
    }


def measure(way: str, model: str, requests: list[bytes], clients: int, seconds: float) -> dict[str, float]:
    port = free_port()
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command(way, model, port), env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            asyncio.run(wait_for(port, requests[0], process))
            return asyncio.run(load(port, requests, clients, seconds, process.pid))
        except Exception:
            log.seek(0)
            print(log.read()[-3000:], file=sys.stderr)
            raise
        finally:
            os.killpg(process.pid, signal.SIGTERM)  # its own session: LitServe has a process for the model
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


async def wait_for(port: int, request: bytes, process: subprocess.Popen[Any]) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            raise RuntimeError("the server ended")
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            status = await answer(reader)
            writer.close()
            if status == 200:
                return
        except (OSError, asyncio.IncompleteReadError):
            pass
        await asyncio.sleep(0.1)
    raise RuntimeError("the server does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=["vitrail", "litserve", "naive", "vitrail, torch"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    import litserve
    import torch

    requests = requests_of(args.pictures, 200)
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(args.rounds):
        order = args.ways if number % 2 == 0 else args.ways[::-1]
        found = {way: measure(way, args.model, requests, args.clients, args.seconds) for way in order}
        rounds.append(found)
        print({way: round(one["per_second"], 1) for way, one in found.items()}, flush=True)
    result: dict[str, Any] = {
        "model": Path(args.model).name,
        "clients": args.clients,
        "seconds": args.seconds,
        "rounds": args.rounds,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "torch": torch.__version__,
        "litserve": litserve.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "ways": {},
        "ratios": {},
    }
    for way in args.ways:
        keys = ("per_second", "processor_ms", "median_ms", "p99_ms")
        result["ways"][way] = {key: round(statistics.median(one[way][key] for one in rounds), 2) for key in keys}
    ours = [way for way in args.ways if way.startswith("vitrail")]
    for way, peer in itertools.product(ours, [way for way in args.ways if way not in ours]):
        ratios = sorted(one[way]["per_second"] / one[peer]["per_second"] for one in rounds)
        result["ratios"][f"{way} / {peer}"] = {
            "median": round(statistics.median(ratios), 3),
            "least": round(ratios[0], 3),
            "most": round(ratios[-1], 3),
        }
    print(json.dumps(result, indent=2))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
