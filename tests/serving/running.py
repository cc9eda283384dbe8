"""Servers for tests: one in a thread of this process, one as its own process; both on real sockets, both ended."""

import contextlib
import faulthandler
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from vitrail.serving.app import App, make_app
from vitrail.serving.computing import Loaded
from vitrail.serving.server import Server, bound
from vitrail.serving.settings import Settings


def picture(seed: int = 0, size: tuple[int, int] = (60, 40), kind: str = "PNG") -> bytes:
    """A file of smooth noise, so that every seed has its own answer."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    page = io.BytesIO()
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(page, kind)
    return page.getvalue()


@dataclass
class Running:
    """A server that answers."""

    port: int
    app: App

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, verify=False, **options)  # no keys are read, which is slow

    def post(self, path: str = "/v1/predict", **options: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        with self.client() as client:
            return client.get(path, **options)


@contextlib.contextmanager
def running(
    models: Any, *, token: str | None = None, examples: Path | None = None, **settings: Any
) -> Iterator[Running]:
    """A server in a thread of this process; `models` are a model, or several by name."""
    chosen = Settings(**{"port": 0, "device": "cpu", "engine": "torch", **settings})
    named = models if isinstance(models, dict) else {"tiny": models}
    loaded = {name: (source, Loaded(source, chosen)) for name, source in named.items()}
    app = make_app(loaded, chosen, token=token, examples=examples)
    listening = bound(chosen)
    server = Server(app, chosen)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield Running(listening.getsockname()[1], app)
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join(60)
        listening.close()
        if thread.is_alive():
            faulthandler.dump_traceback(sys.__stderr__)
            connections, tasks = server.server_state.connections, server.server_state.tasks
            raise AssertionError(f"the server does not end: {connections=}, {tasks=}, see the stacks on stderr")


@dataclass
class Process:
    """`vitrail serve` as a user starts it."""

    process: subprocess.Popen[str]
    port: int
    lines: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def started(*arguments: object, without: tuple[str, ...] = ()) -> Iterator[Process]:
    """The command, once it says where it serves; killed at the end if it still runs. `without` these modules."""
    hidden = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    program = f"import sys; {hidden}from vitrail.cli import main; sys.exit(main())"
    flags = ["--port", "0", "--device", "cpu", *([] if "--engine" in arguments else ["--engine", "torch"])]
    command = [sys.executable, "-c", program, "serve", *map(str, arguments), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    lines: list[str] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.append(line.rstrip())
            if found := re.search(r"serving on http://127\.0\.0\.1:(\d+)", line):
                yield Process(process, int(found[1]), lines)
                break
        else:
            raise AssertionError(f"the server did not start: {lines}")
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def raw_connection(port: int, timeout: float = 20) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=timeout)


def closed_after(connection: socket.socket, limit: float) -> tuple[float, bytes]:
    """Seconds until the other side closed, and what it said; the limit, if it did not."""
    began, said = time.monotonic(), b""
    connection.settimeout(limit)
    try:
        while data := connection.recv(65536):
            said += data
    except TimeoutError:
        return limit, said
    except ConnectionResetError:
        pass
    return time.monotonic() - began, said
