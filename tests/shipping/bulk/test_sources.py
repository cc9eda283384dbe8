"""Whatever is named, a stream of inputs comes of it, and each can be read."""

import csv
import io
import json
import os
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.shipping.bulk.conftest import tiny
from vitrail.errors import VitrailError
from vitrail.shipping.bulk.items import Item, read_many
from vitrail.shipping.bulk.listing import Listing
from vitrail.shipping.bulk.sources import Columns, items_of


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("a.ppm", "b.PPM", "more/c.ppm", "more/d[1].ppm"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tiny(rng))
    (tmp_path / "photos" / "notes.txt").write_text("no picture")
    return tmp_path / "photos"


def paths(*sources: object, **options) -> list[str]:
    return [item.path for item in items_of([str(source) for source in sources], **options)]


def contents(items) -> list[bytes]:
    return [part if isinstance(part, bytes) else Path(part).read_bytes() for part in read_many(list(items))]


def test_files_and_folders_come_in_the_order_in_which_they_are_named(photos: Path) -> None:
    inside = [str(photos / name) for name in ("a.ppm", "b.PPM", "more/c.ppm", "more/d[1].ppm")]
    assert paths(photos / "b.PPM", photos, photos / "notes.txt") == [inside[1], *inside, str(photos / "notes.txt")]


def test_what_is_named_twice_comes_twice(photos: Path) -> None:
    assert paths(photos / "a.ppm", photos / "a.ppm") == [str(photos / "a.ppm")] * 2


def test_the_folder_here_and_names_with_file_before_them(photos: Path, monkeypatch) -> None:
    monkeypatch.chdir(photos)
    assert paths(".") == ["a.ppm", "b.PPM", "more/c.ppm", "more/d[1].ppm"]
    assert paths(f"file://{photos}/a.ppm") == [f"{photos}/a.ppm"]


def test_patterns_are_written_out_and_a_file_goes_before_a_pattern(photos: Path) -> None:
    assert paths(f"{photos}/*.ppm") == [f"{photos}/a.ppm"]
    assert paths(f"{photos}/**/[cd]*.ppm") == [f"{photos}/more/c.ppm", f"{photos}/more/d[1].ppm"]
    assert paths(f"{photos}/{{a,more/c}}.ppm") == [f"{photos}/a.ppm", f"{photos}/more/c.ppm"]
    assert paths(f"{photos}/more/d[1].ppm") == [f"{photos}/more/d[1].ppm"]
    assert paths(f"{photos}/more/d[[]1].ppm") == [f"{photos}/more/d[1].ppm"]
    assert paths(f"{photos}/mor*") == [f"{photos}/more/c.ppm", f"{photos}/more/d[1].ppm"]


def test_a_list_has_a_path_on_each_line_or_a_zero_byte_after_each() -> None:
    assert paths("-", listed=io.BytesIO(b"a.jpg\r\n\nsub/b.jpg\nlast.jpg")) == ["a.jpg", "sub/b.jpg", "last.jpg"]
    odd = [b"new\nline.jpg", b"not utf-8 \xff.jpg", b" blank .jpg"]
    assert paths("-", listed=io.BytesIO(b"\0".join(odd) + b"\0")) == [os.fsdecode(name) for name in odd]


