"""The recipes for small pictures: each method, then fine-tuning; and recorded steps are the steps themselves."""

import pytest
import torch

import vitrail
from tests.pretraining.settings import settings
from tests.training.running import make_pictures
from tests.training.test_recording import Tape, same_bits, tape  # noqa: F401

METHODS = ["masked", "mae", "dino"]
SIZE = {"img_size": 16, "architecture.embed_dim": 64, "architecture.depth": 2, "architecture.num_heads": 2}


@pytest.fixture
def pictures(tmp_path):
    return make_pictures(tmp_path / "pictures")


@pytest.mark.parametrize("method", METHODS)
def test_a_method_pretrains_and_its_encoder_is_fine_tuned(pictures, tmp_path, method):
    changes = settings(method, steps=2, record=False) | SIZE
    first = vitrail.pretrain(
        pictures, recipe=f"cifar10-{method}", out=tmp_path / "first", changes=changes, device="cpu"
    )
    assert first.recipe.architecture["init"] == "local"
    tuned = SIZE | {"steps": 2, "batch_size": 8, "compile": False, "data.workers": 0, "schedule.warmup_epochs": 0}
    run = vitrail.train(
        pictures, recipe="cifar10-finetune", start=first.folder, out=tmp_path / "second", changes=tuned, device="cpu"
    )
    assert run.best.model.config.embed_dim == 64
    assert run.facts["complete"]


@pytest.mark.usefixtures("tape")
@pytest.mark.parametrize("method", METHODS)
def test_recorded_pretraining_is_pretraining_bit_for_bit(pictures, tmp_path, method):
    for name, record in (("recorded", True), ("plain", False)):
        changes = settings(method, accumulate=1, record=record, precision="fp32") | SIZE
        vitrail.pretrain(pictures, recipe=f"cifar10-{method}", out=tmp_path / name, changes=changes, device="cpu")
    assert Tape.made == 1
    same_bits(tmp_path / "recorded", tmp_path / "plain")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_recorded_pretraining_is_pretraining_bit_for_bit(pictures, tmp_path, monkeypatch, method, compiled):
    """With kernels for small layers in both, which otherwise recorded steps alone have."""
    monkeypatch.setattr("vitrail.model.kernel_sizes.LEAST_WORK", 0)
    for name, record in (("recorded", True), ("plain", False)):
        changes = settings(method, accumulate=1, record=record, compile=compiled, deterministic=True) | SIZE
        vitrail.pretrain(pictures, recipe=f"cifar10-{method}", out=tmp_path / name, changes=changes, device="cuda")
    same_bits(tmp_path / "recorded", tmp_path / "plain")
