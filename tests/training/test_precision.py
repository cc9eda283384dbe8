"""The numbers training computes in, and what models are told of them."""

import pytest
import torch

import vitrail
from tests.training.running import TINY, assert_same_training, make_pictures, rows_of
from vitrail.model import fp8_training, halves
from vitrail.model.halves import Halves
from vitrail.model.zoo import configure
from vitrail.training.loop import Trainer
from vitrail.training.precision import Precision, choose_precision
from vitrail.training.stopping import StoppedError
from vitrail.training.train import resume


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


@pytest.mark.parametrize(("asked", "half"), [("auto", "bf16"), ("fast", "bf16_residual")])
@pytest.mark.parametrize("has", [False, True])
def test_what_is_left_open_is_bfloat16_where_the_device_multiplies_it(asked, half, has, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has or including_emulation)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has})
    config = configure("vit_ti16")
    for device in ("cuda", "cpu"):
        assert choose_precision(asked, torch.device(device), config) == (half if has else "fp32")
    assert choose_precision(asked, torch.device("mps"), config) == "fp32"
    assert choose_precision("fp16", torch.device("cuda"), config) == "fp16"


NARROW = {"embed_dim": 64, "num_heads": 2}


@pytest.mark.parametrize(
    ("name", "changes", "auto", "fast"),
    [
        ("vit_ti16", NARROW, "fp32", "fp32"),
        ("r26_vit_s32", {}, "bf16", "bf16_residual"),
        ("r26_small", {}, "bf16", "bf16"),
    ],
)
def test_a_cpu_keeps_float32_for_narrow_models_alone(name, changes, auto, fast, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    config = configure(name, **changes)
    assert choose_precision("auto", torch.device("cpu"), config) == auto
    assert choose_precision("fast", torch.device("cpu"), config) == fast


@pytest.mark.parametrize("name", ["bf16_residual", "fp8"])
def test_a_model_without_blocks_cannot_have_it(name):
    with pytest.raises(vitrail.VitrailError, match=f"precision {name} is for Vision Transformers: use bf16"):
        Precision(name, torch.device("cpu")).prepare(vitrail.create("r26_small"))


def test_losses_are_near_those_with_float32_residuals(tmp_path):
    pictures = make_pictures(tmp_path / "pictures")
    losses = []
    for name in ("bf16", "bf16_residual"):
        changes = TINY | {"precision": name, "steps": 8, "batch_size": 8}
        run = vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=changes, device="cpu")
        losses.append([row["loss"] for row in rows_of(run.folder) if row["kind"] == "train"])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


EIGHT = TINY | {"architecture.embed_dim": 64, "batch_size": 32, "optimiser.lr": 0.001, "optimiser.muon_lr": 0.005}


def test_in_eight_bits_it_learns_what_it_learns_in_bfloat16(tmp_path, monkeypatch, capsys):
    """Losses of 60 steps, from 0.7 down to a fraction of it: the mean of each 10 is within 0.03 of bfloat16's."""
    monkeypatch.setattr(fp8_training, "FEWEST", 1)
    pictures = make_pictures(tmp_path / "pictures")
    losses = []
    for name in ("bf16_residual", "fp8"):
        changes = EIGHT | {"precision": name, "steps": 60, "eval_epochs": 100, "augmentation.policy": "none"}
        capsys.readouterr()
        run = vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=changes, device="cpu", quiet=False)
        printed = capsys.readouterr()
        assert ("has no eight-bit products" in printed.out + printed.err) == (name == "fp8")
        rows = [row["loss"] for row in rows_of(run.folder) if row["kind"] == "train"]
        losses.append(torch.tensor(rows))
    assert not torch.equal(*losses)
    assert losses[0][-1] < 0.5 * losses[0][0]
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=0.03)


def test_in_eight_bits_it_goes_on_with_the_same_bits(tmp_path, monkeypatch):
    """No scale is carried from step to step, so checkpoints are as ever, and nothing is lost by a stop."""
    monkeypatch.setattr(fp8_training, "FEWEST", 1)
    pictures = make_pictures(tmp_path / "pictures")
    settings = EIGHT | {"precision": "fp8", "architecture.drop_path": 0.2}

    def train(name):
        return vitrail.train(pictures, recipe="small", out=tmp_path / name, changes=settings, device="cpu")

    train("whole")
    original = Trainer.train_step

    def train_step(trainer, *rest):
        original(trainer, *rest)
        if trainer.progress.step == 5:
            trainer.stop.signal = 15

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", train_step)
        with pytest.raises(StoppedError):
            train("halved")
    resume(tmp_path / "halved", device="cpu")
    assert_same_training(tmp_path / "whole", tmp_path / "halved")


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_the_norm_where_every_weight_that_learns_has_a_half(monkeypatch, clip):
    monkeypatch.setattr(halves, "FEWEST", 1)
    layer = torch.nn.Linear(4, 3, bias=False)
    kept = Halves([layer])
    [(_, half)] = kept.pairs()
    half.grad = torch.full((3, 4), 0.5, dtype=torch.bfloat16)
    norm = Precision("bf16", torch.device("cpu")).unscaled_norm([layer.weight], clip, kept)
    assert float(norm) == pytest.approx(3**0.5)
    assert (kept.factor is None) == (clip == 0)
    assert Precision("bf16", torch.device("cpu")).unscaled_norm([], 1.0) == 0
