"""Files that are shown: the page and the examples. All are read when the server starts; a request opens none."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from vitrail.errors import VitrailError
from vitrail.pictures.sources import printable

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
}
_PICTURES = (".jpg", ".jpeg", ".png", ".webp")
_MOST_EXAMPLES = 32
_LARGEST_EXAMPLE = 4 * 2**20
SAFE_PAGE = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; style-src 'self' 'unsafe-inline'; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class File:
    """A file in memory, with what a browser is told about it."""

    data: bytes
    media_type: str
    mark: str

    @classmethod
    def of(cls, data: bytes, name: str) -> File:
        kind = _TYPES.get(Path(name).suffix.lower(), "application/octet-stream")
        return cls(data, kind, f'"{hashlib.sha256(data).hexdigest()[:32]}"')

    def response(self, known: str | None) -> Response:
        headers = {"etag": self.mark, "cache-control": "no-cache"}
        if known is not None and self.mark in known:
            return Response(status_code=304, headers=headers)
        if self.media_type.startswith("text/html"):
            headers["content-security-policy"] = SAFE_PAGE
        return Response(self.data, headers={**headers, "content-type": self.media_type})


def page_files() -> dict[str, File]:
    """The page by the paths under which it is served."""
    return dict(_walked(resources.files("vitrail.serving").joinpath("page"), ""))


def _walked(folder: Traversable, before: str) -> list[tuple[str, File]]:
    if not folder.is_dir():
        return []
    found: list[tuple[str, File]] = []
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            found += _walked(entry, f"{before}{entry.name}/")
        elif Path(entry.name).suffix in _TYPES:
            found.append((before + entry.name, File.of(entry.read_bytes(), entry.name)))
    return found


class Examples:
    """Pictures to try the model on: a folder's, or those that come with the package."""

    def __init__(self, folder: Path | None) -> None:
        place: Traversable = folder or resources.files("vitrail").joinpath("assets", "pictures")
        if folder is not None and not folder.is_dir():
            raise VitrailError(f"there is no folder {folder} of examples")
        self._files: dict[str, File] = {}
        entries = sorted(place.iterdir(), key=lambda one: one.name) if place.is_dir() else []
        for entry in entries:
            if Path(entry.name).suffix.lower() not in _PICTURES or not entry.is_file():
                continue
            data = entry.read_bytes()
            if len(data) <= _LARGEST_EXAMPLE and len(self._files) < _MOST_EXAMPLES:
                self._files[entry.name] = File.of(data, entry.name)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "title": _title(name), "url": f"/v1/examples/{quote(name)}", "bytes": len(file.data)}
            for name, file in self._files.items()
        ]

    def find(self, name: str) -> File | None:
        return self._files.get(name)


def _title(name: str) -> str:
    return printable(Path(name).stem.replace("_", " ").replace("-", " "))
