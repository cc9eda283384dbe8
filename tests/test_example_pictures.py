"""The pictures that come with the package: drawn by a script of this project, and known to the model beside them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail import assets

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "draw_pictures.py"
PICTURES = {path.stem: path for path in assets.pictures()}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    subprocess.run([sys.executable, SCRIPT, "--out", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def model() -> vitrail.Classifier:
    return vitrail.load(assets.BUNDLED)


@pytest.fixture(scope="module")
def predictions(model) -> dict:
    return dict(zip(PICTURES, model.predict(list(PICTURES.values())), strict=True))


def test_the_script_draws_these_pictures_and_no_others(drawn):
    assert {path.stem for path in drawn.iterdir()} == set(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_the_script_draws_a_picture_again_pixel_for_pixel(drawn, name):
    with Image.open(PICTURES[name]) as kept, Image.open(drawn / f"{name}.png") as again:
        np.testing.assert_array_equal(np.asarray(kept.convert("RGB")), np.asarray(again.convert("RGB")))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small(name):
    assert PICTURES[name].stat().st_size < 40_000
    with Image.open(PICTURES[name]) as picture:
        assert picture.size == (256, 256)


@pytest.mark.parametrize("name", PICTURES)
def test_the_model_says_what_a_picture_shows(predictions, name):
    assert predictions[name].label == name.split("-")[0]
    assert predictions[name].score >= 0.6


def test_each_class_has_a_picture(model):
    assert {name.split("-")[0] for name in PICTURES} == set(model.classes)
