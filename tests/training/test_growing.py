"""`--grow-from`: a deeper model begins as the shallower one that was trained."""

import shutil

import pytest
import torch

import vitrail
from tests.training.running import TINY, assert_same_training, flags, make_pictures
from vitrail.cli import main
from vitrail.errors import ConfigError, VitrailError
from vitrail.training.recipe import Recipe
from vitrail.training.train import resume

DEEP = TINY | {"architecture.depth": 5}
STILL = DEEP | {"steps": 1, "optimiser.lr": 1e-30, "optimiser.weight_decay": 0.0, "ema": 0.0}
STILL |= {"optimiser.name": "adamw"}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    pictures = make_pictures(folder / "pictures")
    return pictures, vitrail.train(pictures, recipe="small", out=folder / "run", changes=TINY, device="cpu")


def grown(data, start, out, settings=STILL, **options):
    return vitrail.train(data, recipe="small", grow_from=start, out=out, changes=settings, device="cpu", **options)


@pytest.mark.parametrize("given", [True, False])
def test_a_run_begins_with_the_answers_of_the_shallow_model(first, tmp_path, given):
    pictures, run = first
    shallow = run.best
    deep = grown(pictures, shallow if given else str(run.folder), tmp_path / "run")
    assert len(deep.last.model.blocks) == 5
    assert len(shallow.model.blocks) == 2
    assert deep.facts["grow_from"] == ("given in Python" if given else str(run.folder))
    assert deep.facts["start"] is None
    files = sorted(pictures.rglob("*.png"))[:8]
    torch.testing.assert_close(deep.last.logits(files), shallow.logits(files), rtol=0, atol=1e-6)


def test_new_blocks_learn(first, tmp_path):
    pictures, run = first
    deep = grown(pictures, run.folder, tmp_path / "run", DEEP).last.model
    for number in (1, 2, 4):  # the copies
        for matrix in (deep.blocks[number].attn.proj.weight, deep.blocks[number].mlp.fc2.weight):
            assert matrix.abs().max() > 0


def test_other_classes_and_another_size(first, tmp_path):
    _, run = first
    other = make_pictures(tmp_path / "other", classes=3)
    deep = grown(other, run.folder, tmp_path / "run", STILL | {"img_size": 16}).last
    assert deep.classes == ["kind 0", "kind 1", "kind 2"]
    assert deep.preprocessing.size == (16, 16)
    same = vitrail.load(run.folder, img_size=16).model
    torch.testing.assert_close(deep.model.pos_embed, same.pos_embed, rtol=0, atol=1e-9)
    pictures = torch.randn(2, 3, 16, 16)
    features = deep.model.forward_features(pictures)
    torch.testing.assert_close(features, same.forward_features(pictures), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("way", "in_python"), [("grow_from", False), ("start", False), ("start", True)])
def test_a_run_goes_on_when_what_it_began_with_is_gone(first, tmp_path, way, in_python):
    """The start's weights are needed until the first checkpoint, and then no more."""
    pictures, run = first
    place, start = tmp_path / "whole", shutil.copytree(run.folder / "best", tmp_path / "shallow")
    fits = {key: value for key, value in DEEP.items() if way == "grow_from" or "architecture" not in key}
    recipe = "small" if way == "grow_from" else "finetune"
    given = vitrail.load(start) if in_python else str(start)
    vitrail.train(pictures, out=place, recipe=recipe, changes=fits, device="cpu", **{way: given})
    cut = shutil.copytree(place, tmp_path / "cut")
    for later in sorted((cut / "checkpoints").glob("step-*"))[1:]:
        shutil.rmtree(later)
    shutil.rmtree(start)
    halved = vitrail.Run.open(cut)
    halved.write_facts({**halved.facts, "complete": False})
    resume(cut, device="cpu")
    assert_same_training(place, cut)


def test_a_model_given_in_python_is_needed_until_the_first_checkpoint(first, tmp_path):
    pictures, run = first
    begun = grown(pictures, run.best, tmp_path / "run")
    begun.write_facts({**begun.facts, "complete": False})
    shutil.rmtree(begun.folder / "checkpoints")
    with pytest.raises(VitrailError, match="began with a model given in Python, and is not saved"):
        resume(begun.folder, device="cpu")


def test_only_a_vit_grows(first, tmp_path):
    pictures, run = first
    with pytest.raises(ConfigError, match="only a ViT grows"):
        vitrail.train(pictures, recipe=Recipe(model="r26_small"), grow_from=run.folder, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"architecture.depth": 2}, "depth 2 does not grow to depth 2"),
        ({"architecture.embed_dim": 64}, "has embed_dim=32, not 64"),
        ({"architecture.patch_size": 2}, "patch_size"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_anything_is_made(first, tmp_path, capsys, settings, words):
    pictures, run = first
    out = tmp_path / "run"
    given = ["train", str(pictures), "--recipe=small", f"--out={out}", "--device=cpu", f"--grow-from={run.folder}"]
    assert main([*given, *flags(DEEP | settings)]) == 1
    said = capsys.readouterr().err
    assert words in said.splitlines()[-1]
    assert "unexpected" not in said
    assert not out.exists()


def test_a_training_starts_from_one_model(first, tmp_path, capsys):
    pictures, run = first
    given = ["train", str(pictures), f"--from={run.folder}", f"--grow-from={run.folder}", f"--out={tmp_path / 'run'}"]
    assert main(given) == 1
    assert "--from and --grow-from exclude each other" in capsys.readouterr().err
    assert main(["train", "--resume", str(run.folder), "--grow-from", "x"]) == 1
    assert "leave out --grow-from" in capsys.readouterr().err
