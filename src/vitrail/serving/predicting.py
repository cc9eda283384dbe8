"""`/v1/predict` and `/v1/embed`."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse

from vitrail.errors import PictureError
from vitrail.pictures.sources import printable
from vitrail.serving.answering import Answer, Answering, Picture, check, decode, png_address, task_of
from vitrail.serving.bodies import Body, Upload, inflate, read_body, whole
from vitrail.serving.computing import Loaded
from vitrail.serving.hosting import Generation, Hosted, Models
from vitrail.serving.options import EMBED, PREDICT, Options, read_options
from vitrail.serving.refusals import bad
from vitrail.serving.settings import Settings


class Predicting:
    """What clients with pictures ask for."""

    def __init__(self, models: Models, answering: Answering) -> None:
        self.models, self.answering = models, answering

    async def predict(self, request: Request) -> JSONResponse:
        """Classes of each picture, and what of the model's thinking was asked for."""
        return await self._answer(request, PREDICT, "predictions", _prediction)

    async def embed(self, request: Request) -> JSONResponse:
        """What the model's head reads of each picture: one vector."""
        return await self._answer(request, EMBED, "embeddings", _embedding)

    async def _answer(self, request: Request, allowed: tuple[str, ...], key: str, told: Told) -> JSONResponse:
        began = time.perf_counter()
        settings = self.answering.settings
        query = _query(request)
        asked = self.models.find(query.get("model"))
        asked.admit(1)  # before the body is read
        with asked.arrivals.one():
            data = await whole(request.stream())
        encoding, content_type = (request.headers.get(name, "") for name in ("content-encoding", "content-type"))
        body = await self.answering.read(data, encoding, partial(_read, encoding, content_type, data, settings))
        del data
        options = read_options(query, body.options, allowed)
        hosted = self.models.find(options.model)
        with hosted.current as generation:
            loaded = generation.loaded
            _need(loaded, allowed)
            check(options, loaded)
            pictures: list[Picture | None] = [None] * len(body.uploads)
            works = [
                _work(body.uploads, i, pictures, options, loaded, settings.max_pixels) for i in range(len(pictures))
            ]
            answers = await self.answering.compute(request, hosted, generation, works, options.timeout)
            rows = [
                _row(upload, picture, answer, options, loaded, told)
                for upload, picture, answer in zip(body.uploads, pictures, answers, strict=True)
            ]
        _refuse_all_bad(answers)
        about = _about(hosted, generation, answers, pictures, time.perf_counter() - began)
        return JSONResponse({**about, key: rows})


Told = Callable[[Answer, Options, Loaded], dict[str, Any]]


def _query(request: Request) -> dict[str, str]:
    return dict(request.query_params.multi_items())


def _read(encoding: str, content_type: str, data: bytes, settings: Settings) -> Body:
    return read_body(content_type, inflate(data, encoding, settings.max_body), settings.max_pictures)


def _need(loaded: Loaded, allowed: tuple[str, ...]) -> None:
    if allowed is PREDICT and not loaded.classes:
        raise bad("this model has no classes, so it cannot predict: ask for /v1/embed")
    if allowed is EMBED and not loaded.width:
        raise bad("this exported file gives logits alone: export it with its features")


def _work(
    uploads: list[Upload], place: int, pictures: list[Picture | None], options: Options, loaded: Loaded, most: int
) -> Callable[[], tuple[Hashable, Any]]:
    def work() -> tuple[Hashable, Any]:
        upload = uploads[place]
        uploads[place] = Upload(upload.name, b"")  # what waits in the queue needs its pixels alone
        picture = decode(upload.data, upload.name, loaded, most)
        pictures[place] = picture if options.seen else Picture(_NOTHING, picture.size, picture.seconds)
        return task_of(picture, options, loaded)

    return work


_NOTHING: NDArray[np.uint8] = np.empty((0, 0, 3), np.uint8)


def _row(
    upload: Upload, picture: Picture | None, answer: Answer | PictureError, options: Options, loaded: Loaded, told: Told
) -> dict[str, Any]:
    name = printable(upload.name)
    if isinstance(answer, PictureError) or picture is None:
        return {"name": name, "error": str(answer)}
    row = {"name": name, "width": picture.size[0], "height": picture.size[1], **told(answer, options, loaded)}
    if options.seen:
        row["seen"] = png_address(picture.pixels)
    return row


def _prediction(answer: Answer, options: Options, loaded: Loaded) -> dict[str, Any]:
    scores = answer.result.scores.tolist()
    order = heapq.nlargest(options.top, range(len(scores)), scores.__getitem__)
    top = [{"label": loaded.classes[i], "index": i, "score": round(scores[i], 6)} for i in order]
    row: dict[str, Any] = {**top[0], "top": top}
    if options.logits:
        row["logits"] = answer.result.logits.astype(float).tolist()
    if answer.result.looked is not None:
        row["attention"] = answer.result.looked.to_json(loaded.classes)
    return row


def _embedding(answer: Answer, options: Options, loaded: Loaded) -> dict[str, Any]:
    return {"embedding": answer.result.features.astype(float).tolist()}


def _refuse_all_bad(answers: list[Answer | PictureError]) -> None:
    first = answers[0]
    if all(isinstance(answer, PictureError) for answer in answers):
        more = f" (and {len(answers) - 1} more that cannot be read)" if len(answers) > 1 else ""
        raise bad(f"{first}{more}")


def _about(
    hosted: Hosted,
    generation: Generation,
    answers: list[Answer | PictureError],
    pictures: list[Picture | None],
    total: float,
) -> dict[str, Any]:
    good = [answer for answer in answers if isinstance(answer, Answer)]
    seconds = {
        "decode": max(picture.seconds for picture in pictures if picture is not None),
        "queue": max(answer.waited for answer in good),
        "model": max(answer.computed for answer in good),
        "total": total,
    }
    return {
        "model": hosted.name,
        "version": generation.version,
        "engine": generation.loaded.engine.name,
        "milliseconds": {name: round(1000 * value, 2) for name, value in seconds.items()},
    }
