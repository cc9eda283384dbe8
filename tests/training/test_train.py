"""`vitrail train` from end to end, and settings that change what a training does."""

import json
import weakref

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import vitrail
from tests.training.running import TINY, command, make_pictures, rows_of
from vitrail.cli import main
from vitrail.errors import ConfigError
from vitrail.model.vit import ViT
from vitrail.training.feeding import Feeding
from vitrail.training.loop import Trainer


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("data") / "pictures")


def train(pictures, run, settings):
    return vitrail.train(pictures, recipe="small", out=run, changes=TINY | settings, device="cpu")


def test_the_digits_from_the_command_to_a_prediction(tmp_path, capsys):
    run, said = tmp_path / "run", tmp_path / "said"
    process = command(["train", f"--out={run}", "--epochs=2", "--device=cpu", "--optimiser.lr=0.002"], said)
    process.join(120)
    assert process.exitcode == 0, said.read_text()
    assert "next: vitrail predict" in said.read_text()
    names = "recipe.toml log.jsonl log.csv curves.png confusion.png augmented.png worst.png report.html run.json"
    for name in (*names.split(), "best/model.safetensors", "last/model.safetensors", "checkpoints"):
        assert (run / name).exists(), name
    assert vitrail.Run.open(run).recipe.optimiser.lr == 0.002
    digits = load_digits()
    pixels = (digits.images[0] * 15.9375).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "zero.png")
    assert main(["predict", str(run), str(tmp_path / "zero.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])
    assert main(["evaluate", str(run / "best"), "digits", "--device=cpu", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert scores["top1"] > 0.3  # ten classes


def test_stages_change_the_size_and_evaluation_keeps_its_own(pictures, tmp_path, monkeypatch):
    sizes, original = [], Trainer.train_step

    def train_step(trainer, batch, preprocessing):
        sizes.append(batch.pixels.shape[-1])
        original(trainer, batch, preprocessing)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    for engine in ("resident", "workers"):
        sizes.clear()
        stages = [{"until": 0.75, "img_size": 12}, {"until": 0.5, "img_size": 8}]
        settings = {
            "img_size": 16,
            "stages": stages,
            "data.engine": engine,
            "architecture.rope": False,
            "architecture.init": "paper",
        }
        run = train(pictures, tmp_path / engine, settings)
        assert sizes == [8] * 6 + [12] * 3 + [16] * 3
        told = [row["text"] for row in rows_of(run.folder) if row.get("stage")]
        first = "to step 6: pictures of 8 x 8"
        assert told == [first, "from step 7 on: pictures of 12 x 12", "from step 10 on: pictures of 16 x 16"]
        assert run.best.preprocessing.size == (16, 16)


def test_stages_leave_patches_out_and_then_none(pictures, tmp_path, monkeypatch):
    kept, original = [], ViT._encode

    def encode(model, pictures, mask, keep, *rest, **options):
        if model.training:
            kept.append(None if keep is None else keep.shape[1])
        return original(model, pictures, mask, keep, *rest, **options)

    monkeypatch.setattr(ViT, "_encode", encode)
    stages = [{"until": 0.75, "patch_drop": 0.0}, {"until": 0.5, "patch_drop": 0.5}]
    settings = {"img_size": 16, "stages": stages, "architecture.patch_size": 4, "architecture.patch_drop": 0.25}
    run = train(pictures, tmp_path / "run", settings)
    assert kept == [8] * 6 + [None] * 3 + [12] * 3
    assert not run.best.model.config.dynamic_img_size


@pytest.mark.parametrize("engine", ["resident", "workers"])
def test_a_stage_has_the_batches_of_a_training_with_its_augmentation(pictures, tmp_path, monkeypatch, engine):
    seen, original = [], Trainer.train_step

    def train_step(trainer, batch, preprocessing):
        seen.append((batch.pixels.clone(), batch.inputs(preprocessing), batch.targets(3)))
        original(trainer, batch, preprocessing)

    def batches(name, settings):
        seen.clear()
        train(pictures, tmp_path / name, {"img_size": 16, "data.engine": engine, **settings})
        return list(seen)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    strong = {"crop": "pad", "policy": "randaugment", "mixup": 0.8, "cutmix": 1.0, "erase": 0.5}
    light = {"augmentation": {"crop": "pad", "hflip": 0.0}}
    mixed = batches("strong", {"augmentation": strong})
    plain = batches("light", light)
    both = batches("both", light | {"stages": [{"until": 0.75, "augmentation": strong}]})
    assert len(both) == 12
    for one, other in zip(both, mixed[:9] + plain[9:], strict=True):
        assert all(torch.equal(here, there) for here, there in zip(one, other, strict=True))
    assert mixed[9][2].ndim == 2  # mixed labels,
    assert plain[9][2].ndim == 1  # and not


def test_a_resnet_has_no_patches_to_leave_out(pictures, tmp_path):
    changes = {"model": "resnetv2_50x1_bit", "stages": [{"until": 0.5, "patch_drop": 0.5}], "steps": 2}
    with pytest.raises(ConfigError, match="a ResNet has no patches"):
        vitrail.train(pictures, recipe="small", out=tmp_path / "run", changes=changes | {"architecture": {}})
    assert not (tmp_path / "run").exists()


def test_patience_ends_a_training_that_gets_no_better(pictures, tmp_path):
    run = train(pictures, tmp_path / "run", {"steps": 500, "eval_epochs": 0.1, "patience": 3, "optimiser.lr": 1e-12})
    evaluations = [row for row in rows_of(run.folder) if row["kind"] == "eval"]
    best = max(index for index, row in enumerate(evaluations) if row["best"])
    assert len(evaluations) == best + 1 + 3
    assert run.facts["steps"] == evaluations[-1]["step"] < 500
    assert run.is_complete


@pytest.mark.parametrize("balanced", [False, True])
def test_balanced_classes_come_equally_often(tmp_path, monkeypatch, balanced):
    data = make_pictures(tmp_path / "pictures")
    for number in range(45):
        (data / "kind 0" / f"{number:03}.png").unlink()
    labels, original = [], Trainer.train_step

    def train_step(trainer, batch, preprocessing):
        labels.extend(batch.labels.tolist())
        original(trainer, batch, preprocessing)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    train(data, tmp_path / "run", {"data.balanced": balanced, "steps": 60})
    rare = np.mean(np.array(labels) == 0)
    assert abs(rare - (0.5 if balanced else 8 / 61)) < 0.11  # over three standard deviations of 240 draws


def test_class_weights_make_a_rare_class_count_as_much(tmp_path):
    data = make_pictures(tmp_path / "pictures")
    for number in range(45):
        (data / "kind 0" / f"{number:03}.png").unlink()
    plain, weighted = (
        train(data, tmp_path / str(on), {"loss.class_weights": on, "steps": 1, "batch_size": 32})
        for on in (False, True)
    )
    losses = [next(row["loss"] for row in rows_of(run.folder)) for run in (plain, weighted)]
    assert losses[0] != losses[1]


def test_bf16_computes_in_bf16_and_keeps_float32(pictures, tmp_path, monkeypatch):
    kinds = set()
    original = torch.nn.functional.linear

    def linear(*rest):
        made = original(*rest)
        kinds.add(made.dtype)
        return made

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    run = train(pictures, tmp_path / "run", {"precision": "bf16"})
    assert torch.bfloat16 in kinds
    assert all(tensor.dtype == torch.float32 for tensor in run.last.model.state_dict().values())
    rows = [row for row in rows_of(run.folder) if row["kind"] == "train"]
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_sam_goes_through_the_model_twice(pictures, tmp_path, monkeypatch):
    calls, original = [], Trainer._gradients
    monkeypatch.setattr(Trainer, "_gradients", lambda *rest: (calls.append(1), original(*rest))[1])
    train(pictures, tmp_path / "run", {"optimiser.sam": 0.05, "steps": 4})
    assert len(calls) == 8


def test_runs_are_numbered(pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [train(pictures, None, {"steps": 1}).folder for _ in range(2)]
    assert [str(folder) for folder in folders] == ["runs/pictures-1", "runs/pictures-2"]


@pytest.mark.parametrize("engine", ["resident", "workers"])
def test_what_a_stage_held_is_gone_before_the_next_begins(pictures, tmp_path, monkeypatch, engine):
    """All pixels lie on the device: there may be no room for them twice."""
    loaders, alive = [], []
    original = Feeding.loader

    def loader(feeding, step):
        feeding._residents.clear()  # as it does for another stage, before the pixels are sent again
        alive.append(sum(one() is not None for one in loaders))
        found = original(feeding, step)
        loaders.append(weakref.ref(found[0]))
        return found

    monkeypatch.setattr(Feeding, "loader", loader)
    stages = [{"until": 0.4, "augmentation": {"hflip": 0.1}}, {"until": 0.7, "augmentation": {"hflip": 0.3}}]
    train(pictures, tmp_path / "run", {"stages": stages, "data.engine": engine})
    assert len(alive) >= 3
    assert not any(alive)


def test_of_a_training_nothing_is_left_in_memory(pictures, tmp_path, monkeypatch):
    """Another one in the same process has all of it."""
    made = []
    original = Trainer.__post_init__

    def remember(trainer):
        made.append(weakref.ref(trainer))
        original(trainer)

    monkeypatch.setattr(Trainer, "__post_init__", remember)
    train(pictures, tmp_path / "run", {"steps": 2})
    assert [one() for one in made] == [None]
