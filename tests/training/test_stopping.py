"""Signals: saved and out; a second one, out at once. Full disks: the checkpoint before stays."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

import vitrail
from tests.training.running import TINY, assert_same_training, command, flags, make_pictures, rows_of, state_of
from vitrail.training.train import resume

LONG = TINY | {"steps": 30_000, "checkpoint_minutes": 5.0, "eval_epochs": 100.0}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("data") / "pictures")


def begin(pictures: Path, folder: Path, settings: dict, **options):
    """A training in a process, once it has made some steps."""
    run, said = folder / "run", folder / "said"
    arguments = ["train", str(pictures), "--recipe=small", f"--out={run}", "--device=cpu", *flags(settings)]
    process = command(arguments, said, **options)
    until = time.monotonic() + 60
    while not (run / "log.jsonl").exists() or not rows_of(run):
        assert process.exitcode is None, said.read_text()
        assert time.monotonic() < until
        time.sleep(0.02)
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
