"""`vitrail pretrain` from end to end: what a run leaves behind, what can be done with it, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.pretraining.settings import settings
from tests.training.running import assert_same_training, command, flags, make_pictures, rows_of, state_of
from vitrail.cli import main
from vitrail.training.log import read_log

METHODS = ["masked", "mae", "dino"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("data") / "pictures", size=16, each=40)


@pytest.fixture(scope="module")
def runs(pictures, tmp_path_factory):
    """One run of each method."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return {name: learn(pictures, folder / name, name) for name in METHODS}


def learn(data, run: Path, method: str, **more) -> vitrail.Run:
    changes = settings(method, **more)
    return vitrail.pretrain(data, recipe=f"cifar10-{method}", out=run, changes=changes, device="cpu")


@pytest.mark.parametrize("method", METHODS)
def test_a_run_holds_an_encoder_and_what_there_is_to_see(runs, method):
    run = runs[method]
    assert run.is_complete
    encoder = run.last
    assert encoder.classes == []
    assert type(encoder.model) is vitrail.ViT
    assert encoder.model(torch.randn(2, 3, 16, 16)).shape == (2, 32)
    name = "features" if method == "dino" else "reconstruction"
    shown = sorted(path.name for path in (run.folder / "progress").iterdir())
    assert len(shown) >= 4
    assert (run.folder / f"{name}.png").read_bytes() == (run.folder / "progress" / shown[-1]).read_bytes()
    with Image.open(run.folder / f"{name}.png") as picture:
        assert min(picture.size) > 100
    page = (run.folder / "report.html").read_text()
    assert f"learned without labels: {method}" in page
    assert "vitrail train DATA --from" in page
    assert {"augmented.png", "curves.png", "log.jsonl", "recipe.toml"} <= {path.name for path in run.folder.iterdir()}
    judged = [row for row in read_log(run.folder) if row["kind"] == "eval"]
    assert all(0 <= row["knn"] <= 1 for row in judged)
    assert all(("loss" in row) is (method != "dino") for row in judged)
    trained = [row for row in read_log(run.folder) if row["kind"] == "train"]
    assert all(("accuracy" in row) is (method == "masked") for row in trained)
    assert (run.folder / "best").exists() is (method != "dino")
    assert run.scores.keys() == ({"knn"} if method == "dino" else {"loss", "knn"})


