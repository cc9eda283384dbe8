"""From the bytes of a request to pictures that are not decoded yet, and options: multipart, JSON or the bare file."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from vitrail.pictures.sources import printable
from vitrail.serving.refusals import RefusalError, bad

_LONGEST_FIELD = 65536  # bytes of a form field that is no file
_MOST_PARTS = 64  # fields of a form, besides its pictures
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 47}  # zlib's codes of the two formats; 47 knows both by their heads


@dataclass(frozen=True)
class Upload:
    """A picture as it came."""

    name: str
    data: bytes


@dataclass
class Body:
    """What a request holds."""

    uploads: list[Upload] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)  # texts, or what JSON has


def inflate(data: bytes, encoding: str, max_body: int) -> bytes:
    """The body without its Content-Encoding, never longer than `max_body`."""
    for name in reversed([part.strip().lower() for part in encoding.split(",")]):
        if name in ("", "identity"):
            continue
        if name not in _WINDOWS:
            raise RefusalError(415, f"Content-Encoding {printable(name)!r} is not known: use gzip, deflate or none")
        data = _inflated(data, name, max_body)
    return data


def _inflated(data: bytes, name: str, max_body: int) -> bytes:
    machine = zlib.decompressobj(_WINDOWS[name])
    try:
        if name == "deflate" and data[:1] and data[0] & 0x0F != 8:
            machine = zlib.decompressobj(-15)  # some send it without zlib's head
        plain = machine.decompress(data, max_body + 1)
    except zlib.error as error:
        raise bad(f"the body is not {name}: {error}") from None
    if len(plain) > max_body:
        raise too_long(max_body)
    if not machine.eof:
        raise bad(f"the {name} body is truncated")
    if machine.unused_data:
        raise bad(f"the {name} body goes on after its end")
    return plain


async def whole(stream: AsyncIterator[bytes]) -> bytes:
    """All of a body. The request keeps no copy, so that it is gone once its pictures are decoded."""
    return b"".join([part async for part in stream])


def too_long(max_body: int) -> RefusalError:
    return RefusalError(413, f"the body is longer than {max_body:,} bytes", reason="body")


def read_body(content_type: str, data: bytes, max_pictures: int) -> Body:
    """What a body holds, by its Content-Type. A bare picture may come as any image/* or as octets."""
    kind, options = parse_options_header(content_type or "application/octet-stream")
    if kind == b"multipart/form-data":
        body = _multipart(data, options.get(b"boundary", b""), max_pictures)
    elif kind == b"application/json":
        body = _json(data)
    elif kind.startswith(b"image/") or kind in (b"application/octet-stream", b"application/x-www-form-urlencoded"):
        body = Body([Upload("picture", data)] if data else [])  # curl --data-binary says it is a form
    else:
        raise RefusalError(
            415, f"Content-Type {printable(content_type)!r} is not known: use multipart/form-data, JSON or image/*"
        )
    if not body.uploads:
        raise bad("there is no picture in the request")
    if len(body.uploads) > max_pictures:
        raise RefusalError(413, f"there are more than {max_pictures} pictures in the request", reason="pictures")
    return body


class _Parts:
    """Collects the parts of a form: those with a file name are pictures, the others options."""

    def __init__(self, max_pictures: int) -> None:
        self.body = Body()
        self._most = max_pictures
        self._header = b""
        self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self._begin,
            "on_part_data": lambda data, start, end: self._pieces.append(data[start:end]),
            "on_part_end": self._end,
            "on_header_field": self._add_header,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
        }

    def _begin(self) -> None:
        self._headers, self._pieces = {}, []

    def _add_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        data = b"".join(self._pieces)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            file = options[b"filename"].decode("utf-8", "replace")
            self.body.uploads.append(Upload(file or name, data))
            if len(self.body.uploads) > self._most:
                raise RefusalError(413, f"there are more than {self._most} pictures in the request", reason="pictures")
            return
        if len(data) > _LONGEST_FIELD or len(self.body.options) >= _MOST_PARTS:
            raise bad("a form has short fields, and few: a picture is a part with a file name")
        self.body.options[name] = data.decode("utf-8", "replace")


def _multipart(data: bytes, boundary: bytes, max_pictures: int) -> Body:
    if not boundary:
        raise bad("the form has no boundary in its Content-Type")
    parts = _Parts(max_pictures)
    try:
        parser = MultipartParser(boundary, parts.callbacks())  # type: ignore[arg-type]
        parser.write(data)
        parser.finalize()
    except FormParserError as error:
        raise bad(f"the form cannot be read: {printable(error)}") from None
    return parts.body


def parse_json(data: bytes | memoryview) -> dict[str, Any]:
    """A JSON object, or a refusal."""
    try:
        content = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise bad(f"the JSON cannot be read: {printable(error)}") from None
    if not isinstance(content, dict):
        raise bad("the JSON is not an object")
    return content


def _json(data: bytes) -> Body:
    options = parse_json(data)
    given = options.pop("pictures", None)
    if given is None and "picture" in options:
        given = [options.pop("picture")]
    if not isinstance(given, list):
        raise bad('the JSON has no list "pictures" (of base64 texts, or objects with "data" and "name")')
    return Body([_upload(number, one) for number, one in enumerate(given)], options)


def _upload(number: int, given: Any) -> Upload:
    name: Any = f"picture {number}"
    if isinstance(given, Mapping):
        name = given.get("name", name)
        given = given.get("data")
    if not isinstance(given, str) or not isinstance(name, str):
        raise bad(f'picture {number} is neither a base64 text nor an object with "data" and "name"')
    return Upload(name, from_base64(given, f"picture {number}"))


def from_base64(text: str, name: str) -> bytes:
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise bad(f"{name} is not base64") from None
