"""A training that is killed and goes on is, bit for bit, one that was never stopped."""

import json
import random
import shutil
import time
from pathlib import Path

import pytest

import vitrail
from tests.training.running import RICH, TINY, assert_same_training, command, flags, make_pictures, rows_of
from vitrail.cli import main
from vitrail.training.train import resume


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("data") / "pictures")


def train(data: Path, run: Path, settings: dict, **options) -> vitrail.Run:
    return vitrail.train(data, recipe="small", out=run, changes=settings, device="cpu", **options)


@pytest.mark.parametrize("engine", ["resident", "workers"])
def test_killed_three_times_it_ends_with_the_same_bits(pictures, tmp_path, engine):
    settings = RICH | {"data.engine": engine, "data.workers": 1 if engine == "workers" else 0}
    train(pictures, tmp_path / "whole", settings)
    run, said = tmp_path / "killed", tmp_path / "said"
    arguments = ["train", str(pictures), "--recipe=small", f"--out={run}", "--device=cpu", *flags(settings)]
    # after the step began: while it computes, evaluates, or writes a checkpoint
    for step, seconds in ((2, 0.0), (6, 0.03), (9, 0.01)):
        process = command(arguments, said, die=(step, seconds))
        process.join(120)
        assert process.exitcode == -9, said.read_text()
        assert not (run / "last").exists()
        arguments = ["train", f"--resume={run}", "--device=cpu"]
    process = command(arguments, said)
    process.join(120)
    assert process.exitcode == 0, said.read_text()
    assert_same_training(tmp_path / "whole", run)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["resident", "workers"])
def test_killed_at_twenty_random_moments_it_ends_with_the_same_bits(pictures, tmp_path, engine):
    workers = 2 if engine == "workers" else 0
    settings = RICH | {"data.engine": engine, "data.workers": workers, "steps": 800, "eval_epochs": 2.0}
    train(pictures, tmp_path / "whole", settings)
    run, said = tmp_path / "killed", tmp_path / "said"
    go_on = ["train", f"--resume={run}", "--device=cpu"]
    arguments = ["train", str(pictures), "--recipe=small", f"--out={run}", "--device=cpu", *flags(settings)]
    kills = useful = 0
    chance = random.Random(0)
    while True:
        process = command(arguments, said)
        before = len(rows_of(run)) if run.exists() else 0
        limit = time.monotonic() + 60  # it loads first: the clock runs from its first words in the log
        while process.is_alive() and time.monotonic() < limit and (not run.exists() or len(rows_of(run)) == before):
            time.sleep(0.01)
        process.join(chance.uniform(0.0, 0.8) if kills < 40 else None)
        if process.exitcode is not None:
            break
        process.kill()
        process.join()
        kills += 1
        useful += len(rows_of(run)) > before
        arguments = go_on
    assert process.exitcode == 0, said.read_text()
    assert kills >= 20
    assert useful >= 10
    assert_same_training(tmp_path / "whole", run)


def test_stopped_in_the_middle_of_an_epoch_between_two_lines_of_the_log(pictures, tmp_path, monkeypatch):
    """A line of the log has the mean over several steps; also if they were taken by two processes."""
    from vitrail.training.loop import Trainer
    from vitrail.training.stopping import StoppedError

    settings = TINY | {"batch_size": 2, "optimiser.name": "adamw", "optimiser.sam": 0.05}
    train(pictures, tmp_path / "whole", settings)
    original = Trainer.train_step

    def train_step(trainer, *rest):
        original(trainer, *rest)
        if trainer.progress.step == 5:
            assert trainer.log_steps == 4
            trainer.stop.signal = 15

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", train_step)
        with pytest.raises(StoppedError, match=f"after step 5 of 12, saved: go on with .* --resume {tmp_path}/halved"):
            train(pictures, tmp_path / "halved", settings)
    resume(tmp_path / "halved", device="cpu")
    assert_same_training(tmp_path / "whole", tmp_path / "halved")


def test_pictures_a_second_are_those_of_the_process_that_tells_them(pictures, tmp_path, monkeypatch):
    """By a clock on which a step takes a second; the first line after a stop has pictures of two processes."""
    from types import SimpleNamespace

    from vitrail.training import loop
    from vitrail.training.stopping import StoppedError

    original, steps = loop.Trainer.train_step, []

    def train_step(trainer, *rest):
        original(trainer, *rest)
        steps.append(trainer.progress.step)
        if steps == [*range(1, 6)]:
            trainer.stop.signal = 15

    monkeypatch.setattr(loop.Trainer, "train_step", train_step)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: float(len(steps))))
    with pytest.raises(StoppedError):
        train(pictures, tmp_path / "run", TINY | {"batch_size": 2, "eval_epochs": 100.0})
    resume(tmp_path / "run", device="cpu")
    lines = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    rates = [line["pictures_per_s"] for line in lines if line["kind"] == "train"]
    assert rates == [2.0, 2.0, 2.0]


