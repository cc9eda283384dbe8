"""A loss that is not finite: its step is skipped; several in a row: back, past them, slower; never saved."""

import math

import pytest
import torch

import vitrail
from tests.training.running import RICH, TINY, make_pictures, rows_of, state_of
from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.training.loop import Trainer
from vitrail.training.objective import Classification
from vitrail.training.train import resume


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("data") / "pictures")


@pytest.fixture
def broken(monkeypatch):
    """The steps of the data whose loss is not finite, and what it is."""
    steps: dict[int, float] = {}
    original, compute = Classification.prepare, Classification.__call__

    def prepare(self, batch, preprocessing):
        self.factor = steps.get(batch.step, 1.0)
        return original(self, batch, preprocessing)

    def call(self, model, inputs, targets):
        loss, right = compute(self, model, inputs, targets)
        return loss * self.factor, right

    monkeypatch.setattr(Classification, "prepare", prepare)
    monkeypatch.setattr(Classification, "__call__", call)
    return steps


def train(pictures, run, settings):
    return vitrail.train(pictures, recipe="small", out=run, changes=settings, device="cpu")


@pytest.mark.parametrize("settings", [RICH, TINY | {"optimiser.sam": 0.05, "optimiser.name": "adamw", "ema": 0.9}])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_single_bad_step_changes_nothing(pictures, tmp_path, broken, monkeypatch, settings, value):
    broken[5] = value
    original, states = Trainer.train_step, {}

    def train_step(trainer, *rest):
        at = trainer.progress.step
        before = {name: tensor.clone() for name, tensor in trainer._tensors().items()}
        original(trainer, *rest)
        after = trainer._tensors()
        states[at] = [name for name, tensor in before.items() if not torch.equal(tensor, after[name])]

    monkeypatch.setattr(Trainer, "train_step", train_step)
    run = train(pictures, tmp_path / "run", settings)
    assert states[5] == []
    assert all(changed for step, changed in states.items() if step != 5)
    rows = {row["step"]: row for row in rows_of(run.folder) if row["kind"] == "train"}
    assert [step for step, row in rows.items() if row["skipped_steps"]] == [6]
    assert all(math.isfinite(row["loss"]) for row in rows.values())
    assert run.is_complete


def test_three_in_a_row_go_back_past_them_with_half_the_learning_rate(pictures, tmp_path, broken):
    for step in (4, 5, 6):
        broken[step] = math.nan
    run = train(pictures, tmp_path / "run", TINY)
    tensors, plain = state_of(run.folder)
    assert plain["progress"]["lr_factor"] == 0.5
    rows = rows_of(run.folder)
    (event,) = [row for row in rows if row["kind"] == "event"]
    assert "half the learning rate" in event["text"]
    assert plain["progress"]["skipped_data"] == 8 - event["back_to"] > 0
    assert plain["progress"]["step"] == 12
    steps = [row["step"] for row in rows if row["kind"] == "train"]
    assert steps == sorted(set(steps))
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values() if tensor.is_floating_point())


def test_what_broke_once_and_was_stopped_goes_on_the_same(pictures, tmp_path, broken, monkeypatch):
    """Which batches are passed over, and the learning rate, are in the checkpoint."""
    from tests.training.running import assert_same_training
    from vitrail.training.stopping import StoppedError

    for step in (4, 5, 6):
        broken[step] = math.nan
    train(pictures, tmp_path / "whole", TINY)
    original = Trainer.train_step

    def train_step(trainer, *rest):
        original(trainer, *rest)
        if trainer.progress.step == 9:
            trainer.stop.signal = 15

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", train_step)
        with pytest.raises(StoppedError):
            train(pictures, tmp_path / "halved", TINY)
    resume(tmp_path / "halved", device="cpu")
    assert_same_training(tmp_path / "whole", tmp_path / "halved")


def test_what_breaks_again_ends_with_a_line_and_nothing_bad_is_saved(pictures, tmp_path, broken, capsys):
    for step in range(4, 100):
        broken[step] = math.nan
    with pytest.raises(VitrailError, match="in a row again"):
        train(pictures, tmp_path / "run", TINY)
    tensors, _ = state_of(tmp_path / "run")
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values() if tensor.is_floating_point())
    assert main(["train", "--resume", str(tmp_path / "run"), "--device", "cpu"]) == 1
    assert "in a row again" in capsys.readouterr().err


def test_weights_that_are_not_finite_are_never_saved(pictures, tmp_path, monkeypatch):
    original = Trainer.train_step

    def train_step(trainer, *rest):
        original(trainer, *rest)
        if trainer.progress.step == 6:
            with torch.no_grad():
                next(trainer.plain.parameters()).fill_(math.nan)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    with pytest.raises(VitrailError, match="not finite"):
        train(pictures, tmp_path / "run", TINY | {"ema": 0.0})
    tensors, plain = state_of(tmp_path / "run")
    assert plain["progress"]["step"] < 6
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values() if tensor.is_floating_point())
    assert not (tmp_path / "run" / "best").exists()  # the first evaluation comes with step 6
