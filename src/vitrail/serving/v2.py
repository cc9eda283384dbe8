"""The V2 inference protocol of KServe and Triton over HTTP, with its binary and classification extensions."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import vitrail
from vitrail.errors import PictureError
from vitrail.pictures.sources import printable
from vitrail.serving.answering import Answer, Answering, Work, decode
from vitrail.serving.bodies import inflate, parse_json, whole
from vitrail.serving.computing import FromValues, Loaded, Plain
from vitrail.serving.hosting import Hosted, Models
from vitrail.serving.options import unknown_model
from vitrail.serving.refusals import RefusalError, bad
from vitrail.serving.tensors import Binary, read_tensor, write_tensor

OUTPUTS = ("logits", "probabilities", "features")
_LENGTH = "inference-header-content-length"
EXTENSIONS = ["classification", "binary_tensor_data", "model_configuration", "model_repository"]


class V2:
    """The routes under /v2."""

    def __init__(self, models: Models, answering: Answering) -> None:
        self.models, self.answering = models, answering

    async def server(self, request: Request) -> JSONResponse:
        return JSONResponse({"name": "vitrail", "version": vitrail.__version__, "extensions": EXTENSIONS})

    async def live(self, request: Request) -> JSONResponse:
        return _state(all(hosted.healthy for hosted in self.models), "live")

    async def ready(self, request: Request) -> JSONResponse:
        return _state(all(hosted.ready for hosted in self.models), "ready")

    async def model_ready(self, request: Request) -> JSONResponse:
        return _state(self._hosted(request).ready, "ready")

    async def model(self, request: Request) -> JSONResponse:
        hosted = self._hosted(request)
        loaded = hosted.current.loaded
        size, channels = loaded.preprocessing.size, loaded.preprocessing.channels
        widths = {"logits": len(loaded.classes), "probabilities": len(loaded.classes), "features": loaded.width}
        outputs = [{"name": n, "datatype": "FP32", "shape": [-1, width]} for n, width in widths.items() if width]
        return JSONResponse(
            {
                "name": hosted.name,
                "versions": [str(hosted.current.version)],
                "platform": f"vitrail_{loaded.engine.name}",
                "inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [-1, *size, channels]}],
                "outputs": outputs,
            }
        )

    async def config(self, request: Request) -> JSONResponse:
        hosted = self._hosted(request)
        loaded, settings = hosted.current.loaded, self.answering.settings
        dims = [*loaded.preprocessing.size, loaded.preprocessing.channels]
        widths = {"logits": len(loaded.classes), "probabilities": len(loaded.classes), "features": loaded.width}
        outputs = [{"name": n, "data_type": "TYPE_FP32", "dims": [width]} for n, width in widths.items() if width]
        return JSONResponse(
            {
                "name": hosted.name,
                "platform": f"vitrail_{loaded.engine.name}",
                "max_batch_size": settings.max_pictures,
                "input": [{"name": "pixels", "data_type": "TYPE_UINT8", "dims": dims}],
                "output": outputs,
                "dynamic_batching": {"max_queue_delay_microseconds": round(1e6 * settings.max_wait)},
            }
        )

    async def index(self, request: Request) -> JSONResponse:
        rows = [(hosted, "READY" if hosted.ready else "UNAVAILABLE") for hosted in self.models]
        return JSONResponse([{"name": h.name, "version": str(h.current.version), "state": s} for h, s in rows])

    async def load(self, request: Request) -> JSONResponse:
        """Loads a model's own files again; nothing that the request says is opened."""
        await self._hosted(request).reload()
        return JSONResponse({})

    async def infer(self, request: Request) -> Response:
        hosted = self._hosted(request)
        hosted.admit(1)  # before the body is read
        with hosted.arrivals.one():
            data, headers = await whole(request.stream()), request.headers
        encoding, length = headers.get("content-encoding", ""), headers.get(_LENGTH)
        asked = await self.answering.read(data, encoding, partial(self._read, encoding, length, data))
        with hosted.current as generation:
            loaded = generation.loaded
            outputs = _outputs(asked, loaded)
            works = self._works(asked.inputs, loaded)
            answers = await self.answering.compute(request, hosted, generation, works, None)
            values = _values(answers, loaded, [name for name, _, _ in outputs])
            made = [
                write_tensor(name, _classified(values[name], classes, loaded) if classes else values[name], binary)
                for name, binary, classes in outputs
            ]
        content: dict[str, Any] = {"model_name": hosted.name, "model_version": str(generation.version)}
        if asked.id:
            content["id"] = asked.id
        content["outputs"] = [head for head, _ in made]
        return _response(content, b"".join(raw for _, raw in made))

    def _hosted(self, request: Request) -> Hosted:
        hosted = self.models.find(request.path_params["model"])
        version = request.path_params.get("version")
        if version is not None and version != str(hosted.current.version):
            raise unknown_model(f"{hosted.name} of version {version}", self.models.names)
        return hosted

    def _read(self, encoding: str, length: str | None, data: bytes) -> _Asked:
        body = memoryview(inflate(data, encoding, self.answering.settings.max_body))
        if length is None:
            head, rest = body, body[len(body) :]
        elif length.isascii() and length.isdigit() and len(length) < 12 and int(length) <= len(body):
            head, rest = body[: int(length)], body[int(length) :]
        else:
            raise bad(f"Inference-Header-Content-Length {printable(length)!r} is no length within the body")
        return _Asked(parse_json(head), Binary(rest))

    def _works(self, inputs: dict[str, Any], loaded: Loaded) -> list[Work]:
        """What is computed for each picture of the one input."""
        if len(inputs) != 1:
            raise bad("give one input: pixels (UINT8 or FP32), or pictures (BYTES)")
        ((name, given),) = inputs.items()
        settings = self.answering.settings
        if len(given) > settings.max_pictures:
            raise RefusalError(413, f"there are more than {settings.max_pictures} pictures in the request")
        if not len(given):
            raise bad("the input has no pictures")
        if isinstance(given, list):
            if name != "pictures":
                raise bad("files of pictures (BYTES) go into the input pictures")
            return [_decoding(data, i, loaded, settings.max_pixels) for i, data in enumerate(given)]
        if name != "pixels":
            raise bad("numbers go into the input pixels")
        size, channels = loaded.preprocessing.size, loaded.preprocessing.channels
        whole = given.dtype == np.uint8
        wanted = (*size, channels) if whole else (channels, *size)
        if given.shape[1:] != wanted:
            raise bad(f"pixels of {given.dtype.name} are {('n', *wanted)}, not {given.shape}".replace("'", ""))
        if not whole and loaded.model is None:
            raise bad("this server has an exported file, which takes UINT8 pixels, or pictures")
        return [_given(Plain() if whole else FromValues(), one) for one in given]


