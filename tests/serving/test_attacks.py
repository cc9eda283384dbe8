"""What hostile clients send: they are told no, cut off, or not heard; the server goes on."""

import concurrent.futures
import gzip
import io
import json
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.serving.running import Process, Running, closed_after, picture, raw_connection, running, started

MIB = 2**20
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _it_goes_on(server: Running) -> Iterator[None]:
    """After every attack, and without an unexpected error."""
    yield
    assert server.post(content=picture()).status_code == 200
    assert 'status="500"' not in server.get("/metrics").text


@pytest.fixture(scope="module")
def plain(tiny: Path) -> Iterator[Process]:
    """A server without what a plain installation has not: the quick parser and the quick loop."""
    with started(tiny, without=("httptools", "uvloop")) as one:
        yield one


def talk(port: int, *parts: bytes, limit: float = 20) -> bytes:
    """Sends bytes and reads the answer, also when the other side closes while it is sent to."""
    with raw_connection(port) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return closed_after(connection, limit)[1]


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


HEAD = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/octet-stream\r\n"


def test_a_body_that_says_it_is_too_long_is_refused_before_it_is_sent(server: Running) -> None:
    answer = talk(server.port, HEAD + b"content-length: 99999999999\r\nexpect: 100-continue\r\n\r\n")
    assert status(answer) == 413
    assert b"100 Continue" not in answer


def test_a_body_that_is_too_long_is_refused_and_the_client_reads_why(server: Running) -> None:
    answer = server.post(content=bytes(33 * MIB))
    assert answer.status_code == 413
    assert "longer than 33,554,432 bytes" in answer.json()["error"]


def test_chunks_without_end_are_refused(server: Running) -> None:
    chunk = b"10000\r\n" + bytes(65536) + b"\r\n"
    answer = talk(server.port, HEAD + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 600)
    assert status(answer) == 413


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "gzip, gzip"])
def test_a_compressed_bomb_is_refused(encoding: str, server: Running) -> None:
    data = bytes(200 * MIB)
    small = zlib.compress(data, 1) if encoding == "deflate" else gzip.compress(data, 1)
    if encoding == "gzip, gzip":
        small = gzip.compress(small)
    answer = server.post(content=small, headers={"content-encoding": encoding})
    assert answer.status_code == 413


