"""The numbers training computes in, and what models are told of them."""

import pytest
import torch

import vitrail
from tests.training.running import TINY, make_pictures, rows_of
from vitrail.training.precision import Precision


def tokens_between_blocks(name):
    """The kind of numbers that blocks hand on, in training and in evaluation."""
    model = vitrail.create("vit_ti16", img_size=32, depth=2, layer_scale=0.1, num_classes=2)
    precision = Precision(name, torch.device("cpu"))
    precision.prepare(model)
    seen = []
    model.blocks[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    for training in (True, False):
        with torch.no_grad(), precision.autocast():
            model.train(training)(torch.zeros(1, 3, 32, 32))
    return seen


def test_residuals_are_bfloat16_where_that_is_asked_for_and_in_training_alone():
    assert tokens_between_blocks("bf16") == [torch.float32, torch.float32]
    assert tokens_between_blocks("bf16_residual") == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize(("asked", "on_a_gpu"), [("auto", "bf16"), ("fast", "bf16_residual")])
def test_what_is_left_open_is_float32_where_no_gpu_has_bfloat16(asked, on_a_gpu, monkeypatch):
    assert Precision(asked, torch.device("cpu")).name == "fp32"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch, "tensor", lambda value, device: value)  # there may be none here
    monkeypatch.setattr(torch, "zeros", lambda shape, device: 0.0)
    assert Precision(asked, torch.device("cuda")).name == on_a_gpu


def test_a_model_without_blocks_cannot_have_it():
    with pytest.raises(vitrail.VitrailError, match="is for Vision Transformers: use bf16"):
        Precision("bf16_residual", torch.device("cpu")).prepare(vitrail.create("r26_small"))


def test_losses_are_near_those_with_float32_residuals(tmp_path):
    pictures = make_pictures(tmp_path / "pictures")
    losses = []
    for name in ("bf16", "bf16_residual"):
        changes = TINY | {"precision": name, "steps": 8, "batch_size": 8}
        run = vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=changes, device="cpu")
        losses.append([row["loss"] for row in rows_of(run.folder) if row["kind"] == "train"])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
