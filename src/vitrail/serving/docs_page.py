"""A page for people of what the OpenAPI document says; it loads nothing from elsewhere."""

from __future__ import annotations

from typing import Any

from vitrail.pages.document import document, panel, section
from vitrail.pages.markup import Markup, tag
from vitrail.serving.files import File
from vitrail.serving.openapi import WORDS, openapi
from vitrail.serving.settings import MIB, Settings

_EXAMPLE = """curl -F pictures=@cat.jpg 'http://127.0.0.1:8000/v1/predict?top=3'
curl -H 'Content-Type: image/jpeg' --data-binary @cat.jpg http://127.0.0.1:8000/v1/predict
curl http://127.0.0.1:8000/v1/model"""


def docs_page(settings: Settings) -> File:
    """The page, for a server with these settings."""
    found = openapi(settings)
    rows = [
        panel(f"{method.upper()} {path}", *_operation(operation))
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
    ]
    limits = {
        "bytes of a body, also when it is decompressed": f"{settings.max_body // MIB} MiB",
        "pixels of a picture": f"{settings.max_pixels:,}",
        "pictures in a request": str(settings.max_pictures),
        "pictures that wait": str(settings.queue),
        "seconds to an answer": f"{settings.deadline:g}",
    }
    text = document(
        "vitrail: the server's interface",
        tag("h1", "The server's interface"),
        section("start", "To begin with", None, tag("pre", _EXAMPLE)),
        section("routes", "Routes", "The same for programs: /openapi.json", *rows),
        section("limits", "Limits", "A request beyond one of them is told so.", _table(limits)),
        section("errors", "Errors", 'Every error is one line of JSON, {"error": "…"}.', _table(_statuses())),
    )
    return File.of(text.encode(), "docs.html")


def _operation(operation: dict[str, Any]) -> list[Markup]:
    found = [tag("p", operation["summary"])]
    if operation.get("requestBody"):
        found.append(tag("p", "Body: " + ", ".join(operation["requestBody"]["content"])))
    parameters = {one["name"]: one.get("description", "") for one in operation.get("parameters", [])}
    return [*found, _table(parameters)] if parameters else found


def _statuses() -> dict[str, str]:
    return {str(status): words for status, words in WORDS.items()}


def _table(rows: dict[str, str]) -> Markup:
    return tag("table", [tag("tr", tag("th", name), tag("td", words)) for name, words in rows.items()])
