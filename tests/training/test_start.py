"""Where a training starts from: scratch, a model with other classes, with the same ones, at another size."""

import pytest
import torch

import vitrail
from tests.training.running import TINY, flags, make_pictures, rows_of
from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.training.recipe import Recipe

FINE = {name: value for name, value in TINY.items() if not name.startswith("architecture.")}
FINE = FINE | {"steps": 1, "optimiser.lr": 1e-12, "optimiser.weight_decay": 0.0, "ema": 0.0}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    pictures = make_pictures(folder / "pictures")
    return pictures, vitrail.train(pictures, recipe="small", out=folder / "run", changes=TINY, device="cpu")


def state(classifier):
    return classifier.model.state_dict()


def tune(data, start, out, settings=FINE):
    return vitrail.train(data, recipe="finetune", start=start, out=out, changes=settings, device="cpu")


def test_other_classes_get_a_fresh_head_on_the_same_body(first, tmp_path):
    _, run = first
    other = make_pictures(tmp_path / "other", classes=3)
    tuned = tune(other, run.folder, tmp_path / "run").last
    assert tuned.classes == ["kind 0", "kind 1", "kind 2"]
    before, after = state(run.best), state(tuned)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        if not name.startswith("head"):
            torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-9)
    assert after["head.weight"].shape[0] == 3


def test_the_same_classes_keep_their_head(first, tmp_path):
    pictures, run = first
    tuned = tune(pictures, str(run.folder / "best"), tmp_path / "run").last
    torch.testing.assert_close(state(tuned)["head.weight"], state(run.best)["head.weight"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("given", [True, False])
def test_another_size(first, tmp_path, given):
    pictures, run = first
    tuned = tune(pictures, run.best if given else run.folder, tmp_path / "run", FINE | {"img_size": 16}).last
    assert tuned.preprocessing.size == (16, 16)
    assert tuned.model.config.img_size == (16, 16)


def test_a_classifier_given_in_python_is_not_changed_in_its_place(first, tmp_path):
    """What is passed in stays the caller's: its head and its weights are as before."""
    _, run = first
    other = make_pictures(tmp_path / "other", classes=3)
    given = run.best
    before = {name: tensor.clone() for name, tensor in state(given).items()}
    settings = FINE | {"optimiser.lr": 0.1}
    vitrail.train(other, recipe=Recipe(), start=given, out=tmp_path / "run", changes=settings, device="cpu")
    assert all(torch.equal(before[name], tensor) for name, tensor in state(given).items())
    assert len(given.classes) == 2


def test_the_recipe_of_a_run_that_began_with_weights_says_which(first, tmp_path):
    pictures, run = first
    tuned = tune(pictures, str(run.folder), tmp_path / "tuned")
    words = f"to train the same again, give --from {run.folder}"
    options = {"recipe": tuned.folder, "changes": TINY | {"steps": 1}, "device": "cpu"}
    for name, start in (("anew", None), ("again", str(run.folder))):
        made = vitrail.train(pictures, start=start, out=tmp_path / name, **options)
        said = [row["text"] for row in rows_of(made.folder) if row["kind"] == "event"]
        assert [words in line for line in said] == ([True] if start is None else [])
    (made.folder / "run.json").unlink()  # a folder with a recipe in it, and no run
    assert vitrail.train(pictures, recipe=made.folder, out=tmp_path / "plain", changes=FINE, device="cpu").is_complete


def test_scratch_is_a_function_of_the_seed(first, tmp_path):
    pictures, _ = first
    settings = TINY | {"steps": 1, "optimiser.lr": 1e-30, "ema": 0.0}
    one, two, other = (
        vitrail.train(pictures, recipe="small", out=tmp_path / str(k), changes=settings | {"seed": seed}, device="cpu")
        for k, seed in enumerate((0, 0, 1))
    )
    assert all(torch.equal(tensor, state(two.last)[name]) for name, tensor in state(one.last).items())
    assert not torch.equal(state(one.last)["head.weight"], state(other.last)["head.weight"])


def test_a_run_without_a_model_yet_says_so(first, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(VitrailError, match="has no model yet"):
        vitrail.load(tmp_path)


def test_the_architecture_of_a_given_model_stays(first, tmp_path, capsys):
    pictures, run = first
    given = ["train", str(pictures), f"--from={run.folder}", "--device=cpu", f"--out={tmp_path / 'run'}"]
    assert main([*given, *flags(FINE), "--architecture.depth=3"]) == 1
    assert "architecture.depth cannot be changed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
