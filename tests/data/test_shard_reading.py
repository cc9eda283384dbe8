"""Pictures out of tar shards: few long reads, safe with threads, forks and pickles."""

import multiprocessing
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.data.shard_making import many, read_in_child, write_tar
from vitrail.data import shard_files
from vitrail.data.shard_files import LocalFiles
from vitrail.data.shards import from_shards
from vitrail.errors import DataError

pytestmark = pytest.mark.usefixtures("own_cache")


class Preads:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lengths: list[int] = []
        real = os.pread

        def pread(handle: int, length: int, at: int) -> bytes:
            self.lengths.append(length)
            return real(handle, length, at)

        monkeypatch.setattr(os, "pread", pread)


def test_neighbours_are_read_together_and_far_ones_apart(tmp_path: Path, monkeypatch) -> None:
    (path,) = many(tmp_path, shards=1, each=200, size=20_000)
    source = from_shards(path)
    assert source.positions is not None
    stored = np.argsort(source.positions)
    preads = Preads(monkeypatch)
    run = np.random.default_rng(0).permutation(stored[:100]).tolist()
    source.reader.read_many(run)
    assert len(preads.lengths) == 1  # a whole run in any order: one read
    preads.lengths.clear()
    source.reader.read_many([int(stored[0]), int(stored[100]), int(stored[199])])
    assert len(preads.lengths) == 3  # a megabyte and more between them
    assert sum(preads.lengths) < 3 * 20_000


def test_a_few_files_stay_open_however_many_shards_there_are(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shard_files, "_MOST_OPEN", 5)
    for k in range(30):
        write_tar(tmp_path / f"{k:02}.tar", {f"{k:02}.jpg": str(k).encode()})
    source = from_shards(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        assert source.reader.read_many(range(30)) == [str(k).encode() for k in range(30)]
    assert len(os.listdir("/proc/self/fd")) <= before + 5


def test_threads_may_share_a_reader(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shard_files, "_MOST_OPEN", 2)
    many(tmp_path, shards=8, each=10)
    source = from_shards(tmp_path)
    truth = source.reader.read_many(range(len(source)))
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows = rng.integers(0, len(source), 200).tolist()
        wrong.extend(row for row in rows if source.reader.read_many([row]) != [truth[row]])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_forked_children_read_at_once_what_the_parent_reads(shards: Path) -> None:
    source = from_shards(shards)
    truth = source.reader.read_many(range(len(source)))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    assert isinstance(source.reader._storage, LocalFiles)
    with source.reader._storage._lock:  # as if another thread were opening a file just now
        children = [context.Process(target=read_in_child, args=(source, k, answers)) for k in range(4)]
        for child in children:
            child.start()
    for _ in children:
        rows, found = answers.get(timeout=30)
        assert found == [truth[row] for row in rows]
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert source.reader.read_many([1, 0]) == [truth[1], truth[0]]


def test_a_pickled_source_reads_the_same(shards: Path) -> None:
    source = from_shards(shards)
    truth = source.reader.read_many(range(20))
    copy = pickle.loads(pickle.dumps(source))
    assert copy.reader.read_many(range(20)) == truth


def test_a_shard_that_went_or_shrank_is_named(shards: Path) -> None:
    source = from_shards(shards)
    path = shards / "train-0001.tar"
    os.truncate(path, 2000)
    with pytest.raises(DataError, match=r"train-0001\.tar: ends at byte 2,000 .*vitrail check --index"):
        source.reader.read_many(range(len(source)))
    path.unlink()
    with pytest.raises(DataError, match=r"train-0001\.tar: there is no such shard"):
        pickle.loads(pickle.dumps(source)).reader.read_many(range(120))
