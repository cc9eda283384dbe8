"""Signals: saved and out; a second one, out at once. Full disks: the checkpoint before stays."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import vitrail
from tests.training.running import TINY, assert_same_training, command, flags, make_pictures, rows_of, state_of
from vitrail.training.train import resume

LONG = TINY | {"steps": 30_000, "checkpoint_minutes": 5.0, "eval_epochs": 100.0}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("data") / "pictures")


def wait_for(what: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_there(pid: int) -> bool:
    """One that nobody has waited for is dead all the same."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def begin(pictures: Path, folder: Path, settings: dict, **options):
    """A training in a process, once it has made some steps."""
    run, said = folder / "run", folder / "said"
    arguments = ["train", str(pictures), "--recipe=small", f"--out={run}", "--device=cpu", *flags(settings)]
    process = command(arguments, said, **options)

    def has_begun() -> bool:
        assert process.exitcode is None, said.read_text()
        return (run / "log.jsonl").exists() and bool(rows_of(run))

    wait_for(has_begun, 60)
    return process, run, said


@pytest.mark.parametrize(("number", "engine"), [(signal.SIGINT, "workers"), (signal.SIGTERM, "resident")])
def test_a_signal_saves_and_ends_and_says_how_to_go_on(pictures, tmp_path, number, engine):
    settings = LONG | {"data.engine": engine, "data.workers": 1}
    process, run, said = begin(pictures, tmp_path, settings, alone=True)
    os.killpg(process.pid, number)  # as a terminal or a cluster does: to all its processes
    process.join(30)
    assert process.exitcode == 128 + number
    words = said.read_text()
    done = state_of(run)[1]["progress"]["step"]
    assert words.splitlines()[-1] == (
        f"vitrail: stopped after step {done:,} of 30,000, saved: go on with vitrail train --resume {run}"
    )
    assert "Traceback" not in words
    last = rows_of(run)[-1]["step"]
    assert last <= done < last + 2  # one line of the log is two steps


def test_a_second_interrupt_ends_at_once(pictures, tmp_path):
    process, run, said = begin(pictures, tmp_path, LONG | {"steps": 30_000})
    os.kill(process.pid, signal.SIGSTOP)  # so that no step lies between the two
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGCONT)
    process.join(30)
    assert process.exitcode in (-signal.SIGINT, -signal.SIGTERM)
    assert state_of(run)[1]["progress"]["step"] == 0
    assert "saved" not in said.read_text()


def test_a_second_ctrl_c_ends_a_step_that_hangs_and_its_workers(pictures, tmp_path):
    settings = LONG | {"data.engine": "workers", "data.workers": 2}
    hanging = tmp_path / "hanging"
    process, run, said = begin(pictures, tmp_path, settings, alone=True, hang=(20, hanging))
    wait_for(hanging.exists, 60)
    workers = children_of(process.pid)
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.5)
    assert process.exitcode is None  # it waits for the end of its step
    os.killpg(process.pid, signal.SIGINT)
    process.join(5)
    assert process.exitcode == -signal.SIGINT
    wait_for(lambda: not any(map(is_there, workers)), 4)
    assert state_of(run)[1]["progress"]["step"] == 0  # the checkpoint before is whole
    assert "saved" not in said.read_text()


def test_workers_end_with_a_training_that_is_killed(pictures, tmp_path):
    process, *_ = begin(pictures, tmp_path, LONG | {"data.engine": "workers", "data.workers": 2})
    workers = children_of(process.pid)
    assert len(workers) == 2
    process.kill()
    process.join()
    wait_for(lambda: not any(map(is_there, workers)), 4)


def test_a_stop_is_heard_within_two_steps(pictures, tmp_path, monkeypatch):
    from vitrail.training.loop import Trainer
    from vitrail.training.stopping import StoppedError

    steps = []
    original = Trainer.train_step

    def train_step(trainer, *rest):
        steps.append(trainer.progress.step)
        if trainer.progress.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        original(trainer, *rest)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Trainer, "train_step", train_step)
    with pytest.raises(StoppedError) as stopped:
        vitrail.train(pictures, recipe="small", out=tmp_path / "run", changes=TINY, device="cpu")
    assert stopped.value.signal == signal.SIGTERM
    assert steps[-1] <= 4
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("room", "what"), [(200_000, "the checkpoint of step"), (50_000, "best is not written")])
def test_a_full_disk_leaves_the_checkpoint_before_and_the_run_goes_on(pictures, tmp_path, room, what):
    settings = TINY | ({"eval_epochs": 100.0} if room > 100_000 else {})
    vitrail.train(pictures, recipe="small", out=tmp_path / "whole", changes=settings, device="cpu")
    process, run, said = begin(pictures, tmp_path, settings, full_after=(4, room))
    process.join(60)
    assert process.exitcode == 1, said.read_text()
    line = said.read_text().splitlines()[-1]
    assert what in line
    assert re.search(r"needs [\d,]+ bytes", line)
    assert "Traceback" not in said.read_text()
    assert 0 < state_of(run)[1]["progress"]["step"] <= 6
    resume(run, device="cpu")
    assert_same_training(tmp_path / "whole", run)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, which ends with the test."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", place], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize(
    ("room", "minutes", "what"),
    [
        (300_000, 0.0, r"the checkpoint of step 4 is not .* needs [\d,]+ bytes"),
        (0, 5.0, "the disk of .* is full"),
    ],
    ids=["the checkpoint", "the log"],
)
def test_a_run_on_a_disk_that_is_full_goes_on_when_there_is_room(pictures, tmp_path, small_disk, room, minutes, what):
    settings = TINY | {"eval_epochs": 100.0, "checkpoint_minutes": minutes, "steps": 12 if room else 200}
    vitrail.train(pictures, recipe="small", out=tmp_path / "whole", changes=settings, device="cpu")
    run, said, ballast = small_disk / "run", tmp_path / "said", small_disk / "ballast"
    arguments = ["train", str(pictures), "--recipe=small", f"--out={run}", "--device=cpu", *flags(settings)]
    process = command(arguments, said, ballast=(4, room, ballast))
    process.join(60)
    words = said.read_text()
    assert process.exitcode == 1, words
    assert "Traceback" not in words
    assert re.search(rf"^vitrail: {what}.*: make room, and go on with .*--resume", words.splitlines()[-1]), words
    assert state_of(run)[1]["progress"]["step"] == (2 if room else 0)
    ballast.unlink()
    process = command(["train", f"--resume={run}", "--device=cpu"], said)
    process.join(60)
    assert process.exitcode == 0, said.read_text()
    assert_same_training(tmp_path / "whole", run)