@pytest.mark.parametrize("method", METHODS)
def test_training_and_probes_take_the_encoder_as_it_is(runs, pictures, tmp_path, method, capsys):
    changes = {"batch_size": 8, "steps": 4, "data.workers": 0, "schedule.warmup_epochs": 0}
    start = runs[method].folder
    trained = vitrail.train(
        pictures, recipe="finetune", start=str(start), out=tmp_path / "run", device="cpu", changes=changes
    )
    assert trained.best.classes == ["kind 0", "kind 1"]
    assert trained.best.preprocessing == runs[method].last.preprocessing
    assert main(["probe", str(start), str(pictures), "--method", "knn", "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_the_encoder_is_the_teachers(runs):
    tensors, _ = state_of(runs["dino"].folder)
    for name, tensor in runs["dino"].last.model.state_dict().items():
        assert torch.equal(tensor, tensors[f"model.teacher.{name}"])
        assert not torch.equal(tensor, tensors[f"model.{name}"])


def test_the_encoder_is_the_average_where_there_is_one(runs):
    tensors, _ = state_of(runs["masked"].folder)
    for name, tensor in runs["masked"].last.model.state_dict().items():
        assert torch.equal(tensor, tensors[f"ema.{name}"])


@pytest.mark.parametrize("method", METHODS)
def test_killed_it_goes_on_to_the_same_bits(runs, pictures, tmp_path, method):
    run, said = tmp_path / "killed", tmp_path / "said"
    arguments = ["pretrain", str(pictures), f"--recipe=cifar10-{method}", f"--out={run}", "--device=cpu"]
    arguments += [
        flag.replace("=True", "").replace("--compile=False", "--no-compile") for flag in flags(settings(method))
    ]
    process = command(arguments, said, die=(7, 0.0))
    process.join(120)
    assert process.exitcode == -9, said.read_text()
    process = command(["pretrain", f"--resume={run}", "--device=cpu"], said)
    process.join(120)
    assert process.exitcode == 0, said.read_text()
    if method != "dino":
        assert_same_training(runs[method].folder, run)
    (tensors, plain), (others, other) = state_of(runs[method].folder), state_of(run)
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    assert plain == other
    assert rows_of(run) == rows_of(runs[method].folder)


def test_a_run_of_either_kind_goes_on_by_either_command(pictures, tmp_path, capsys):
    run = learn(pictures, tmp_path / "run", "mae")
    run.write_facts({**run.facts, "complete": False})
    assert main(["train", "--resume", str(run.folder), "--device", "cpu"]) == 0
    assert vitrail.resume(run.folder, device="cpu").is_complete
    assert main(["pretrain", "--resume", str(run.folder), "--epochs", "3"]) == 1
    assert "leave out --epochs" in capsys.readouterr().err


def noise(folder: Path, names: list[str]) -> Path:
    numbers = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(numbers.integers(0, 256, (16, 16, 3)).astype(np.uint8)).save(folder / name)
    return folder


def test_folders_need_no_classes(tmp_path, capsys):
    flat = noise(tmp_path / "flat", [f"{k}.png" for k in range(20)])
    nested = noise(tmp_path / "nested", [*(f"a/b/{k}.png" for k in range(10)), *(f"{k}.png" for k in range(10))])
    for data in (flat, nested):
        changes = settings("mae", steps=2)
        arguments = [flag.replace("--compile=False", "--no-compile") for flag in flags(changes)]
        assert main(["pretrain", str(data), "--method=mae", f"--out={data}-run", "--device=cpu", *arguments]) == 0
        said = capsys.readouterr().out
        assert "14 pictures to train, 6 to validate" in said
        assert ("labels are there and are not used" in said) is (data == nested)
        assert "vitrail train YOUR-FOLDER --from" in said
        assert vitrail.Run.open(f"{data}-run").facts["recipe"] == "cifar10-mae"  # chosen, as the pictures are small


def test_pictures_of_one_colour_and_of_any_size_are_learned_from(tmp_path):
    for k in range(20):
        Image.new("RGB", (3 + k, 40 - k), (10 * k, 100, 50)).save(tmp_path / f"{k}.png")
    for method in METHODS:
        run = learn(tmp_path, tmp_path / f"run-{method}", method, steps=3, **{"pixels.crop_pct": 1.0})
        rows = [row for row in read_log(run.folder) if row["kind"] == "train"]
        assert rows
        assert all(row["loss"] is not None and np.isfinite(row["loss"]) and row["skipped_steps"] == 0 for row in rows)


REFUSED = {
    "mae.mask_ratio = 1: nothing is left to see": ["--method=mae", "--mask-ratio=1"],
    "mae.mask_ratio = 0: nothing is left to predict": ["--method=mae", "--mask-ratio=0"],
    "masked.mask_ratio = 1: nothing is left to see": ["--method=masked", "--mask-ratio=1.0"],
    "choose one of masked, mae, dino": ["--method=mae", "--target=pixels"],
    "mixup and cutmix mix labels": ["--method=mae", "--augmentation.mixup=0.5"],
    "the average of the weights": ["--method=dino", "--ema=0.9"],
    "patience needs a loss": ["--method=dino", "--patience=3"],
    "crops are not erased": ["--method=dino", "--augmentation.erase=0.5"],
    "crop by crop": ["--method=dino", "--augmentation.blur=0.5"],
    "is not filled by patches": ["--method=dino", "--dino.local-size=10"],
    "recipe for training with labels": ["--recipe=small"],
    "is a recipe for dino, not for mae": ["--recipe=dino", "--method=mae"],
    "mix labels, and there are none": ["--recipe=small", "--method=mae"],
    "patches of the picture": ["--recipe=mae", "--model=r50_vit_b16"],
    "has no patches to learn from": ["--recipe=masked", "--model=r26_small"],
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_one_line_and_leaves_no_folder(pictures, tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", str(pictures), "--device=cpu", "--batch-size=8", "--accumulate=1", *REFUSED[words]]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_other_mistakes_are_said(pictures, tmp_path, capsys):
    assert main(["pretrain"]) == 1
    assert "nothing to learn from" in capsys.readouterr().err
    assert main(["pretrain", str(pictures), "--method=simclr"]) == 2
    assert main(["pretrain", str(tmp_path / "nothing")]) == 1
    assert main(["train", str(pictures), "--recipe=cifar10-mae"]) == 1
    assert "use vitrail pretrain" in capsys.readouterr().err


def test_a_masked_autoencoder_of_others_goes_on_with_its_decoder(pictures, tmp_path, capsys):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.ViTMAEConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=128, image_size=16,
        patch_size=4, decoder_hidden_size=16, decoder_num_hidden_layers=1, decoder_num_attention_heads=2,
        decoder_intermediate_size=64,
    )  # fmt: skip
    theirs = transformers.ViTMAEForPreTraining(config)
    theirs.save_pretrained(tmp_path / "theirs")
    changes = {"mae.decoder_dim": 16, "mae.decoder_depth": 1, "mae.decoder_heads": 2, "steps": 1, "batch_size": 8}
    changes |= {"optimiser.lr": 1e-12, "schedule.warmup_epochs": 0, "compile": False, "data.workers": 0}
    run = vitrail.pretrain(
        pictures, recipe="mae", start=str(tmp_path / "theirs"), out=tmp_path / "run", device="cpu", quiet=False,
        changes=changes | {"architecture": {}},
    )  # fmt: skip
    assert "with its decoder" in capsys.readouterr().out
    tensors, _ = state_of(run.folder)
    torch.testing.assert_close(tensors["model.decoder_pred.weight"], theirs.decoder.decoder_pred.weight.detach())
    torch.testing.assert_close(tensors["model.mask_token"], theirs.decoder.mask_token.detach())
    torch.testing.assert_close(tensors["model.cls_token"], theirs.vit.embeddings.cls_token.detach())