class _Asked:
    """A request to infer, checked in its form."""

    def __init__(self, content: dict[str, Any], binary: Binary) -> None:
        inputs, outputs = content.get("inputs"), content.get("outputs", [])
        self.parameters, self.id = content.get("parameters") or {}, content.get("id")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or not isinstance(self.parameters, Mapping):
            raise bad("inputs and outputs are lists, and parameters are an object")
        if self.id is not None and (not isinstance(self.id, str) or len(self.id) > 200):
            raise bad("an id is a text of at most 200 characters")
        self.id = None if self.id is None else printable(self.id)
        self.inputs = dict(read_tensor(one, binary) for one in inputs[:8])
        self.outputs = outputs
        binary.check_end()


def _decoding(data: bytes, number: int, loaded: Loaded, max_pixels: int) -> Work:
    return lambda: (Plain(), decode(data, f"picture {number}", loaded, max_pixels).pixels)


def _given(task: Hashable, content: Any) -> Work:
    return lambda: (task, content)


def _outputs(asked: _Asked, loaded: Loaded) -> list[tuple[str, bool, int]]:
    """Of each output that is asked for: its name, whether it is binary, and how many classes it is reduced to."""
    known = [name for name in OUTPUTS if (loaded.width if name == "features" else loaded.classes)]
    binary = asked.parameters.get("binary_data_output") is True
    if not asked.outputs:
        return [(known[0], binary, 0)]
    found = []
    for one in asked.outputs:
        parameters = one.get("parameters") or {} if isinstance(one, Mapping) else None
        if not isinstance(one, Mapping) or not isinstance(parameters, Mapping) or one.get("name") not in known:
            raise bad(f"an output is an object whose name is one of {', '.join(known)}")
        classes = parameters.get("classification", 0)
        if not isinstance(classes, int) or isinstance(classes, bool) or classes < 0:
            raise bad("classification is a number of classes")
        wants = parameters.get("binary_data", binary)
        found.append((str(one["name"]), wants is True, classes if one["name"] != "features" else 0))
    return found


def _values(answers: list[Answer | PictureError], loaded: Loaded, names: list[str]) -> dict[str, NDArray[np.float32]]:
    good = []
    for answer in answers:
        if isinstance(answer, PictureError):
            raise bad(str(answer))
        good.append(answer.result)
    logits = np.stack([result.logits for result in good])
    features = np.stack([result.features for result in good])
    if "features" in names and features.shape[1] != loaded.width:
        raise bad("features are given of pictures, or of UINT8 pixels")
    scores = np.stack([result.scores for result in good]).astype(np.float32)
    return {"logits": logits, "probabilities": scores, "features": features}


def _classified(values: NDArray[np.float32], count: int, loaded: Loaded) -> list[list[str]]:
    """Triton's form of the best classes: value:index:label."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return [
        [f"{row[i]:f}:{i}:{loaded.classes[i]}" for i in best]
        for row, best in zip(values.tolist(), order.tolist(), strict=True)
    ]


def _response(content: dict[str, Any], raw: bytes) -> Response:
    head = json.dumps(content).encode()
    if not raw:
        return Response(head, media_type="application/json")
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return Response(head + raw, media_type="application/octet-stream", headers=headers)


def _state(good: bool, name: str) -> JSONResponse:
    return JSONResponse({name: good}, 200 if good else 503)
