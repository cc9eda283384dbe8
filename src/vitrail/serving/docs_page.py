"""A page for people of what the OpenAPI document says; it loads nothing from elsewhere."""

from __future__ import annotations

from typing import Any

from vitrail.pages.document import document, panel, section
from vitrail.pages.markup import Markup, tag
from vitrail.serving.files import File
from vitrail.serving.openapi import WORDS, openapi
from vitrail.serving.settings import MIB, Settings

_EXAMPLES = (
    "curl -F pictures=@cat.jpg -F pictures=@dog.jpg 'http://127.0.0.1:8000/v1/predict?top=3'",
    "curl -H 'Content-Type: image/jpeg' --data-binary @cat.jpg http://127.0.0.1:8000/v1/predict",
    "curl -H 'Content-Type: application/json' -d '{\"pictures\": [\"…base64…\"]}' http://127.0.0.1:8000/v1/predict",
)


def docs_page(settings: Settings) -> File:
    """The page, for a server with these settings."""
    paths: dict[str, dict[str, Any]] = openapi(settings)["paths"]
    ours = [path for path in paths if not path.startswith("/v2") and "get" in paths[path]]
    text = document(
        "vitrail: the server's interface",
        tag("h1", "The server's interface"),
        section("start", "To begin with", None, panel(None, [tag("pre", line) for line in _EXAMPLES])),
        section(
            "pictures",
            "Send pictures",
            "As a form, as the bare file, or as base64 in JSON. Options stand in the address, the form or the JSON.",
            [_options(path, paths[path]["post"]) for path in ("/v1/predict", "/v1/embed")],
        ),
        section("facts", "Ask for facts", "The same for programs: /openapi.json", panel(None, _routes(paths, ours))),
        section(
            "v2",
            "Triton's and KServe's clients",
            "The V2 protocol, with its binary and classification extensions; /versions/N may stand after the model.",
            panel(None, _routes(paths, [path for path in paths if path.startswith("/v2") and "/versions" not in path])),
        ),
        section("limits", "Limits", "A request beyond one of them is told so.", panel(None, _table(_limits(settings)))),
        section(
            "errors",
            "Errors",
            'Every error is one line of JSON: {"error": "…"}.',
            panel(None, _table([(str(status), words) for status, words in WORDS.items()])),
        ),
    )
    return File.of(text.encode(), "docs.html")


def _options(path: str, operation: dict[str, Any]) -> Markup:
    rows = []
    for one in operation["parameters"]:
        default = one["schema"].get("default")
        words = one["description"] if default is None else f"{one['description']} (default: {str(default).lower()})"
        rows.append((one["name"], words))
    return panel(f"POST {path}: {operation['summary'].lower()}", _table(rows))


def _routes(paths: dict[str, dict[str, Any]], wanted: list[str]) -> Markup:
    rows = [(f"{m.upper()} {path}", paths[path][m]["summary"]) for path in wanted for m in paths[path]]
    return _table(rows)


def _limits(settings: Settings) -> list[tuple[str, str]]:
    return [
        (f"{settings.max_body // MIB} MiB", "a request's body, also when it is decompressed"),
        (f"{settings.max_pixels:,}", "pixels of a picture"),
        (str(settings.max_pictures), "pictures in a request"),
        (str(settings.queue), "pictures that wait"),
        (f"{settings.deadline:g} s", "to an answer"),
    ]


def _table(rows: list[tuple[str, str]]) -> Markup:
    lines = [tag("tr", tag("td", tag("code", name), style="width: 24em"), tag("td", words)) for name, words in rows]
    return tag("table", lines)
