"""Answers that leave in one piece."""

from __future__ import annotations

import asyncio
from typing import Any

_LONG = 64 * 1024  # bytes: to copy more takes longer than a second call


class Joined:
    """A transport that sends together what is written in one turn of the loop.

    An answer is written as its head and its body. Each call of the system also gives the interpreter away to decoders
    and models, and takes long to get it back: with one instead of two, a busy server answers more.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if len(data) > _LONG:
            self._flush()
            self._transport.write(data)
            return
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def _flush(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._parts.clear()
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._parts)) + self._transport.get_write_buffer_size()
