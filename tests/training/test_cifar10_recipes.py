"""The recipes for CIFAR-10 run on any device, and a GPU computes what a CPU does."""

import numpy as np
import pytest
import torch

import vitrail
from tests.training.running import rows_of
from vitrail.data.arrays import from_arrays

RECIPES = [f"cifar10-{name}" for name in ("94", "95", "96", "97", "best")]
SOME = ["cifar10-94", *(pytest.param(name, marks=pytest.mark.slow) for name in RECIPES[1:])]


@pytest.fixture(scope="module")
def pictures():
    """Two kinds of stripes in noise, of CIFAR-10's size."""
    noise = np.random.default_rng(0)
    labels = np.arange(256) % 2
    stripes = 40 * np.sin(np.arange(32) * np.where(labels, 0.7, 1.4)[:, None])[:, None, :, None]
    values = 128 + stripes + noise.normal(0, 30, (256, 32, 32, 3))
    return from_arrays("stripes", values.clip(0, 255).astype(np.uint8), labels, ("wide", "narrow"), {"train": 256})


def losses(source, recipe, folder, device, **changes):
    settings = {"steps": 20, "batch_size": 16, "compile": False, "precision": "fp32", "schedule.warmup_epochs": 0}
    run = vitrail.train(source, recipe=recipe, out=folder, device=device, changes=settings | changes)
    return [row["loss"] for row in rows_of(run.folder) if row["kind"] == "train"]


@pytest.mark.parametrize("recipe", SOME)
def test_a_recipe_learns_on_a_cpu(pictures, tmp_path, recipe):
    smaller = {"architecture.depth": 2, "architecture.drop_path": 0.0}  # the same in kind
    found = losses(pictures, recipe, tmp_path / "run", "cpu", steps=120, **smaller)  # the last 36 on larger pictures
    assert len(found) >= 10
    assert np.mean(found[-3:]) < 0.7 * np.mean(found[:3])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_gpu_computes_what_a_cpu_does(pictures, tmp_path, recipe, monkeypatch):
    """Recorded steps of a model with 4 blocks, in float32: losses over 20 steps agree to 2%, the first to 1e-5.

    Muon on a GPU makes its matrices orthogonal in bfloat16, which is where they part. Drop-path draws other numbers on
    another device, so it is off; and so is TensorFloat-32, in which torch computes convolutions unless told.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    off = {"architecture.drop_path": 0.0, "architecture.depth": 4}
    cpu, gpu = (losses(pictures, recipe, tmp_path / device, device, **off) for device in ("cpu", "cuda"))
    assert gpu[0] == pytest.approx(cpu[0], rel=1e-5)
    assert gpu == pytest.approx(cpu, rel=0.02)
