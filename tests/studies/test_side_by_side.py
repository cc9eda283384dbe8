"""Runs of a study in several processes: they come to what they come to one after the other, and end when asked."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from tests.studies.making import write_study
from vitrail.cli import main
from vitrail.data.leash import Leash
from vitrail.errors import ConfigError
from vitrail.studies import side_by_side
from vitrail.studies.side_by_side import Answer, Task, Worker, train_side_by_side
from vitrail.studies.workplace import Failure
from vitrail.training.recipe import Recipe
from vitrail.training.run import Run

SEEDS = """
data = "data"
recipe = "base.toml"
seeds = [0, 1, 2]
"""
TEACHERS = """
data = "data"
recipe = "base.toml"
seeds = [0, 1]
[rows.alone]
[rows.taught]
distillation.teacher = "nowhere"
"""
CHOICE = """
data = "data"
recipe = "base.toml"
seeds = [0]
choose = "optimiser.lr"
[vary]
optimiser.lr = [1e-3, 1e-2, 1e-1]
"""


@pytest.mark.parametrize("text", [TEACHERS, pytest.param(CHOICE, marks=pytest.mark.slow)], ids=["teachers", "choice"])
def test_side_by_side_they_come_to_the_same(
    text: str, tmp_path: Path, no_reports: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many threads: those of this process are one."""
    monkeypatch.setenv(side_by_side.THREADS, "1")
    file = write_study(tmp_path, text)
    said: dict[str, list[str]] = {"alone": [], "both": []}
    alone = vitrail.study(file, out=tmp_path / "alone", device="cpu", say=said["alone"].append)
    both = vitrail.study(file, out=tmp_path / "both", device="cpu", jobs=2, say=said["both"].append)
    shown = [sorted(line.rpartition(", ")[0] for line in lines if "failed" not in line) for lines in said.values()]
    assert shown[0] == shown[1]  # without seconds
    names = ["runs/taught/seed-0", "runs/taught/seed-1"] if text == TEACHERS else []
    for name, result in (("alone", alone), ("both", both)):
        assert sorted(str(Path(place).relative_to(tmp_path / name)) for place in result.failed) == names
        assert all("there is no nowhere" in why for why in result.failed.values())
    for one, other in zip(alone.rows, both.rows, strict=True):
        assert (one.score, one.val, one.chosen, one.n) == (other.score, other.val, other.chosen, other.n)
        for run in one.runs:
            weights = [tmp_path / name / run.folder / "last" / "model.safetensors" for name in said]
            assert weights[0].read_bytes() == weights[1].read_bytes()
        assert [run.threads for row in (one, other) for run in row.runs] == [1] * (one.n + other.n)
    if both.failed:
        return
    begun = time.monotonic()
    assert vitrail.study(file, out=tmp_path / "both", device="cpu", jobs=2).to_json() == both.to_json()
    assert time.monotonic() - begun < 3  # no process is started for nothing


def test_a_process_that_ends_by_itself_is_a_run_that_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    events: list[Any] = []

    def tasks() -> Iterator[tuple[int, Task]]:
        for number in (3, 5):
            events.append(number)
            yield number, Task(tmp_path / "run", Recipe(), True)

    train_side_by_side(tasks(), 1, str(tmp_path / "nowhere"), {}, "cpu", lambda *end: events.append(end))
    ended = Failure("its process ended with 1")
    assert events == [3, (3, ended), 5, (5, ended)]  # a task is asked for when there is a process for it
    assert not ended.is_of_any_seed
    assert "nowhere" in capfd.readouterr().err


def test_a_process_that_is_killed_was_short_of_memory(tmp_path: Path) -> None:
    """By the system, as far as one can know."""
    worker = Worker((str(tmp_path / "nowhere"), {}, "cpu"))
    worker.begin(0, Task(tmp_path / "run", Recipe(), True))
    assert worker.process.pid is not None
    os.kill(worker.process.pid, signal.SIGKILL)
    failure = worker.answer().failure
    worker.end()
    assert failure is not None
    assert failure.is_of_memory
    assert failure.words.startswith("its process was killed, most likely as there is not enough memory: take smaller")


