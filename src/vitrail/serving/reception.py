"""How a request's body is received: never too long, never too slow, never too many bytes at once."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.serving.bodies import too_long
from vitrail.serving.refusals import RefusalError
from vitrail.serving.settings import MIB, Settings

FEW = MIB  # bytes that are still to come: so many are read to keep the connection
_LINGER = 2.0  # seconds in which the rest of a refused body is thrown away, so that the client reads the answer


class Reception:
    """Wraps an application: its `receive` has the limits of `Settings`."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self.settings = app, settings
        self.held = 0  # bytes of bodies of all requests that are not answered yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        intake = _Intake(self, scope, receive, send)
        try:
            await self._app(scope, intake.receive, intake.send)
        finally:
            self.held -= intake.size


class _Intake:
    """One request's body on its way in."""

    def __init__(self, reception: Reception, scope: Scope, receive: Receive, send: Send) -> None:
        self._reception, self._settings = reception, reception.settings
        self._receive, self._send = receive, send
        self.size = 0
        self._started = time.monotonic()
        self._promised: int | None = None
        chunked = False
        for name, value in scope["headers"]:
            if name == b"content-length":
                self._promised = int(value) if value.isdigit() else None
            elif name == b"transfer-encoding":
                chunked = True
        self._complete = not chunked and not self._promised
        self._gone = False
        self._linger = False
        self._slow = False

    async def receive(self) -> Message:
        if self._complete or self._gone:
            return await self._receive()  # the end of the connection
        settings = self._settings
        if self._promised is not None and self._promised > settings.max_body:
            raise too_long(settings.max_body)
        message = await self._in_time()
        if message["type"] != "http.request":
            self._gone = True
            return message
        count = len(message.get("body", b""))
        self.size += count
        self._reception.held += count
        self._complete = not message.get("more_body", False)
        if self.size > settings.max_body:
            raise too_long(settings.max_body)
        if self._reception.held > settings.max_held:
            raise RefusalError(503, "too many bytes are on their way: try again", reason="memory", retry_after=1)
        return message

    async def _in_time(self) -> Message:
        """The next part of the body. After `body_seconds`, bytes must have come at `body_rate`."""
        settings = self._settings
        allowed = max(settings.body_seconds, self.size / settings.body_rate)
        try:
            async with asyncio.timeout(self._started + allowed - time.monotonic()):
                return await self._receive()
        except TimeoutError:
            self._slow = True
            raise RefusalError(408, "the body came too slowly", reason="slow") from None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not (self._complete or self._gone):
            left = None if self._promised is None else self._promised - self.size
            if self._slow or left is None or left > FEW:  # fewer are thrown away by the connection, which is kept
                self._linger = not self._slow
                message = {**message, "headers": [*message.get("headers", []), (b"connection", b"close")]}
        elif message["type"] == "http.response.body" and self._linger and not message.get("more_body", False):
            # an answer to a client that still sends would be lost with the connection
            await self._send({**message, "more_body": True})
            await self._throw_away(2 * self._settings.max_body)
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _throw_away(self, most: int) -> None:
        """What still comes, for a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while most >= 0:
                    message = await self._receive()
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        break
                    most -= len(message.get("body", b""))
