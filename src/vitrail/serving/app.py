"""The application: all routes, and what starts and ends with it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from vitrail.serving.answering import Answering
from vitrail.serving.computing import Loaded
from vitrail.serving.docs_page import docs_page
from vitrail.serving.facts import Facts
from vitrail.serving.files import Examples, File, page_files
from vitrail.serving.front import Front
from vitrail.serving.hosting import Hosted, Models, Source
from vitrail.serving.metrics import Metrics
from vitrail.serving.openapi import openapi
from vitrail.serving.predicting import Predicting
from vitrail.serving.reception import Reception
from vitrail.serving.settings import Settings
from vitrail.serving.v2 import V2

_OPEN = ("/healthz", "/readyz", "/docs", "/openapi.json", "/v2/health/live", "/v2/health/ready")


@dataclass(frozen=True)
class App:
    """What a server runs, and what its process must reach."""

    asgi: ASGIApp
    models: Models  # once it runs
    facts: Facts
    metrics: Metrics

    async def reload(self) -> None:
        """Loads every model's files again."""
        for hosted in self.models:
            await hosted.try_reload()


def make_app(
    loaded: Mapping[str, tuple[Source, Loaded]],
    settings: Settings,
    *,
    token: str | None = None,
    examples: Path | None = None,
) -> App:
    """The application for models that are loaded already, by their names."""
    metrics = Metrics()
    decoders = ThreadPoolExecutor(settings.decoders or os.cpu_count() or 1, thread_name_prefix="decode")
    models = Models()
    answering = Answering(settings, decoders)
    facts = Facts(models, answering, metrics, Examples(examples))
    routes = _routes(facts, Predicting(models, answering), V2(models, answering), settings)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        for name, (source, one) in loaded.items():
            models.add(Hosted.of(name, one, source, settings, metrics))
        watchers = [asyncio.create_task(hosted.watch()) for hosted in models] if settings.watch else []
        try:
            yield
        finally:
            for watcher in watchers:
                watcher.cancel()
            await _close(models, settings.stop_seconds)
            decoders.shutdown(wait=False, cancel_futures=True)

    for path, file in page_files().items():
        address = "/" if path == "index.html" else f"/page/{path}"
        routes.append(Route(address, _showing(file), methods=["GET"], name=path))
    router = Router(routes, redirect_slashes=False, lifespan=lifespan)
    named = {route.endpoint: route.path for route in reversed(routes)}
    asgi = Reception(Front(router, metrics=metrics, token=token, is_open=_is_open, routes=named), settings)
    metrics.held.set_function(lambda: asgi.held)
    return App(asgi, models, facts, metrics)


async def _close(models: Models, seconds: float) -> None:
    """Ends every model's thread; one that computes for too long is left, so that the process always ends."""
    try:
        async with asyncio.timeout(seconds):
            for hosted in models:
                await hosted.close()
    except TimeoutError:
        print(f"a model still computes after {seconds:g} s: it is left", file=sys.stderr, flush=True)


def _is_open(path: str) -> bool:
    return path in _OPEN or path == "/" or path.startswith("/page/")


def _routes(facts: Facts, predicting: Predicting, v2: V2, settings: Settings) -> list[Route]:
    document = openapi(settings)

    async def show_document(request: Request) -> JSONResponse:
        return JSONResponse(document)

    read: dict[str, Any] = {
        "/v1/model": facts.model,
        "/v1/models": facts.list_models,
        "/v1/examples": facts.examples,
        "/v1/examples/{name}": facts.example,
        "/healthz": facts.health,
        "/readyz": facts.readiness,
        "/metrics": facts.metrics,
        "/openapi.json": show_document,
        "/docs": _showing(docs_page(settings)),
        "/v2": v2.server,
        "/v2/health/live": v2.live,
        "/v2/health/ready": v2.ready,
    }
    send: dict[str, Any] = {
        "/v1/predict": predicting.predict,
        "/v1/embed": predicting.embed,
        "/v2/repository/index": v2.index,
        "/v2/repository/models/{model}/load": v2.load,
    }
    for before in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        read |= {before: v2.model, f"{before}/ready": v2.model_ready, f"{before}/config": v2.config}
        send[f"{before}/infer"] = v2.infer
    found = [Route(path, endpoint, methods=["POST"]) for path, endpoint in send.items()]  # first: they come most often
    return found + [Route(path, endpoint, methods=["GET"]) for path, endpoint in read.items()]


def _showing(file: File) -> Any:
    async def show(request: Request) -> Response:
        return file.response(request.headers.get("if-none-match"))

    return show
