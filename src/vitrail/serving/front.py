"""The door: who may come in, what is counted, and what becomes of errors."""

from __future__ import annotations

import hmac
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.serving.metrics import Metrics
from vitrail.serving.refusals import RefusalError, problem

_WORDS = {404: "there is nothing here: /docs has what there is", 405: "not with this method"}
_ALWAYS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]


class Front:
    """Around the application: every request is counted, and every error is an answer of one line.

    token: what a client must say, except to paths that `is_open`.
    routes: from an endpoint to the name under which it is counted.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        token: str | None,
        is_open: Callable[[str], bool],
        routes: Mapping[Any, str],
    ) -> None:
        self._app, self._metrics, self._is_open, self._routes = app, metrics, is_open, routes
        self._token = None if token is None else f"bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        scope["app"] = self  # with it, starlette raises errors instead of answering them itself
        began = time.perf_counter()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *_ALWAYS]}
            await send(message)

        try:
            await self._answer(scope, receive, sending)
        except ClientDisconnect:
            status = status or 499  # nobody reads it
        except HTTPException as error:
            words = _WORDS.get(error.status_code, str(error.detail))
            await problem(error.status_code, words, dict(error.headers or {}))(scope, receive, sending)
        except RefusalError as refusal:
            await self._refuse(refusal, scope, receive, sending, status)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            if not status:
                await problem(500, "an unexpected error; the server's log has it")(scope, receive, sending)
        finally:
            route = self._routes.get(scope.get("endpoint"), "other")
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._token is not None and not self._is_open(scope["path"]):
            self._check_token(scope)
        await self._app(scope, receive, send)

    def _check_token(self, scope: Scope) -> None:
        assert self._token is not None
        for name, value in scope["headers"]:
            if name == b"authorization":
                kind, _, token = value.partition(b" ")
                if hmac.compare_digest(kind.lower() + b" " + token.strip(), self._token):
                    return
        raise RefusalError(401, "this server wants a token: send Authorization: Bearer …", reason="token")

    async def _refuse(self, refusal: RefusalError, scope: Scope, receive: Receive, send: Send, status: int) -> None:
        if refusal.reason:
            self._metrics.rejects.labels(refusal.reason).inc()
        if not status:
            await refusal.response()(scope, receive, send)
