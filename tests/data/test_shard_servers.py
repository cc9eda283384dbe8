"""Tar shards on servers and in buckets: ranged requests, few of them."""

import multiprocessing
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest

from tests.data.shard_making import labels, read_in_child, scans, write_tar
from vitrail.data import shard_files
from vitrail.data.shards import from_shards, make_index
from vitrail.errors import DataError

pytestmark = pytest.mark.usefixtures("own_cache")


class Served(BaseHTTPRequestHandler):
    """A file server with ranged reads, which Python's own has not."""

    protocol_version = "HTTP/1.1"
    root: Path
    requests: list[tuple[str, str, int]]
    failures = 0
    ranged = True

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = self.root / self.path.lstrip("/")
        data = path.read_bytes() if path.is_file() else None
        span = self.headers.get("Range")
        status = 200
        if data is None:
            status, data = 404, b"no"
        elif body and type(self).failures:
            type(self).failures -= 1
            status, data = 503, b"busy"
        elif span and self.ranged:
            low, high = span.removeprefix("bytes=").split("-")
            status, data = 206, data[int(low) : int(high) + 1]
        if body:
            self.requests.append((self.path, span or "", len(data)))
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, type[Served]]]:
    handler = type("Handler", (Served,), {"root": tmp_path, "requests": []})
    serving = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving.daemon_threads = True
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}", handler
    serving.shutdown()
    serving.server_close()
    thread.join()


def test_shards_on_a_server_are_read_in_few_ranged_requests(shards: Path, server, tmp_path: Path) -> None:
    address, handler = server
    pattern = f"{address}/shards/train-{{0000..0002}}.tar"
    source = from_shards(pattern)
    local = from_shards(shards)
    assert list(source.samples.names) == list(local.samples.names)
    assert labels(source) == labels(local)
    handler.requests.clear()
    rows = list(range(len(source)))
    assert source.reader.read_many(rows) == local.reader.read_many(rows)
    assert len(handler.requests) == 3  # one for each shard
    assert all(span for _, span, _ in handler.requests)
    handler.requests.clear()
    make = from_shards(pattern)  # its index is in the cache, or beside the shards
    assert len(make) == len(source)
    assert not [path for path, _, _ in handler.requests if path.endswith(".tar")]


def test_indexing_on_a_server_skips_large_data_and_gathers_small(server, tmp_path: Path) -> None:
    address, handler = server
    write_tar(tmp_path / "large.tar", {f"{k}.tif": bytes(3 * 2**20) for k in range(8)})
    make_index(f"{address}/large.tar")
    assert sum(length for _, _, length in handler.requests) < 2**20
    handler.requests.clear()
    write_tar(tmp_path / "small.tar", {f"{k}.jpg": bytes(2000) for k in range(4000)})  # 10 MB
    make_index(f"{address}/small.tar")
    assert len([1 for path, _, _ in handler.requests if path == "/small.tar"]) <= 5


def test_a_request_that_fails_is_made_again_and_then_named(server, tmp_path: Path, monkeypatch) -> None:
    address, handler = server
    monkeypatch.setattr(shard_files, "_PAUSES", (0.01, 0.01))
    write_tar(tmp_path / "x.tar", {"a.jpg": b"picture"})
    source = from_shards(f"{address}/x.tar")
    handler.failures = 2
    assert source.reader.read_many([0]) == [b"picture"]
    handler.failures = 10
    with pytest.raises(DataError, match=r"x\.tar: cannot be read .*503"):
        source.reader.read_many([0])
    handler.failures = 0
    handler.ranged = False
    with pytest.raises(DataError, match="sends the whole file"):
        source.reader.read_many([0])
    (tmp_path / "x.tar").unlink()
    with pytest.raises(DataError, match="there is no such shard"):
        source.reader.read_many([0])


def test_a_forked_child_reads_from_a_server_too(shards: Path, server) -> None:
    source = from_shards(f"{server[0]}/shards/train-{{0000..0002}}.tar")
    truth = source.reader.read_many(range(len(source)))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=read_in_child, args=(source, 3, answers))
    child.start()
    rows, found = answers.get(timeout=30)
    child.join()
    assert found == [truth[row] for row in rows]


def test_a_bucket_is_a_source_like_a_folder(shards: Path, tmp_path: Path) -> None:
    bucket = fsspec.filesystem("memory")
    for path in shards.glob("*.tar"):
        bucket.pipe_file(f"/bucket/set/{path.name}", path.read_bytes())
    local = from_shards(shards)
    for address in ("memory://bucket/set", "memory://bucket/set/*.tar", "memory://bucket/set/train-{0000..0002}.tar"):
        source = from_shards(address)
        assert list(source.samples.names) == list(local.samples.names)
        assert source.reader.read_many(range(50)) == local.reader.read_many(range(50))
    assert make_index("memory://bucket/set").is_relative_to(tmp_path / "cache")
    assert not bucket.exists("/bucket/set/vitrail-index.npz")
    bucket.rm("/bucket", recursive=True)


def test_an_index_that_was_uploaded_with_its_shards_is_used(shards: Path, monkeypatch) -> None:
    make_index(shards)
    calls = scans(monkeypatch)
    bucket = fsspec.filesystem("memory")
    for path in shards.iterdir():
        bucket.pipe_file(f"/bucket/set/{path.name}", path.read_bytes())
    assert len(from_shards("memory://bucket/set")) == 120
    assert not calls
    bucket.rm("/bucket", recursive=True)


def test_an_empty_member_is_an_empty_picture_and_harms_no_other(server, tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", {"a.jpg": b"", "b.jpg": b"picture"})
    for address in (tmp_path / "x.tar", f"{server[0]}/x.tar"):
        reader = from_shards(address).reader
        assert reader.read_many([1, 0]) == [b"picture", b""]
        assert reader.read_many([0]) == [b""]