def test_what_an_evaluation_takes_is_nobody_s_pictures_a_second(pictures, tmp_path, monkeypatch):
    """By a clock on which a step takes a second and an evaluation 100; they come between two reports."""
    from types import SimpleNamespace

    from vitrail.training import loop
    from vitrail.training.job import Job

    clock, step, evaluate = [0.0], loop.Trainer.train_step, Job.evaluate

    def train_step(trainer, *rest):
        step(trainer, *rest)
        clock[0] += 1

    def slow(job, at):
        clock[0] += 100
        return evaluate(job, at)

    monkeypatch.setattr(loop.Trainer, "train_step", train_step)
    monkeypatch.setattr(Job, "evaluate", slow)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    train(pictures, tmp_path / "run", TINY | {"batch_size": 2, "eval_epochs": 0.1})
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    told = [line["step"] for line in lines if line["kind"] == "train"]
    assert any(line["step"] not in told for line in lines if line["kind"] == "eval")
    assert {line["pictures_per_s"] for line in lines if line["kind"] == "train"} == {2.0}


def test_a_kill_between_the_last_checkpoint_and_the_report_costs_nothing(pictures, tmp_path, monkeypatch):
    from vitrail.training.job import Job

    train(pictures, tmp_path / "whole", TINY)

    def interrupted(job):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Job, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(pictures, tmp_path / "cut", TINY)
    resume(tmp_path / "cut", device="cpu")
    assert_same_training(tmp_path / "whole", tmp_path / "cut")


def test_what_has_no_checkpoint_yet_begins_again(pictures, tmp_path):
    train(pictures, tmp_path / "whole", TINY)
    shutil.copytree(tmp_path / "whole", tmp_path / "early")
    shutil.rmtree(tmp_path / "early" / "checkpoints")
    run = vitrail.Run.open(tmp_path / "early")
    run.write_facts({**run.facts, "complete": False})
    resume(tmp_path / "early", device="cpu")
    assert_same_training(tmp_path / "whole", tmp_path / "early")


def test_a_complete_run_says_so_and_stays_as_it_is(pictures, tmp_path, capsys):
    run = train(pictures, tmp_path / "run", TINY).folder
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["train", "--resume", str(run)]) == 0
    assert "is complete: nothing is left to train" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_run_goes_on_from_any_folder_but_only_with_its_own_data(pictures, tmp_path, monkeypatch, capsys):
    data = shutil.copytree(pictures, tmp_path / "here" / "pictures")
    monkeypatch.chdir(tmp_path / "here")
    run = train(Path("pictures"), Path("run"), TINY)
    facts = {**run.facts, "complete": False}
    vitrail.Run.open("run").write_facts(facts)
    monkeypatch.chdir(tmp_path)
    assert resume("here/run", device="cpu").is_complete
    vitrail.Run.open("here/run").write_facts(facts)
    moved = data / "kind 0" / "000.png"
    moved.rename(data / "kind 1" / "new.png")
    assert main(["train", "--resume", "here/run"]) == 1
    assert "has changed since here/run began" in capsys.readouterr().err


def test_a_teacher_is_found_from_any_folder(pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(pictures, Path("teacher"), TINY)
    run = train(pictures, Path("run"), TINY | {"distillation.teacher": "teacher"})
    run.write_facts({**run.facts, "complete": False})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume("../run", device="cpu").is_complete


def test_a_table_whose_labels_changed_is_other_data(pictures, tmp_path):
    from vitrail.errors import VitrailError

    table = tmp_path / "table.csv"
    lines = [f"{path},{path.parent.name}" for path in sorted(pictures.rglob("*.png"))]
    table.write_text("\n".join(["path,label", *lines]))
    run = train(table, tmp_path / "run", TINY)
    run.write_facts({**run.facts, "complete": False})
    lines[0] = lines[0].replace(",kind 0", ",kind 1")
    table.write_text("\n".join(["path,label", *lines]))
    with pytest.raises(VitrailError, match="has changed"):
        resume(run.folder, device="cpu")


@pytest.mark.parametrize(
    "extra", [["data"], ["--epochs", "3"], ["--from", "x"], ["--optimiser.lr", "1"], ["--out", "x"]]
)
def test_a_run_goes_on_as_it_began(tmp_path, capsys, extra):
    assert main(["train", "--resume", str(tmp_path), *extra]) == 1
    assert "--resume goes on with a run as it began: leave out" in capsys.readouterr().err


def test_what_is_no_run_is_not_gone_on_with(tmp_path, capsys):
    assert main(["train", "--resume", str(tmp_path)]) == 1
    assert "is no run" in capsys.readouterr().err


def test_a_run_of_data_given_in_python_says_where_it_can_go_on(pictures, tmp_path):
    from vitrail.data.opening import open_source
    from vitrail.errors import VitrailError

    run = train(open_source(pictures), tmp_path / "run", TINY)
    run.write_facts({**run.facts, "complete": False})
    with pytest.raises(VitrailError, match="given in Python"):
        resume(run.folder)