@given(st.lists(st.binary(min_size=1).filter(lambda name: b"\0" not in name), max_size=30), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_names_in_a_list_survive(names: list[bytes], at_end: bool) -> None:
    block = b"\0".join(names) + b"\0" * at_end
    if b"\0" not in block:
        block += b"\0"
    assert paths("-", listed=io.BytesIO(block)) == [os.fsdecode(name) for name in names]


TEXT = st.text(st.characters(), max_size=8)
ITEMS = st.lists(
    st.builds(Item, TEXT, TEXT.filter(bool), TEXT, st.none() | TEXT, st.integers(0, 2**60), st.integers(-1, 2**60)),
    max_size=200,
)


@given(ITEMS, st.integers(0, 200), st.integers(0, 200))
@settings(max_examples=40, deadline=None)
def test_a_frozen_list_gives_back_any_part_of_it(tmp_path_factory, items, start, stop) -> None:
    listing = Listing.write(iter(items), tmp_path_factory.mktemp("list") / "inputs.jsonl")
    assert listing.count == len(items)
    start, stop = min(start, len(items)), min(stop, len(items))
    assert list(listing.items(start, stop)) == items[start:stop]


def write_table(path: Path, rows: list[dict[str, object]]) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            lines = csv.DictWriter(file, rows[0])
            lines.writeheader()
            lines.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_the_paths_of_a_table_are_relative_to_it_and_its_labels_come_along(photos: Path, suffix: str) -> None:
    rows = [{"number": k, "file": name, "label": label} for k, (name, label) in enumerate(
        [("more/c.ppm", "cat"), ("a.ppm", "dog"), ("more/c.ppm", "cat"), ("absent.ppm", "dog")]
    )]  # fmt: skip
    table = write_table(photos / f"table{suffix}", rows)
    found = list(items_of([str(table)]))
    assert [item.path for item in found] == [str(photos / str(row["file"])) for row in rows]
    assert [item.truth for item in found] == ["cat", "dog", "cat", "dog"]


def test_a_table_needs_no_labels_and_its_columns_can_be_named(photos: Path) -> None:
    table = write_table(photos / "table.csv", [{"where": "a.ppm", "what": "cat", "size": 3}])
    with pytest.raises(VitrailError, match="no path column under a usual name: name it with --path-column"):
        paths(table)
    assert [item.truth for item in items_of([str(table)], Columns("where"))] == [None]
    assert [item.truth for item in items_of([str(table)], Columns("where", "what"))] == ["cat"]


def pack(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return path


def test_pictures_in_shards_come_as_they_lie_with_their_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    folder = tmp_path / "shards"
    folder.mkdir()
    made = {f"{shard}-{k}": tiny(rng) for shard in range(2) for k in (2, 0, 1)}
    for shard in range(2):
        files = {}
        for k in (2, 0, 1):
            files |= {f"{shard}-{k}.ppm": made[f"{shard}-{k}"], f"{shard}-{k}.cls": b"%d" % (k % 2)}
        pack(folder / f"s-{shard}.tar", files)
    for sources in (
        [folder],
        [folder / "s-*.tar"],
        [folder / "s-{0..1}.tar"],
        [folder / "s-0.tar", folder / "s-1.tar"],
    ):
        found = list(items_of([str(source) for source in sources]))
        assert [item.path for item in found] == [f"s-{key[0]}.tar/{key}.ppm" for key in made]
        assert contents(found) == list(made.values())
        assert [item.truth for item in found] == ["0", "0", "1"] * 2


def test_a_damaged_shard_costs_its_own_pictures_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for name in ("one", "two"):
        pack(tmp_path / f"{name}.tar", {f"{name}{k}.ppm": tiny(rng) for k in range(3)})
    items = list(items_of([str(tmp_path / "one.tar"), str(tmp_path / "two.tar")]))
    os.truncate(tmp_path / "two.tar", items[4].start)
    kinds = [type(part).__name__ for part in read_many(items)]
    assert kinds == ["bytes"] * 4 + ["PictureError"] * 2


@pytest.fixture
def bucket(photos: Path):
    storage = fsspec.filesystem("memory")
    for path in photos.rglob("*"):
        if path.is_file():
            storage.pipe_file(f"/bucket/{path.relative_to(photos)}", path.read_bytes())
    yield "memory://bucket"
    storage.rm("/bucket", recursive=True)


def test_any_address_of_fsspec_is_a_source(photos: Path, bucket: str) -> None:
    inside = [photos / name for name in ("a.ppm", "b.PPM", "more/c.ppm", "more/d[1].ppm")]
    found = list(items_of([bucket]))
    assert [item.path.replace("memory:///", "memory://") for item in found] == [
        f"{bucket}/{path.relative_to(photos)}" for path in inside
    ]
    assert contents(found) == [path.read_bytes() for path in inside]
    assert contents(items_of([f"{bucket}/*.ppm"])) == [inside[0].read_bytes()]
    assert contents(items_of([f"{bucket}/more/c.ppm"])) == [inside[2].read_bytes()]
    assert contents(items_of([item.path for item in found])) == [path.read_bytes() for path in inside]


def test_a_table_and_shards_at_an_address(photos: Path, bucket: str, tmp_path: Path) -> None:
    storage = fsspec.filesystem("memory")
    storage.pipe_file("/bucket/table.csv", b"path,label\nmore/c.ppm,cat\n")
    (item,) = items_of([f"{bucket}/table.csv"])
    assert (contents([item]), item.truth) == ([(photos / "more/c.ppm").read_bytes()], "cat")
    shard = pack(tmp_path / "x.tar", {"k.ppm": (photos / "a.ppm").read_bytes()})
    storage.pipe_file("/bucket/tars/x.tar", shard.read_bytes())
    for source in (f"{bucket}/tars", f"{bucket}/tars/x.tar"):
        assert contents(items_of([source])) == [(photos / "a.ppm").read_bytes()]


def test_pictures_in_an_archive_that_fsspec_opens(photos: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(photos / "a.ppm", "in/a.ppm")
        archive.write(photos / "b.PPM", "in/b.PPM")
    expected = [(photos / "a.ppm").read_bytes(), (photos / "b.PPM").read_bytes()]
    found = list(items_of([f"zip://in::{tmp_path}/all.zip"]))
    assert contents(found) == expected
    assert contents(items_of([item.path for item in found])) == expected  # a path that is written can be given again


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_addresses_of_a_web_server_in_a_list_and_one_that_is_absent(photos: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(photos))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            base = f"http://127.0.0.1:{server.server_port}"
            listed = io.BytesIO(f"{base}/a.ppm\n{base}/absent.ppm\n{base}/more/c.ppm\n".encode())
            first, absent, last = read_many(list(items_of(["-"], listed=listed)))
            with pytest.raises(VitrailError, match=r"there is no .*absent.ppm: check the address"):
                paths(f"{base}/absent.ppm")
        finally:
            server.shutdown()
            thread.join()
    assert (first, last) == ((photos / "a.ppm").read_bytes(), (photos / "more/c.ppm").read_bytes())
    assert str(absent) == f"{base}/absent.ppm: there is no such file; check the address"


def bad_sources(photos: Path) -> dict[str, str]:
    empty = photos.parent / "empty"
    empty.mkdir()
    table = write_table(photos / "blank.csv", [{"path": " ", "label": "x"}])
    (photos / "rowless.csv").write_text("path,label\n")
    (photos / "x.tar.gz").write_bytes(b"\x1f\x8b")
    return {
        str(photos / "absent.jpg"): r"there is no .*absent.jpg: check the path",
        str(empty): r"there are no pictures in .*empty: it is searched for",
        f"{photos}/*.gif": r"nothing fits .*\*\.gif: check the pattern",
        str(table): r"blank.csv, row 2: .* is no path; correct the row",
        str(photos / "rowless.csv"): "has columns and no rows",
        str(photos / "x.tar.gz"): "compressed with gzip",
        "nosuch://bucket/a.jpg": "nosuch://bucket/a.jpg.*check the address",
        "memory://nowhere/a.jpg": "there is no memory://nowhere/a.jpg: check the address",
    }


def test_a_source_that_is_none_is_said_in_one_line(photos: Path) -> None:
    for source, words in bad_sources(photos).items():
        with pytest.raises(VitrailError, match=words) as caught:
            paths(source)
        assert "\n" not in str(caught.value)
    with pytest.raises(VitrailError, match="can be read once"):
        paths("-", "-", listed=io.BytesIO(b"a.jpg"))
