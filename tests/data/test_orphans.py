"""Worker processes end with the process that started them, also if it was killed."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.training.processes import start
from tests.training.running import make_pictures
from vitrail.data.loading import TrainingLoader
from vitrail.data.opening import open_source
from vitrail.data.schedule import Schedule
from vitrail.data.workers import in_order
from vitrail.pictures import Preprocessing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc says who is alive")


class Decoding:
    """Says in which process it works, and then reads pictures, or is busy with one for a minute."""

    def __init__(self, said: Path, busy: bool, fetcher=None) -> None:
        self.said, self.busy, self.fetcher = said, busy, fetcher

    def __call__(self, rows):
        (self.said / str(os.getpid())).touch()
        until = time.monotonic() + 60 * self.busy
        while time.monotonic() < until:
            pass
        return len(rows)

    def __getitem__(self, task):
        self([0])
        return self.fetcher[task]


def use_loader(pictures: Path, said: Path, busy: bool, method: str) -> None:
    from vitrail.data.augmentation import Augmentation

    multiprocessing.set_start_method(method, force=True)
    multiprocessing.set_forkserver_preload(["vitrail.data.loading"])
    schedule = Schedule(open_source(pictures).all(), 4, seed=0)
    loader = TrainingLoader(schedule, Preprocessing(size=(8, 8)), Augmentation(), workers=2)
    loader._workers.fetcher = Decoding(said, busy, loader._workers.fetcher)  # type: ignore[assignment]
    for _ in loader.batches():
        time.sleep(0.01)


def use_pool(pictures: Path, said: Path, busy: bool, method: str) -> None:
    for _ in in_order(Decoding(said, busy), [range(4)] * 100_000, 2):
        time.sleep(0.01)


def use_pool_in_a_thread(*arguments) -> None:
    thread = threading.Thread(target=use_pool, args=arguments)
    thread.start()
    thread.join()


def is_there(pid: int) -> bool:
    """Whether it lives: one that nobody has waited for is dead all the same."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(what, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.02)
    return what()


@pytest.mark.parametrize(
    ("use", "method", "busy"),
    [
        (use_loader, "fork", False),
        (use_loader, "fork", True),
        pytest.param(use_loader, "forkserver", False, marks=pytest.mark.slow),
        (use_loader, "forkserver", True),
        (use_pool, "fork", False),
        (use_pool, "fork", True),
        (use_pool_in_a_thread, "fork", True),
    ],
)
def test_no_worker_outlives_a_process_that_is_killed(tmp_path, use, method, busy):
    said = tmp_path / "said"
    said.mkdir()
    parent = start(use, make_pictures(tmp_path / "pictures", each=8), said, busy, method)
    workers: list[int] = []
    try:
        assert wait_for(lambda: len(list(said.iterdir())) == 2 or parent.exitcode is not None, 60)
        workers = [int(path.name) for path in said.iterdir()]
        assert len(workers) == 2
        assert all(map(is_there, workers))
        time.sleep(0.1)
        parent.kill()
        parent.join()
        assert wait_for(lambda: not any(map(is_there, workers)), 4)
    finally:
        parent.kill()
        parent.join()
        for worker in filter(is_there, workers):
            os.kill(worker, signal.SIGKILL)
