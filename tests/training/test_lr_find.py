"""The range test: on a parabola, whose losses and limits are known; on the digits; and the training after it."""

import numpy as np
import pytest
import torch
from torch import nn

import vitrail
from tests.training.parallel_runs import SMALL
from tests.training.processes import run_ranks
from tests.training.running import RICH, assert_same_training, make_pictures, rows_of
from vitrail.cli import main
from vitrail.data.batch import Batch
from vitrail.training import lr_find
from vitrail.training.ema import Ema
from vitrail.training.job import Job
from vitrail.training.log import read_log
from vitrail.training.loop import Trainer
from vitrail.training.lr_find import RangeTest, rising
from vitrail.training.objective import Objective
from vitrail.training.optimisers import make_optimiser
from vitrail.training.parallel import World
from vitrail.training.precision import Precision
from vitrail.training.recipe import Optimiser, Recipe
from vitrail.training.recipe_files import read_recipe
from vitrail.training.train import train

ALONE = World(0, 1, torch.device("cpu"))


class Parabola(nn.Module):
    """Half of a x², from x = 1."""

    def __init__(self, a):
        super().__init__()
        self.a, self.x = a, nn.Parameter(torch.ones((), dtype=torch.double))

    def forward(self):
        return self.a * self.x**2 / 2


class ItsValue(Objective):
    def prepare(self, batch, preprocessing):
        return batch.pixels, batch.labels

    def __call__(self, model, inputs, targets):
        return model(), torch.zeros(())

    def example(self, pictures):
        return pictures, pictures


def on_parabola(a, lr=0.1, optimiser="sgd"):
    model = Parabola(a)
    settings = Optimiser(name=optimiser, lr=lr, momentum=0.0, weight_decay=0.0, clip=0.0)
    groups = [{"params": [model.x], "names": ["x"], "lr": lr, "base_lr": lr, "lr_scale": 1.0, "weight_decay": 0.0}]
    trainer = Trainer(
        recipe=Recipe(optimiser=settings),
        plain=model,
        model=model,
        optimiser=make_optimiser(groups, settings),
        objective=ItsValue(),
        schedule=None,
        make_loader=None,
        total_steps=1,
        steps_per_epoch=1,
        world=ALONE,
        precision=Precision("fp32", ALONE.device),
        checkpoints=None,
        evaluate=None,
        report=None,
        stop=None,
        ema=Ema(model, 0.5),
    )
    empty = Batch(torch.zeros(1), torch.zeros(1, 1), torch.zeros(1))
    return rising(trainer, [empty] * lr_find.STEPS, None)


@pytest.mark.parametrize("a", [0.3, 1.0, 7.0])
def test_losses_on_a_parabola_are_those_of_the_closed_form(a):
    found = on_parabola(a)
    rates = 0.1 * np.geomspace(lr_find.LOWEST, lr_find.HIGHEST, lr_find.STEPS)[: len(found.losses)]
    np.testing.assert_allclose(found.factors * 0.1, rates)
    x = np.concatenate([[1.0], np.cumprod(1 - a * rates)[:-1]])
    np.testing.assert_allclose(found.losses, a * x**2 / 2, rtol=1e-4, atol=1e-12)  # factors are float32 on the device


@pytest.mark.parametrize("a", [0.3, 1.0, 7.0])
def test_on_a_parabola_the_rate_is_stable_and_goes_with_the_inverse_of_its_curvature(a):
    found = on_parabola(a)
    rate = 0.1 * found.suggestion
    assert rate < 2 / a  # beyond which it grows
    assert (1 - rate * a) ** 200 < 0.1  # and large enough to come down
    assert rate * a == pytest.approx(0.1 * on_parabola(1.0).suggestion, rel=0.1)  # two steps of the test, two digits
    assert found.factors[-1] * 0.1 < 40 / a  # the test ended soon after it broke


