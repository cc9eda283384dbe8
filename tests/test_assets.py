"""The model that comes with the package is what its card says."""

import re

import pytest

import vitrail
from vitrail import assets
from vitrail.data.arrays import from_arrays
from vitrail.model.zoo import find
from vitrail.training.recipe_files import read_recipe

FOLDER = assets.HERE / assets.BUNDLED


def stated() -> float:
    found = re.search(r"\*\*(\d+\.\d+)%\*\*", (FOLDER / "README.md").read_text())
    assert found
    return float(found[1])


def some(cifar10_test, count):
    pictures, labels, classes = cifar10_test
    return from_arrays("cifar10", pictures[:count], labels[:count], classes, {"test": count})


def test_it_is_small_and_loads_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = vitrail.load(assets.BUNDLED)
    assert sum(parameter.numel() for parameter in model.model.parameters()) <= 3_000_000
    assert (FOLDER / "model.safetensors").stat().st_size <= 6_000_000
    assert len(model.classes) == 10


def test_it_is_the_architecture_of_that_name_and_what_its_recipe_trains():
    config = vitrail.load(assets.BUNDLED).model.config
    assert config == find(assets.BUNDLED).config
    assert read_recipe("cifar10-small").model == assets.BUNDLED


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    vitrail.Classifier(vitrail.create("vit_ti16", img_size=32, num_classes=2, depth=1)).save(tmp_path / assets.BUNDLED)
    monkeypatch.chdir(tmp_path)
    assert len(vitrail.load(assets.BUNDLED).classes) == 2


def test_some_test_pictures_are_recognised_as_the_card_says(cifar10_test):
    """Of 500, within 3 standard deviations of what 500 draws would give."""
    report = vitrail.evaluate(assets.BUNDLED, some(cifar10_test, 500), split="test")
    spread = (stated() * (100 - stated()) / 500) ** 0.5
    assert abs(100 * report.scores.top1 - stated()) < 3 * spread


@pytest.mark.slow
def test_all_test_pictures_give_the_figure_of_the_card(cifar10_test):
    report = vitrail.evaluate(assets.BUNDLED, some(cifar10_test, 10_000), split="test")
    assert 100 * report.scores.top1 == pytest.approx(stated(), abs=0.03)
