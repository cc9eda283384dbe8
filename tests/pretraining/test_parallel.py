"""Pretraining on several processes beside one: the same masks and crops, gradients, losses and figures."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pretraining.settings import settings
from tests.training.parallel_runs import Notes, notes_of
from tests.training.processes import run_ranks
from vitrail.classifier import Classifier
from vitrail.pretraining.pretrain import pretrain, resume
from vitrail.training.log import read_log
from vitrail.training.loop import StoppedError

METHODS = ["masked", "mae", "dino"]


def plain(method: str) -> dict[str, Any]:
    """Without noise in the model, which is each process's own."""
    return settings(method) | {
        "architecture.drop_path": 0.0, "optimiser.name": "adamw", "optimiser.lr": 1e-3, "accumulate": 1, "steps": 8,
        "batch_size": 96, "eval_epochs": 0.4, "img_size": 8, "architecture.embed_dim": 16, "ema": 0.0,
        "architecture.patch_size": 2, "data.engine": "resident",
        **({"dino.local_size": 4} if method == "dino" else {}),
    }  # fmt: skip


def begin(rank: int, world: int, run: Path, method: str, shard: bool, stop_at: int | None) -> None:
    notes = Notes(run, stop_at)
    notes.listen()
    target: Any = {"target": "mean-colour"} if method == "masked" else {}
    options: Any = {"recipe": f"cifar10-{method}", "changes": plain(method), "shard": shard, "device": "cpu"}

    def work() -> None:
        pretrain("digits", out=run, **target, **options)

    if stop_at is None:
        work()
    else:
        with pytest.raises(StoppedError, match="vitrail pretrain --resume"):
            work()
    notes.keep(rank)


def go_on(rank: int, world: int, run: Path) -> None:
    notes = Notes(run, None)
    notes.listen()
    resume(run, device="cpu")
    notes.keep(rank)


def course(run: Path, kind: str) -> torch.Tensor:
    found = [row for row in read_log(run) if row["kind"] == kind]
    columns = [name for name in ("step", "loss", "grad_norm") if name in found[0]]
    return torch.tensor([[row[name] for name in columns] for row in found])


def assert_same_course(one: Path, two: Path) -> None:
    for kind in ("train", "eval"):
        torch.testing.assert_close(course(two, kind), course(one, kind), rtol=2e-5, atol=2e-5)
    knn = [[row["knn"] for row in read_log(run) if row["kind"] == "eval"] for run in (one, two)]
    assert knn[0] == pytest.approx(knn[1], abs=0.03)  # the order of validation is another, and so are those that vote


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("alone")
    for method in METHODS:
        run_ranks(1, folder, begin, folder / method, method, False, None)
    return {method: folder / method for method in METHODS}


@pytest.mark.parametrize(
    ("method", "shard"),
    [
        ("masked", False),
        ("mae", False),
        ("dino", False),
        pytest.param("masked", True, marks=pytest.mark.slow),
        ("mae", True),
        ("dino", True),
    ],
)
def test_two_processes_learn_as_one_does(alone: dict[str, Path], tmp_path: Path, method: str, shard: bool) -> None:
    run = tmp_path / "run"
    run_ranks(2, tmp_path, begin, run, method, shard, None)
    [expected], both = notes_of(alone[method], 1), notes_of(run, 2)
    assert [a + b for a, b in zip(both[0]["samples"], both[1]["samples"], strict=True)] == expected["samples"]
    for notes in both:
        assert notes["gradients"].keys() == expected["gradients"].keys()
        for name, gradient in expected["gradients"].items():
            torch.testing.assert_close(notes["gradients"][name], gradient, rtol=2e-5, atol=2e-6)
    assert_same_course(alone[method], run)
    pictures = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    answers = [Classifier.load(place / "last").model(pictures) for place in (run, alone[method])]
    torch.testing.assert_close(*answers, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "method", ["mae", *(pytest.param(name, marks=pytest.mark.slow) for name in ("masked", "dino"))]
)
def test_a_run_of_two_processes_goes_on_with_one_and_with_three(
    alone: dict[str, Path], tmp_path: Path, method: str
) -> None:
    stopped = tmp_path / "stopped"
    run_ranks(2, tmp_path, begin, stopped, method, method == "mae", 5)
    for world in (1, 3):
        run = tmp_path / f"on-{world}"
        shutil.copytree(stopped, run)
        run_ranks(world, tmp_path, go_on, run)
        assert_same_course(alone[method], run)
