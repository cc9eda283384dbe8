"""The OpenAPI document of the server."""

from __future__ import annotations

from typing import Any

import vitrail
from vitrail.serving.options import DROPPINGS, EMBED, PARTS, PREDICT
from vitrail.serving.settings import Settings

Schema = dict[str, Any]

_NUMBER: Schema = {"type": "number"}
_WHOLE: Schema = {"type": "integer"}
_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}

OPTIONS: dict[str, tuple[Schema, str]] = {
    "model": ({"type": "string"}, "which of several models; by default the first"),
    "top": ({"type": "integer", "minimum": 1, "maximum": 100000, "default": 5}, "how many of the best classes"),
    "attention": ({"type": "boolean", "default": False}, "also what the model attends to"),
    "parts": (
        {"type": "string", "enum": ["weights,rollout,attribution", *PARTS], "default": ",".join(PARTS)},
        "which parts of it, separated by commas",
    ),
    "layers": (
        {"type": "string", "pattern": "^[0-9]{1,4}(,[0-9]{1,4})*$"},
        "layers whose weights are given, such as 0,11; by default all",
    ),
    "class": ({"type": "string"}, "whose attribution: an index or a label; by default the best class"),
    "drop": (
        {"type": "string", "pattern": "^[0-9]{1,6}(,[0-9]{1,6})*$"},
        "panes that the model shall not see, counted by rows, such as 3,17",
    ),
    "dropping": (
        {"type": "string", "enum": list(DROPPINGS), "default": "blank"},
        "blank: in the colour of the mean; remove: not in the sequence at all",
    ),
    "logits": ({"type": "boolean", "default": False}, "also the logits of all classes"),
    "seen": ({"type": "boolean", "default": False}, "also the pixels that the model sees, as a PNG data address"),
    "timeout": ({"type": "number", "minimum": 1, "maximum": 3600}, "seconds, at most the server's deadline"),
}

WORDS = {
    400: "the request is wrong, or none of its pictures can be read",
    401: "the token is missing or wrong",
    404: "there is no such model, version or file",
    405: "not with this method",
    408: "the request came too slowly",
    413: "too many bytes or pictures",
    415: "an unknown Content-Type or Content-Encoding",
    429: "the queue is full, or the answer would be late; Retry-After says when to try again",
    503: "the model is not there at the moment",
    504: "there was no answer in the time allowed",
}
_READING = (400, 401, 404, 405, 503)


