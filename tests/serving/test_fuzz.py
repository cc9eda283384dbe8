"""Requests that nobody would think of: from the OpenAPI document by schemathesis, and bytes by a seeded fuzzer."""

import base64
import concurrent.futures
import gzip
import json
import random
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.serving.running import Running, picture, raw_connection
from vitrail.serving.openapi import openapi
from vitrail.serving.settings import Settings

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = {
    f"{method.upper()} {path}": (path, method)
    for path, methods in openapi(Settings())["paths"].items()
    for method in methods
}


def examine(server: Running, operation: str, count: int) -> None:
    """Sends what the document allows, and what it nearly allows, and looks at the answers."""
    path, method = OPERATIONS[operation]
    document = schemathesis.openapi.from_dict(server.get("/openapi.json").json())
    document.config.update(base_url=server.url)

    @given(case=document[path][method].as_strategy())
    @settings(
        max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
    )
    def look(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKS)

    look()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_the_document_allows_is_answered_as_it_says(operation: str, server: Running) -> None:
    examine(server, operation, 3)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_same_at_length(operation: str, server: Running) -> None:
    examine(server, operation, 500)


def seeds() -> list[tuple[str, bytes]]:
    """Requests that are right: what stands before the length, and the body."""
    small = picture(0, (8, 8))
    coded = base64.b64encode(small).decode()
    form = b'--b\r\nContent-Disposition: form-data; name="p"; filename="a.png"\r\n\r\n' + small
    form += b'\r\n--b\r\nContent-Disposition: form-data; name="top"\r\n\r\n3\r\n--b--\r\n'
    tensor = {"name": "pixels", "datatype": "UINT8", "shape": [1, 32, 32, 3], "parameters": {"binary_data_size": 3072}}
    head = json.dumps(
        {"inputs": [tensor], "outputs": [{"name": "logits", "parameters": {"binary_data": True}}]}
    ).encode()
    numbers = {"name": "pixels", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1]}
    listed = json.dumps({"pictures": [coded, {"name": "a", "data": coded}], "top": 2, "drop": [1], "attention": True})
    return [
        ("POST /v1/predict?top=3&attention=true&layers=0 HTTP/1.1\r\nContent-Type: image/png", small),
        ("POST /v1/predict HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=b", form),
        ("POST /v1/predict HTTP/1.1\r\nContent-Type: application/json", listed.encode()),
        ("POST /v1/predict HTTP/1.1\r\nContent-Encoding: gzip", gzip.compress(small)),
        ("POST /v1/embed HTTP/1.1\r\nContent-Type: application/octet-stream", small),
        (f"POST /v2/models/tiny/infer HTTP/1.1\r\nInference-Header-Content-Length: {len(head)}", head + bytes(3072)),
        ("POST /v2/models/tiny/versions/1/infer HTTP/1.1", json.dumps({"inputs": [numbers]}).encode()),
        ("GET /v1/model?model=tiny HTTP/1.1", b""),
        ("GET /v1/examples/a_small%20cat.png HTTP/1.1", b""),
        ("POST /v1/predict HTTP/1.1\r\nTransfer-Encoding: chunked", b"5\r\nabcde\r\n0\r\n\r\n"),
    ]


def fuzzed(rng: random.Random) -> bytes:
    """A request of which the body is changed, or anything."""
    head, body = rng.choice(seeds())
    whole = rng.random() < 0.3
    if not whole and body:
        body = mutated(body, rng)
    length = "" if "chunked" in head else f"Content-Length: {len(body)}\r\n"
    data = f"{head}\r\nHost: x\r\n{length}\r\n".encode() + body
    return mutated(data, rng) if whole else data


WORDS = [
    b"\r\n\r\n",
    b"\x00",
    b"\xff" * 9,
    b"-1",
    b"99999999999999999999",
    b"%s%n",
    b"../",
    b"{" * 99,
    b'"',
    b"NaN",
    b"1e999",
]
WORDS += [
    b"Content-Encoding: gzip\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"\r\n",
    b"null",
    b"[]",
]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few changes: bytes flipped, cut, doubled, words put in."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(found) + 1)
        kind = rng.randrange(5)
        if kind == 0 and found:
            found[at % len(found)] = rng.randrange(256)
        elif kind == 1:
            found[at:at] = rng.choice(WORDS)
        elif kind == 2:
            del found[at : at + rng.randint(1, 40)]
        elif kind == 3:
            found[at:at] = found[at : at + rng.randint(1, 60)]
        else:
            found[at : at + 1] = rng.randbytes(rng.randint(1, 8))
    return bytes(found)


def answer_to(port: int, data: bytes) -> bytes:
    """The first bytes of what the server says; nothing, if it waits for more."""
    with raw_connection(port, 0.5) as connection:
        try:
            connection.sendall(data)
            return connection.recv(65536)
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            return b""


def fuzz(server: Running, count: int) -> Counter[bytes]:
    def one(seed: int) -> bytes:
        data = fuzzed(random.Random(seed))
        said = answer_to(server.port, data)
        assert said[9:12] not in (b"500", b"501", b"502"), (data, said[:500])
        return said[9:12]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return Counter(pool.map(one, range(count)))


def test_bytes_of_all_kinds_crash_nothing(server: Running) -> None:
    statuses = fuzz(server, 150)
    assert statuses[b"200"] > 5
    assert statuses[b"400"] > 5
    assert server.post(content=picture()).status_code == 200
    assert 'status="500"' not in server.get("/metrics").text


@pytest.mark.slow
def test_ten_thousand_fuzzed_requests_crash_nothing(server: Running) -> None:
    print(fuzz(server, 10_000))
    assert server.post(content=picture()).status_code == 200
    assert 'status="500"' not in server.get("/metrics").text
