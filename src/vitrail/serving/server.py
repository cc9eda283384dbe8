"""The process: a socket, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn

from vitrail.errors import VitrailError
from vitrail.serving.app import App
from vitrail.serving.connections import LONGEST_HEAD, connections_of
from vitrail.serving.settings import Settings


class Server(uvicorn.Server):
    """uvicorn that ends with 0 when it is told to end, and loads its models again on SIGHUP."""

    def __init__(self, app: App, settings: Settings, started: Callable[[], None] = lambda: None) -> None:
        self._app, self._tell_start = app, started
        self._reloading: set[asyncio.Task[None]] = set()
        super().__init__(
            uvicorn.Config(
                app.asgi,
                http=connections_of(settings),
                loop="asyncio",  # uvloop takes one new connection in each round: under load, most would wait for long
                ws="none",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=settings.keep_alive,  # type: ignore[arg-type]
                timeout_graceful_shutdown=round(settings.stop_seconds),
                h11_max_incomplete_event_size=LONGEST_HEAD,
                lifespan="on",
            )
        )
        app.metrics.connections.set_function(lambda: len(self.server_state.connections))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Its own form raises the signal again after the end, so that the process would not exit with 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        old: dict[int, Any] = {name: signal.signal(name, self.handle_exit) for name in (signal.SIGTERM, signal.SIGINT)}
        with contextlib.suppress(AttributeError, NotImplementedError):  # a system without SIGHUP
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            yield
        finally:
            with contextlib.suppress(AttributeError, NotImplementedError):
                loop.remove_signal_handler(signal.SIGHUP)
            for name, handler in old.items():
                signal.signal(name, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell_start()  # only now do signals do what they should

    def _reload(self) -> None:
        task = asyncio.get_running_loop().create_task(self._app.reload())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.facts.stopping = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Requests whose bytes have come are answered, also those that nobody has looked at yet."""
        await asyncio.sleep(0.05)
        for server in self.servers:
            server.close()
        await asyncio.sleep(0.05)
        await super().shutdown(sockets)


def bound(settings: Settings) -> socket.socket:
    """A socket that listens, or one line that says why not."""
    try:
        # with its protocol, by which asyncio knows that it is TCP: otherwise it leaves Nagle's algorithm on, and the
        # second part of an answer waits for 40 ms
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise VitrailError(f"the address {settings.host} cannot be used: {error.strerror}") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(min(1024, settings.max_connections))
        found.setblocking(False)
    except OSError as error:
        found.close()
        raise VitrailError(
            f"port {settings.port} of {settings.host} cannot be used ({error.strerror}): choose another with --port"
        ) from error
    return found


def allow_files(connections: int) -> None:
    """Room for so many connections among the files that the process may open."""
    try:
        import resource
    except ImportError:  # a system without such a limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
