"""A connection of the server without a network: pieces arrive as they are given, however large."""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from vitrail.serving.connections import connections_of
from vitrail.serving.settings import Settings


class Line(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)})
        self.said, self.closed = b"", False

    def write(self, data: Any) -> None:
        self.said += bytes(data)

    def writelines(self, parts: Any) -> None:
        self.said += b"".join(parts)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


async def _not_found(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once, without waiting for a body."""
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def received(*pieces: bytes) -> str:
    """What a client hears that sends these pieces, each after all that can be said to those before."""

    async def converse() -> bytes:
        config = Config(_not_found, lifespan="off", log_config=None)
        config.load()
        connection = connections_of(Settings())(config, ServerState(), {}, asyncio.get_running_loop())
        line = Line()
        connection.connection_made(line)
        for piece in pieces:
            if not line.closed:
                connection.data_received(piece)
            await asyncio.sleep(0.05)
        connection.connection_lost(None)
        return line.said

    return repr(asyncio.run(converse()))