def test_a_loss_that_does_not_fall_gives_no_suggestion():
    factors = np.geomspace(1e-3, 1e2, 150)
    noise = np.random.default_rng(0).normal(2.3, 0.1, (500, 150))
    assert sum(RangeTest(factors, losses).suggestion is not None for losses in noise) <= 5
    assert RangeTest(factors, noise[0] + np.linspace(0, 1, 150)).suggestion is None
    assert RangeTest(factors, np.full(150, 2.3)).suggestion is None
    assert RangeTest(factors[:1], np.array([np.nan])).suggestion is None


def test_the_suggestion_is_half_of_the_way_down_whatever_comes_behind_it():
    factors = np.geomspace(1e-3, 1e2, 151)
    fall = 2.3 - 1.0 / (1 + (1 / factors) ** 2)  # half of the way at 1
    assert RangeTest(factors, fall).suggestion == pytest.approx(1.0, rel=0.1)
    bump = np.where(factors > 30, fall + 2, fall)
    assert RangeTest(factors, bump).suggestion == pytest.approx(1.0, rel=0.1)


def test_losses_that_are_not_finite_end_the_test_and_are_left_out(monkeypatch):
    calls = []
    value = ItsValue.__call__

    def broken(self, *arguments):
        calls.append(1)
        loss, right = value(self, *arguments)
        return loss * (torch.nan if 3 <= len(calls) <= 5 or len(calls) > 40 else 1), right

    monkeypatch.setattr(ItsValue, "__call__", broken)
    found = on_parabola(1.0)
    assert len(calls) == 40 + lr_find.PATIENCE
    assert len(found.losses) == 40 - 3
    assert np.isfinite(found.losses).all()


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(Job, "_write_report", lambda *_: None)


def test_the_training_is_bit_for_bit_the_one_with_that_rate_given_by_hand(tmp_path, short, capsys):
    pictures = make_pictures(tmp_path / "pictures")
    options = {"recipe": "small", "device": "cpu"}
    found = vitrail.train(pictures, out=tmp_path / "found", lr_find=True, changes=RICH, quiet=False, **options)
    [said] = [row["text"] for row in read_log(found.folder) if row["kind"] == "event"]
    assert said in capsys.readouterr().out
    settings = found.recipe.optimiser
    assert f"{settings.lr:g} and {settings.muon_lr:g} for matrices" in said
    before = read_recipe("small").optimiser
    assert settings.muon_lr / settings.lr == pytest.approx(before.muon_lr / before.lr, rel=1e-4)  # one factor for both
    assert (found.folder / "lr_find.png").stat().st_size > 10_000
    by_hand = RICH | {"optimiser.lr": settings.lr, "optimiser.muon_lr": settings.muon_lr}
    plain = vitrail.train(pictures, out=tmp_path / "plain", changes=by_hand, **options)
    assert found.recipe == plain.recipe
    assert [row for row in rows_of(found.folder) if row["kind"] != "event"] == rows_of(plain.folder)
    (found.folder / "log.jsonl").write_bytes((plain.folder / "log.jsonl").read_bytes())
    assert_same_training(found.folder, plain.folder)


def test_the_digits_find_nearly_the_rate_that_they_were_given(tmp_path, short):
    run = vitrail.train(
        out=tmp_path / "run", lr_find=True, steps=1, device="cpu", changes={"schedule.warmup_epochs": 0}
    )
    assert 0.3 < run.recipe.optimiser.lr / 3e-3 < 3  # which was found by many trainings


def find_together(rank, size, folder, sharded):
    Job._write_report = lambda *_: None
    lr_find.STEPS = 60
    run = train(None, out=folder / "run", device="cpu", shard=sharded, lr_find=True, **(SMALL | {"steps": 1}))
    (folder / f"{rank}.txt").write_text(f"{run.recipe.optimiser.lr}")


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["copies", "shards"])
def test_processes_find_one_rate(tmp_path, sharded):
    run_ranks(2, tmp_path, find_together, tmp_path, sharded)
    assert (tmp_path / "0.txt").read_text() == (tmp_path / "1.txt").read_text()
    assert float((tmp_path / "0.txt").read_text()) != 1e-3


def test_a_run_that_goes_on_has_its_rate(tmp_path, capsys):
    assert main(["train", "--resume", str(tmp_path), "--lr-find"]) == 1
    assert "leave out --lr-find" in capsys.readouterr().err
