"""The index of a set of shards: made once, made again when something changed."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.shard_making import scans, write_tar
from vitrail.data.shard_index import Index
from vitrail.data.shards import from_shards, make_index

pytestmark = pytest.mark.usefixtures("own_cache")


def test_the_index_is_made_once_and_again_when_a_shard_changes(shards: Path, monkeypatch) -> None:
    calls = scans(monkeypatch)
    first = from_shards(shards)
    assert (shards / "vitrail-index.npz").is_file()
    again = from_shards(shards)
    assert len(calls) == 1
    assert list(again.samples.names) == list(first.samples.names)
    assert np.array_equal(again.samples.labels, first.samples.labels)
    assert again.reader.read_many([5, 3]) == first.reader.read_many([5, 3])
    write_tar(shards / "train-0003.tar", {"new.jpg": b"new"})
    assert len(from_shards(shards)) == len(first) + 1
    (shards / "train-0003.tar").unlink()
    assert len(from_shards(shards)) == len(first)
    same_length = shards / "train-0001.tar"
    same_length.write_bytes((shards / "train-0000.tar").read_bytes().ljust(same_length.stat().st_size, b"\0"))
    from_shards(shards)
    (shards / "classes.txt").write_text("a\nb\nc\nd\ne")
    assert from_shards(shards).classes == ("a", "b", "c", "d", "e")
    assert len(calls) == 5


def test_a_folder_that_moved_keeps_its_index(shards: Path, monkeypatch) -> None:
    calls = scans(monkeypatch)
    make_index(shards)
    shutil.move(shards, shards.parent / "elsewhere")
    from_shards(shards.parent / "elsewhere")
    from_shards(f"{shards.parent}/elsewhere/*.tar")
    assert len(calls) == 1


def test_parts_of_a_folder_have_indexes_of_their_own(shards: Path, monkeypatch) -> None:
    calls = scans(monkeypatch)
    for _ in range(2):
        assert [len(from_shards(shards / name)) for name in (".", "train-0000.tar", "train-000[12].tar")] == [
            120,
            40,
            80,
        ]
    assert len(calls) == 3


@pytest.mark.parametrize("damage", [b"", b"PK", b"cut", b"flip"])
def test_a_damaged_index_is_made_again(shards: Path, damage: bytes) -> None:
    path = make_index(shards)
    content = path.read_bytes()
    middle = len(content) // 2
    kinds = {b"cut": content[:middle], b"flip": content[:middle] + b"\xff" * 40 + content[middle + 40 :]}
    path.write_bytes(kinds.get(damage, damage))
    assert len(from_shards(shards)) == 120
    assert Index.read(path.read_bytes(), str(shards)) is not None


def test_where_the_folder_cannot_be_written_the_index_goes_to_the_cache(
    shards: Path, tmp_path: Path, monkeypatch
) -> None:
    from vitrail.data import shard_index

    calls = scans(monkeypatch)
    monkeypatch.setattr(shard_index.os, "access", lambda *_: False)
    path = make_index(shards)
    assert path.is_relative_to(tmp_path / "cache" / "vitrail")
    assert not (shards / "vitrail-index.npz").exists()
    from_shards(shards)
    assert len(calls) == 1
    path.unlink()
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("a file")
    source = from_shards(shards)
    assert len(source) == 120
    assert any("XDG_CACHE_HOME" in note for note in source.notes)


def test_the_index_of_a_million_is_small_and_quick_to_open(tmp_path: Path) -> None:
    from vitrail.data.samples import Names, Samples
    from vitrail.data.shard_files import ShardFile

    n = 100_000
    samples = Samples(Names.of(f"{k:09}.jpg" for k in range(n)), ("a",), np.zeros(n, np.int32), np.zeros(n, np.int8))
    numbers = np.arange(n)
    files = (ShardFile(f"{tmp_path}/x.tar", 2**50, ""),)
    index = Index(samples, np.zeros(n, np.int32), numbers * 10**5, numbers, files)
    index.write(tmp_path / "i.npz")
    assert (tmp_path / "i.npz").stat().st_size < 50 * n
    found = Index.read((tmp_path / "i.npz").read_bytes(), str(tmp_path))
    assert found is not None
    assert np.array_equal(found.offset, index.offset)
    assert found.files == files
