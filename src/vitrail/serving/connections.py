"""Connections that do not wait for ever: uvicorn's protocol with bounds on headers, on reading and on their number."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import h11

from vitrail.serving.reception import FEW
from vitrail.serving.settings import Settings
from vitrail.serving.writing import Joined

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol
else:
    try:  # the quicker parser, where it is installed
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol

LONGEST_HEAD = 64 * 1024  # bytes of a request before its body


class Connection(Protocol):
    """A client that sends its headers slowly, or does not read its answer, is cut off."""

    settings: Settings  # set by `connections_of`

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._patience: asyncio.TimerHandle | None = None  # for headers
        self._unread: asyncio.TimerHandle | None = None  # for an answer that nobody reads
        self._head = 0  # bytes of headers that are not complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.settings.max_connections:
            transport.write(_answer(503, "Service Unavailable", "too many connections", "retry-after: 1\r\n"))
            transport.close()
            self._refused = True
            return
        super().connection_made(Joined(transport, self.loop))  # type: ignore[arg-type]
        self._wait_for_headers()

    _refused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if not self._refused:
            super().connection_lost(exc)
            self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        before, had_body_left = self.cycle, self._has_body_left()
        super().data_received(data)
        if self.cycle is not before:  # a request has begun
            self._head = 0
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None
        elif before is None or before.response_complete:  # between two requests, or a body whose answer was given
            # where a body ends in these bytes, those after it are few: what follows them is counted
            ended = had_body_left and not self._has_body_left()
            self._head = 0 if ended else self._head + len(data)
            if self._head > LONGEST_HEAD + (FEW if self._has_body_left() else 0):
                self._cut(431, "Request Header Fields Too Large", "the headers are too long")
            elif self._patience is None:
                self._wait_for_headers()

    def _has_body_left(self) -> bool:
        """Whether the request that was answered has not come to its end."""
        if hasattr(self, "conn"):  # h11
            return self.conn.their_state is h11.SEND_BODY
        return not self._ended

    _ended = True

    def on_message_begin(self) -> None:
        self._ended = False
        super().on_message_begin()  # type: ignore[misc]

    def on_message_complete(self) -> None:
        self._ended, self._head = True, 0
        super().on_message_complete()  # type: ignore[misc]

    def _wait_for_headers(self) -> None:
        self._patience = self.loop.call_later(
            self.settings.header_seconds, self._cut, 408, "Request Timeout", "the headers came too slowly"
        )

    def _cut(self, status: int, phrase: str, words: str) -> None:
        if not self.transport.is_closing():
            if self._head:
                self.transport.write(_answer(status, phrase, words))
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.settings.header_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # closing would wait until the client has read
        super().timeout_keep_alive_handler()

    def _forget(self) -> None:
        for timer in (self._patience, self._unread):
            if timer is not None:
                timer.cancel()
        self._patience = self._unread = None


def _answer(status: int, phrase: str, words: str, headers: str = "") -> bytes:
    body = f'{{"error": "{words}"}}'
    return (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"{headers}connection: close\r\n\r\n{body}"
    ).encode()


def connections_of(settings: Settings) -> type[Connection]:
    """The protocol with these settings, as uvicorn wants it."""
    return type("Connection", (Connection,), {"settings": settings})
