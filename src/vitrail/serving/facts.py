"""What a server says of itself: its models, its limits, its examples, and how it is."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import vitrail
from vitrail.model.vit import ViT
from vitrail.serving.answering import Answering
from vitrail.serving.computing import Loaded
from vitrail.serving.files import Examples
from vitrail.serving.hosting import Hosted, Models
from vitrail.serving.looking import most_layers
from vitrail.serving.metrics import CONTENT_TYPE, Metrics
from vitrail.serving.refusals import RefusalError


class Facts:
    """Routes that are read."""

    def __init__(self, models: Models, answering: Answering, metrics: Metrics, examples: Examples) -> None:
        self.models, self.answering, self._metrics, self._examples = models, answering, metrics, examples
        self.stopping = False  # the server ends: nothing more should be sent here

    async def model(self, request: Request) -> JSONResponse:
        hosted = self.models.find(request.query_params.get("model"))
        settings = self.answering.settings
        return JSONResponse(
            {
                **model_facts(hosted),
                "limits": {
                    "bytes": settings.max_body,
                    "pixels": settings.max_pixels,
                    "pictures": settings.max_pictures,
                    "queue": settings.queue,
                    "deadline": settings.deadline,
                },
                "examples": self._examples.to_json(),
                "vitrail": vitrail.__version__,
            }
        )

    async def list_models(self, request: Request) -> JSONResponse:
        """All models by name; the first answers where none is named."""
        return JSONResponse({"models": [_brief(hosted) for hosted in self.models]})

    async def examples(self, request: Request) -> JSONResponse:
        return JSONResponse({"examples": self._examples.to_json()})

    async def example(self, request: Request) -> Response:
        found = self._examples.find(request.path_params["name"])
        if found is None:
            raise RefusalError(404, "there is no such example")
        return found.response(request.headers.get("if-none-match"))

    async def health(self, request: Request) -> JSONResponse:
        """Whether the process should live on."""
        good = all(hosted.healthy for hosted in self.models)
        return JSONResponse({"healthy": good}, 200 if good else 503)

    async def readiness(self, request: Request) -> JSONResponse:
        """Whether requests should be sent here."""
        states = {hosted.name: hosted.ready and hosted.healthy for hosted in self.models}
        good = all(states.values()) and not self.stopping
        return JSONResponse({"ready": good, "models": states}, 200 if good else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE})


def _brief(hosted: Hosted) -> dict[str, Any]:
    loaded = hosted.current.loaded
    return {
        "name": hosted.name,
        "version": hosted.current.version,
        "ready": hosted.ready,
        "classes": len(loaded.classes),
        "img_size": list(loaded.preprocessing.size),
        "engine": loaded.engine.name,
    }


def model_facts(hosted: Hosted) -> dict[str, Any]:
    loaded = hosted.current.loaded
    pixels = loaded.preprocessing
    return {
        "name": hosted.name,
        "version": hosted.current.version,
        "engine": loaded.engine.name,
        "engine_detail": loaded.engine.detail,
        "classes": loaded.classes,
        "img_size": list(pixels.size),
        "channels": pixels.channels,
        "width": loaded.width,
        "preprocessing": pixels.to_json(),
        "preprocessing_words": pixels.describe(),
        **_inside(loaded),
    }


def _inside(loaded: Loaded) -> dict[str, Any]:
    """What is known of the model behind an engine; of an exported file, nothing."""
    model, grid = loaded.model, loaded.grid
    attends = isinstance(model, ViT)
    can = {"attention": attends, "attribution": model is not None and bool(loaded.classes)}
    can |= {"blank": grid is not None, "remove": attends, "embed": loaded.width > 0}
    facts: dict[str, Any] = {
        "kind": "exported" if model is None else "vit" if attends else "resnet",
        "parameters": None if model is None else sum(p.numel() for p in model.parameters()),
        "grid": None if grid is None else list(grid),
        "can": can,
        "layers": 0,
        "heads": 0,
        "prefix": 0,
        "patch_size": None,
        "pool": None,
        "layers_at_once": 0,
    }
    if isinstance(model, ViT):
        config = model.config
        facts |= {"layers": config.depth, "heads": config.num_heads, "prefix": config.num_prefix, "pool": config.pool}
        facts |= {"patch_size": list(config.patch_size), "layers_at_once": most_layers(model)}
    return facts