def openapi(settings: Settings) -> dict[str, Any]:
    """The document, for a server with these settings."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vitrail",
            "version": vitrail.__version__,
            "description": 'Vision Transformers over HTTP. Errors are one line: {"error": "…"}.',
        },
        "paths": _paths(settings),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _paths(settings: Settings) -> dict[str, Any]:
    model = _in_path("model", "the name of a model")
    version = _in_path("version", "its version, such as 1")
    found: dict[str, Any] = {
        "/v1/predict": {"post": _pictures(settings, "Classes of pictures", PREDICT, "Predictions")},
        "/v1/embed": {"post": _pictures(settings, "Features of pictures", EMBED, "Embeddings")},
        "/v1/model": {"get": _get("A model: classes, panes, layers, limits", "Model", [_in_query("model")])},
        "/v1/models": {"get": _get("All models")},
        "/v1/examples": {"get": _get("Pictures to try")},
        "/v1/examples/{name}": {"get": _file("One of them", [_in_path("name", "its name")])},
        "/healthz": {"get": _get("Whether the process should live on")},
        "/readyz": {"get": _get("Whether requests should be sent here")},
        "/metrics": {"get": _plain("Metrics for Prometheus")},
        "/openapi.json": {"get": _get("This document")},
        "/v2": {"get": _get("The server, by the V2 protocol of KServe and Triton")},
        "/v2/health/live": {"get": _get("Liveness, by the V2 protocol")},
        "/v2/health/ready": {"get": _get("Readiness, by the V2 protocol")},
        "/v2/repository/index": {"post": _post("All models, by the V2 protocol", None, [], {"type": "array"})},
        "/v2/repository/models/{model}/load": {"post": _post("Load a model's files again", None, [model])},
    }
    for path, parameters in (
        ("/v2/models/{model}", [model]),
        ("/v2/models/{model}/versions/{version}", [model, version]),
    ):
        found[path] = {"get": _get("Inputs and outputs, by the V2 protocol", None, parameters)}
        found[f"{path}/ready"] = {"get": _get("Readiness of a model", None, parameters)}
        found[f"{path}/config"] = {"get": _get("Configuration of a model", None, parameters)}
        found[f"{path}/infer"] = {"post": _post("Inference, by the V2 protocol", _named("Infer"), parameters)}
    return found


def _pictures(settings: Settings, words: str, options: tuple[str, ...], answer: str) -> Schema:
    file: Schema = {"type": "string", "format": "binary"}
    most = settings.max_pictures
    form = {"pictures": {"type": "array", "items": file, "minItems": 1, "maxItems": most}}
    picture = {"oneOf": [{"type": "string", "contentEncoding": "base64"}, _named("Picture")]}
    listed = {"pictures": {"type": "array", "items": picture, "minItems": 1, "maxItems": most}}
    inner = {name: OPTIONS[name][0] for name in options}
    content = {
        "multipart/form-data": {"schema": _object(form, ["pictures"])},
        "application/json": {"schema": _object({**listed, **inner}, ["pictures"])},
        "image/*": {"schema": file},
        "application/octet-stream": {"schema": file},
    }
    return {
        "summary": words,
        "parameters": [_in_query(name) for name in options],
        "requestBody": {"required": True, "content": content},
        "responses": {**_good(_named(answer)), **_bad(tuple(WORDS))},
    }


def _get(words: str, answer: str | None = None, parameters: list[Schema] | None = None) -> Schema:
    schema = {"type": "object"} if answer is None else _named(answer)
    return {"summary": words, "parameters": parameters or [], "responses": {**_good(schema), **_bad(_READING)}}


def _post(words: str, body: Schema | None, parameters: list[Schema], answer: Schema | None = None) -> Schema:
    made: Schema = {"summary": words, "parameters": parameters}
    if body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return {**made, "responses": {**_good(answer or {"type": "object"}), **_bad(tuple(WORDS))}}


def _plain(words: str) -> Schema:
    good = {"200": {"description": "done", "content": {"text/plain": {"schema": _TEXT}}}}
    return {"summary": words, "responses": {**good, **_bad(_READING)}}


def _file(words: str, parameters: list[Schema]) -> Schema:
    good = {"200": {"description": "the picture", "content": {"image/*": {"schema": {}}}}}
    return {"summary": words, "parameters": parameters, "responses": {**good, **_bad(_READING)}}


def _good(schema: Schema) -> Schema:
    return {"200": {"description": "done", "content": {"application/json": {"schema": schema}}}}


def _bad(statuses: tuple[int, ...]) -> Schema:
    content = {"application/json": {"schema": _named("Error")}}
    return {str(status): {"description": WORDS[status], "content": content} for status in statuses}


def _in_query(name: str) -> Schema:
    schema, words = OPTIONS[name]
    return {"name": name, "in": "query", "description": words, "schema": schema}


def _in_path(name: str, words: str) -> Schema:
    schema = {"type": "string", "minLength": 1, "pattern": "^[^/]+$"}
    return {"name": name, "in": "path", "required": True, "description": words, "schema": schema}


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Schema, required: list[str] | None = None) -> Schema:
    made: Schema = {"type": "object", "properties": properties}
    return {**made, "required": required} if required else made


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _schemas() -> dict[str, Schema]:
    class_ = {"label": _TEXT, "index": _WHOLE, "score": _NUMBER}
    about = {"model": _TEXT, "version": _WHOLE, "engine": _TEXT, "milliseconds": _object({})}
    picture = {"name": _TEXT, "width": _WHOLE, "height": _WHOLE, "error": _TEXT}
    prediction = {**picture, **class_, "top": _list(_object(class_)), "logits": _list(_NUMBER), "seen": _TEXT}
    tensor = {"name": _TEXT, "datatype": _TEXT, "shape": _list(_WHOLE), "parameters": _object({})}
    maps = _list(_list(_NUMBER))
    attention = {
        "weights": _object({"layers": _list(_WHOLE), "shape": _list(_WHOLE), "data": _TEXT, "scale": _TEXT}),
        "rollout": maps,
        "attribution": _object({"index": _WHOLE, "label": _TEXT, "values": maps}),
    }
    return {
        "Error": _object({"error": _TEXT}, ["error"]),
        "Picture": _object({"data": {"type": "string", "contentEncoding": "base64"}, "name": _TEXT}, ["data"]),
        "Attention": _object(attention),
        "Prediction": _object({**prediction, "attention": _named("Attention")}, ["name"]),
        "Predictions": _object({**about, "predictions": _list(_named("Prediction"))}, ["model", "predictions"]),
        "Embedding": _object({**picture, "embedding": _list(_NUMBER)}, ["name"]),
        "Embeddings": _object({**about, "embeddings": _list(_named("Embedding"))}, ["model", "embeddings"]),
        "Model": _object({"name": _TEXT, "classes": _list(_TEXT), "img_size": _list(_WHOLE)}, ["name", "classes"]),
        "Infer": _object({"inputs": _list(_object(tensor)), "outputs": _list(_object({"name": _TEXT}))}, ["inputs"]),
    }