def png_of(width: int, height: int) -> bytes:
    """A few bytes that promise so many pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes(10 * MIB), 9)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", rows) + part(b"IEND", b"")


@pytest.mark.parametrize("size", [(12_000, 12_000), (2**31 - 1, 2**31 - 1), (64_000_001, 1), (1, 8000)])
def test_pictures_of_too_many_pixels_cost_nothing(size: tuple[int, int], server: Running) -> None:
    began = time.monotonic()
    answer = server.post(content=png_of(*size))
    assert answer.status_code in (200, 400)
    assert answer.status_code == 400 or size == (1, 8000)
    assert time.monotonic() - began < 3


def test_a_gif_of_many_frames_costs_one(server: Running) -> None:
    page = io.BytesIO()
    frames = [Image.new("L", (1000, 1000), i) for i in range(20)]
    frames[0].save(page, "GIF", save_all=True, append_images=frames[1:])
    began = time.monotonic()
    assert server.post(content=page.getvalue()).status_code == 200
    assert time.monotonic() - began < 3


def dribble(port: int, first: bytes, then: bytes, limit: float = 15) -> float:
    """Seconds until a client that sends a byte every half second is cut off."""
    began = time.monotonic()
    with raw_connection(port) as connection:
        connection.sendall(first)
        connection.settimeout(0.5)
        while time.monotonic() - began < limit:
            try:
                if not connection.recv(65536):
                    break
            except TimeoutError:
                pass
            except ConnectionResetError:
                break
            try:
                connection.sendall(then)
            except (BrokenPipeError, ConnectionResetError):
                break
    return time.monotonic() - began


def slowest(port: int) -> float:
    """The longest that one of these attacks lasts, all at once."""
    attacks = {
        "silent": (b"", b""),
        "headers": (b"POST /v1/predict HTTP/1.1\r\nhost: x\r\n", b"x-a: b\r\n"),
        "a header": (b"GET / HTTP/1.1\r\nx-long: ", b"a"),
        "body": (HEAD + b"content-length: 100000\r\n\r\n", b"a"),
        "chunks": (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
        "second request": (b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /heal", b"t"),
        "body after the answer": (b"POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n", b"a"),
    }
    with concurrent.futures.ThreadPoolExecutor(len(attacks)) as pool:
        return max(pool.map(lambda pair: dribble(port, *pair), attacks.values()))


def test_slow_clients_are_cut_off_within_15_seconds(server: Running, plain: Process) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert max(pool.map(slowest, [server.port, plain.port])) < 15


def test_chunks_and_long_bodies_are_refused_without_the_quick_parser_too(plain: Process) -> None:
    data = picture()
    length = b"content-length: %d\r\n\r\n" % len(data)
    assert talk(plain.port, HEAD + length + data + HEAD + length + data, limit=1).count(b"HTTP/1.1 200") == 2
    assert status(talk(plain.port, HEAD + b"content-length: 99999999999\r\n\r\n", limit=1)) == 413
    chunk = b"10000\r\n" + bytes(65536) + b"\r\n"
    assert status(talk(plain.port, HEAD + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 600)) == 413


def test_a_body_whose_answer_was_given_before_it_came_is_thrown_away(server: Running, plain: Process) -> None:
    early = b"POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n" + bytes(300_000)
    data = picture()
    for port in (server.port, plain.port):
        answers = talk(port, early, HEAD + b"content-length: %d\r\n\r\n" % len(data) + data, limit=1)
        assert b"HTTP/1.1 404" in answers
        assert b"HTTP/1.1 200" in answers


@pytest.mark.parametrize("without", [(), ("httptools",)], ids=["quick", "plain"])
def test_the_end_of_such_a_body_is_not_taken_for_headers(without: tuple[str, ...]) -> None:
    """Where the server had other things to do, all that is left of it arrives in one piece."""
    script = (
        f"import sys\nsys.modules.update(dict.fromkeys({without!r}))\n"
        "from tests.serving.receiving import received\n"
        "head = b'POST / HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: 300000\\r\\n\\r\\n'\n"
        "again = b'GET / HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n'\n"
        "print(received(head + bytes(100_000), bytes(200_000), again))\n"
        "print(received(head + bytes(100_000), bytes(200_000), bytes(70_000)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    answered, refused = done.stdout.splitlines()
    assert answered.count("HTTP/1.1 404") == 2
    assert "431" not in answered
    assert refused.count("HTTP/1.1 404") == 1
    assert "HTTP/1.1 431" in refused or "HTTP/1.1 400" in refused


def test_a_client_that_does_not_read_is_cut_off(tiny: Path) -> None:
    with running(tiny, header_seconds=1.0, keep_alive=1.0) as server, raw_connection(server.port) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = b"GET /docs HTTP/1.1\r\nhost: x\r\n\r\n"
        connection.settimeout(1)
        try:
            for _ in range(2000):
                connection.sendall(request * 10)
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
        began = time.monotonic()
        while "vitrail_connections 1.0" not in server.get("/metrics").text:  # only the one that asks
            assert time.monotonic() - began < 15
            time.sleep(0.2)


def test_headers_without_end_are_refused(server: Running) -> None:
    lines = b"".join(b"x-%d: %s\r\n" % (i, b"a" * 1000) for i in range(300))
    answer = talk(server.port, b"GET / HTTP/1.1\r\nhost: x\r\n", *[lines] * 5)
    assert answer == b"" or status(answer) in (400, 431)


def test_connections_beyond_the_limit_are_told(tiny: Path) -> None:
    with running(tiny, max_connections=5, header_seconds=2) as server:
        held = [raw_connection(server.port) for _ in range(5)]
        time.sleep(0.1)
        assert status(talk(server.port)) == 503
        for connection in held:
            connection.close()
        time.sleep(0.1)
        assert server.get("/healthz").status_code == 200


def test_too_many_bytes_at_once_are_refused(tiny: Path) -> None:
    with running(tiny, max_body=4 * MIB, max_held=6 * MIB) as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            statuses = set(pool.map(lambda _: server.post(content=bytes(3 * MIB)).status_code, range(16)))
        assert statuses <= {400, 503}
        began = time.monotonic()
        while "vitrail_held_bytes 0.0" not in server.get("/metrics").text:  # once the last of them has come to its end
            assert time.monotonic() - began < 10


PATHS = [
    "../../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "....//etc/passwd",
    "/etc/passwd",
]
PATHS += [
    "..%5c..%5cetc",
    "%00",
    "a%00.png",
    "file:///etc/passwd",
    "http:%2f%2f127.0.0.1",
    "~root",
    "\xff".encode().hex(),
]
ROUTES = ["/", "/page/", "/v1/examples/", "/v2/models/", "/v2/models/tiny/versions/", "/docs/", "/v1/"]


@pytest.mark.parametrize("route", ROUTES)
def test_no_path_leads_out(route: str, server: Running) -> None:
    for path in PATHS:
        for method in (b"GET", b"POST"):
            request = method + b" " + (route + path).encode() + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            answer = talk(server.port, request)
            assert status(answer) in (400, 404, 405, 411), answer
            assert b"root:" not in answer


@pytest.mark.parametrize("name", ["/etc/passwd", "../../etc/passwd", "http://127.0.0.1/a.png", "file:///etc/passwd"])
def test_no_name_is_opened_and_no_address_fetched(name: str, server: Running) -> None:
    assert server.post(f"/v1/predict?model={name}", content=picture()).status_code == 404
    assert server.post(json={"pictures": [name]}).status_code == 400
    assert server.post(json={"pictures": [{"url": name}]}).status_code == 400
    row = server.post(files=[("pictures", (name, picture()))]).json()["predictions"][0]
    assert "error" not in row  # only a name
    answer = server.post(
        f"/v2/repository/models/{name.replace('/', '%2F')}/load", json={"parameters": {"config": name}}
    )
    assert answer.status_code == 404


def test_names_and_options_come_back_harmless(server: Running) -> None:
    name = "a\r\nset-cookie: x=1\x1b[31m\ud800‮.png"
    content = json.dumps({"pictures": [{"data": "aaaa", "name": name}]})  # in ASCII, which allows half a character
    answer = server.post(content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "\x1b" not in answer.text
    assert "set-cookie" not in answer.headers
    assert server.get("/v1/model?model=%0d%0aset-cookie:%20a").status_code == 404


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\naaaaaa",
        HEAD + b"content-length: -5\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"transfer-encoding: gzip\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET http://127.0.0.1:22/ HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
def test_strange_http_is_refused(request_: bytes, server: Running) -> None:
    answer = talk(server.port, request_ + b"\r\n", limit=1)
    assert answer == b"" or 200 <= status(answer) < 500
    assert b"Traceback" not in answer


def test_all_that_is_loaded_comes_from_the_server_itself(server: Running) -> None:
    answer = server.get("/docs")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "http://" not in answer.text.replace("http://127.0.0.1:8000", "")
    assert "https://" not in answer.text
    assert httpx.URL(server.url).host == "127.0.0.1"
