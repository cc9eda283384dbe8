"""Tensors of the V2 protocol: as JSON lists, or as bytes after the JSON (the binary tensor data extension)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.serving.bodies import from_base64
from vitrail.serving.refusals import bad

TYPES: dict[str, np.dtype[Any]] = {"UINT8": np.dtype("<u1"), "FP32": np.dtype("<f4")}
Pictures = list[bytes]


class Binary:
    """The bytes after the JSON, taken from the front by one tensor after another."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def take(self, count: Any) -> memoryview:
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= len(self._data) - self._at:
            raise bad("binary_data_size is more than the body has")
        self._at += count
        return self._data[self._at - count : self._at]

    def check_end(self) -> None:
        if self._at != len(self._data):
            raise bad(f"{len(self._data) - self._at} bytes of the body belong to no tensor")


def read_tensor(given: Any, binary: Binary) -> tuple[str, NDArray[Any] | Pictures]:
    """Name and content of an input: numbers, or for BYTES the files of pictures."""
    if not isinstance(given, Mapping):
        raise bad("an input is an object with name, datatype, shape and data")
    name, kind, shape = given.get("name"), given.get("datatype"), given.get("shape")
    if not isinstance(name, str) or not isinstance(shape, list) or not _is_shape(shape):
        raise bad("an input needs a name and a shape of whole numbers")
    parameters = given.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise bad("parameters are an object")
    size = parameters.get("binary_data_size")
    if kind == "BYTES":
        return name, _pictures(given.get("data"), None if size is None else binary.take(size), math.prod(shape))
    if not isinstance(kind, str) or kind not in TYPES:
        raise bad(f"the datatype of an input is one of BYTES, {', '.join(TYPES)}")
    return name, _numbers(given.get("data"), None if size is None else binary.take(size), TYPES[kind], shape)


def _is_shape(shape: list[Any]) -> bool:
    whole = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**31 for n in shape)
    return whole and len(shape) <= 8 and math.prod(shape) < 2**31


def _numbers(data: Any, raw: memoryview | None, kind: np.dtype[Any], shape: list[int]) -> NDArray[Any]:
    if raw is not None:
        if len(raw) != math.prod(shape) * kind.itemsize:
            raise bad(f"{len(raw)} bytes do not make {kind.name} of {tuple(shape)}")
        return np.frombuffer(raw, kind).reshape(shape)
    if not isinstance(data, list):
        raise bad("an input has either data, or binary_data_size and its bytes after the JSON")
    try:
        with np.errstate(all="raise"):
            numbers = np.array(data, np.float64 if kind.kind == "f" else np.int64).reshape(shape)
        if kind.kind == "u" and numbers.size and (numbers.min() < 0 or numbers.max() > 255):
            raise bad("UINT8 is from 0 to 255")
        return numbers.astype(kind)
    except (ValueError, TypeError, OverflowError, FloatingPointError, RecursionError):
        raise bad(f"the data do not make {kind.name} of {tuple(shape)}") from None


def _pictures(data: Any, raw: memoryview | None, count: int) -> Pictures:
    """Files of pictures: each after its length in the binary form, as base64 in JSON."""
    if raw is None:
        if not isinstance(data, list) or not all(isinstance(text, str) for text in data):
            raise bad("BYTES in JSON are a list of base64 texts")
        found = [from_base64(text, f"picture {i}") for i, text in enumerate(data)]
    else:
        found, at = [], 0
        while at < len(raw):
            if at + 4 > len(raw):
                raise bad("BYTES end within a length")
            (length,) = struct.unpack_from("<I", raw, at)
            if at + 4 + length > len(raw):
                raise bad("BYTES end within an element")
            found.append(bytes(raw[at + 4 : at + 4 + length]))
            at += 4 + length
    if len(found) != count:
        raise bad(f"there are {len(found)} elements, and the shape says {count}")
    return found


def write_tensor(name: str, values: NDArray[Any] | list[list[str]], binary: bool) -> tuple[dict[str, Any], bytes]:
    """An output as the protocol has it, and its bytes after the JSON."""
    if isinstance(values, list):
        head = {"name": name, "datatype": "BYTES", "shape": [len(values), len(values[0]) if values else 0]}
        texts = [text for row in values for text in row]
        if not binary:
            return {**head, "data": texts}, b""
        raw = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    else:
        head = {"name": name, "datatype": "FP32", "shape": list(values.shape)}
        if not binary:
            return {**head, "data": values.astype(np.float64).ravel().tolist()}, b""
        raw = np.ascontiguousarray(values, "<f4").tobytes()
    return {**head, "parameters": {"binary_data_size": len(raw)}}, raw