def test_there_is_at_least_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_study(tmp_path, SEEDS)
    with pytest.raises(ConfigError, match="jobs must be 1 or more, not 0"):
        vitrail.study(file, out=tmp_path / "out", jobs=0)
    assert main(["study", str(file), "--out", str(tmp_path / "out"), "--jobs", "0"]) == 1
    assert "jobs must be 1 or more, not 0" in capsys.readouterr().err


def begin(file: Path, out: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A command that trains two runs at a time, when both are on their way; and its processes."""
    command = [sys.executable, "-m", "vitrail", "study", str(file), "--out", str(out), "--device", "cpu", "--jobs", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before = trained(out)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    end = time.time() + 200
    while sum(len(steps) > len(before.get(name, [])) for name, steps in trained(out).items()) < 2:
        assert process.poll() is None
        assert time.time() < end
        time.sleep(0.2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    return process, list(map(int, children))


def trained(out: Path) -> dict[str, list[int]]:
    """The steps in the log of each run."""
    logs = {str(file): [json.loads(line) for line in file.read_text().splitlines()] for file in out.rglob("log.jsonl")}
    return {name: [line["step"] for line in lines if line["kind"] == "train"] for name, lines in logs.items()}


def are_gone(pids: list[int]) -> bool:
    end = time.time() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.time() < end:
        time.sleep(0.1)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says who is alive")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_all_of_them_and_the_same_command_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    file, out = write_study(tmp_path, SEEDS, steps=4000, checkpoint_minutes=100.0), tmp_path / "out"
    process, children = begin(file, out)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "the same command goes on" in said
    assert "Traceback" not in said
    assert are_gone(children)
    runs = [Run.open(folder) for folder in sorted((out / "runs").glob("*/*"))]
    assert len(runs) == 2
    saved = [max(int(one.name.partition("-")[2]) for one in run.folder.glob("checkpoints/step-*")) for run in runs]
    assert all(0 < step < 4000 for step in saved)
    process, children = begin(file, out)
    process.send_signal(number)
    process.communicate(timeout=120)
    for steps in trained(out).values():
        assert steps == sorted(set(steps))  # nothing was trained twice


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says who is alive")
@pytest.mark.parametrize("numbers", [[signal.SIGKILL], [signal.SIGINT, signal.SIGINT]])
def test_nobody_is_left_when_it_is_killed_or_asked_twice(numbers: list[signal.Signals], tmp_path: Path) -> None:
    file = write_study(tmp_path, SEEDS, steps=4000, checkpoint_minutes=100.0)
    process, children = begin(file, tmp_path / "out")
    for number in numbers:
        process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == -numbers[-1] or len(numbers) == 2
    assert are_gone(children)


def how_it_starts_workers(pipe: Connection, leash: Leash, address: str) -> None:
    """In a process of a study: answers with that, whatever it is asked to train."""
    side_by_side._trained = lambda *_: Answer(Failure(multiprocessing.get_start_method()))
    side_by_side._serve(pipe, leash, address, {}, "cpu")


def test_workers_of_its_processes_begin_as_those_of_any_other(tmp_path: Path) -> None:
    """Not spawned, as the processes are themselves: then each worker would be sent all pictures of an array."""
    data = tmp_path / "few.npz"
    np.savez(data, x=np.zeros((4, 8, 8, 3), np.uint8), y=np.arange(4) % 2)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    leash = Leash.of_this_process("spawn")
    process = context.Process(target=how_it_starts_workers, args=(theirs, leash, str(data)), daemon=True)
    process.start()
    theirs.close()
    ours.send(Task(tmp_path / "run", Recipe(), False))
    assert ours.recv().failure.words == multiprocessing.get_all_start_methods()[0]
    ours.close()
    process.join()
