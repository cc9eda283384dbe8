"""`vitrail look` as a user meets it: a folder with figures, a page, numbers, and a line for what cannot be."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import vitrail
from tests.figures.models import make, make_resnet
from tests.pages.reading import EVIL, Reading
from vitrail import figures
from vitrail.cli import main
from vitrail.figures.gather import gather
from vitrail.figures.shown import methods_of

CLASSES = ["rose", "tulip", "daisy", "poppy", "lily"]
OF_VIT = {"attention", "heads", "explanation", "deletion", "tokens"}


def classifier(kind: str = "class token", **changes: Any) -> vitrail.Classifier:
    model = make_resnet(**changes) if kind == "resnet" else make(kind, **changes)
    return vitrail.Classifier(model, classes=CLASSES[: model.config.num_classes])


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name in ("a.jpg", "b.png"):
        Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(folder / name)
    return folder


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def viewers(page: Path) -> list[dict[str, Any]]:
    """The data of the page's viewers, as its script reads them."""
    parts = page.read_text(encoding="utf-8").split('<script type="application/json">')[1:]
    return [json.loads(part.partition("</script>")[0]) for part in parts]


def test_a_look_is_a_folder_with_figures_a_page_and_numbers(photos: Path, tmp_path: Path, capsys) -> None:
    model = classifier().save(tmp_path / "model")
    out = tmp_path / "look"
    code, printed, _ = run(capsys, "look", model, photos, "--out", out, "--steps", 4, "--class", "daisy", "--json")
    assert code == 0
    told = json.loads(printed)
    assert {name.partition("-")[2] for name in told["drawn"] if name.startswith("02")} == {f"{k}.png" for k in OF_VIT}
    assert {"filters.png", "positions-learned.png", "distances.png", "norms.png"} < set(told["drawn"])
    for name in told["drawn"]:
        with Image.open(out / name) as picture:
            assert picture.width > 300
    assert [one["class"] for one in told["pictures"]] == ["daisy", "daisy"]
    assert set(told["pictures"][0]["deletion_area"]) == {*figures.METHODS, "random"}
    assert np.shape(told["attention_distance_pixels"]) == (3, 4)
    assert json.loads((out / "look.json").read_text())["averaged_over"] == 2
    text = (out / "look.html").read_text()
    assert Reading(text).open == []
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert run(capsys, "look", model, photos, "--out", out)[0] == 1  # it is there already
    (out / "mine.txt").touch()
    assert "more than an earlier look" in run(capsys, "look", model, photos, "--out", out, "--overwrite")[2]


def test_the_page_holds_the_maps_that_the_arrays_have(photos: Path, tmp_path: Path) -> None:
    model = classifier("not square", embed_dim=32)
    found = vitrail.look(model, photos / "a.jpg", tmp_path / "look", steps=2)
    (data,) = viewers(found.page)
    assert data["grid"] == [3, 5]
    pixels = torch.from_numpy(model.preprocessing(photos / "a.jpg"))[None]
    maps = figures.attention_maps(model.model, pixels)[0]
    held = np.frombuffer(base64.b64decode(data["maps"]["attention"]["values"]), np.uint8).reshape(3, 5, 3, 5)
    spans = np.array(data["maps"]["attention"]["spans"]).reshape(3, 5, 2)
    for layer, head in ((0, 1), (2, 4)):
        low, high = spans[layer, head]
        wanted = (maps[layer, head - 1] / maps[layer, head - 1].mean()).numpy()  # the first is the mean of heads
        np.testing.assert_allclose(low + (high - low) * held[layer, head] / 255, wanted, atol=0.01)
    likeness = np.frombuffer(base64.b64decode(data["maps"]["likeness"]["values"]), np.uint8).reshape(15, 15)
    assert (np.diag(likeness) == 255).all()
    assert set(data["maps"]) == {"rollout", "attention", "attribution", "attention_gradient", "grad_cam", "likeness"}


@pytest.mark.parametrize(
    ("kind", "changes", "positions", "words"),
    [
        ("mean", {"positions": "none"}, [], ["no positions", "by their mean"]),
        ("distilled", {"depth": 1}, ["learned"], ["two tokens"]),
        ("pooled by attention", {"positions": "sincos_2d"}, ["fixed"], ["pools by attention"]),
        ("relative bias", {"rope": True}, ["learned", "rope", "bias"], []),
        ("convolutions first", {"num_classes": 0}, ["learned"], ["no head", "Convolutions"]),
    ],
)
def test_every_model_has_what_exists_for_it_and_a_line_for_the_rest(
    kind: str, changes: dict[str, Any], positions: list[str], words: list[str], photos: Path
) -> None:
    model = classifier(kind, **changes)
    seen = gather(model, photos, target=None, steps=1, shown=1, averaged=2, progress=None)
    assert list(seen.positions) == positions
    assert len(seen.notes) == len(words)
    assert all(any(word in note for note in seen.notes) for word in words)
    assert seen.distances.shape == (2, model.model.config.depth, 4)
    (one,) = seen.pictures
    assert one.by_layer.shape == (model.model.config.depth, 4, 4)
    assert set(one.explanations) == (set(methods_of(model)) if model.classes else set())


@pytest.mark.parametrize(
    ("kind", "changes", "drawn", "word"),
    [
        ("rope, qk-norm, rms", {"in_chans": 1}, {*OF_VIT, "positions-rope", "filters", "distances", "norms"}, "mean"),
        ("resnet", {}, {"explanation", "deletion", "tokens", "filters"}, "no attention and no positions"),
    ],
)
def test_models_without_a_class_token_and_without_attention_have_their_figures(
    kind: str, changes: dict[str, Any], drawn: set[str], word: str, photos: Path, tmp_path: Path
) -> None:
    found = vitrail.look(classifier(kind, **changes), photos / "b.png", tmp_path / "look", steps=2)
    assert {name.removeprefix("01-").removesuffix(".png") for name in found.drawn} == drawn
    assert word in found.notes[0]
    assert len(viewers(found.page)) == 1


def test_without_pictures_the_model_alone_is_looked_at(tmp_path: Path, capsys) -> None:
    model = classifier().save(tmp_path / "model")
    code, printed, _ = run(capsys, "look", model, "--out", tmp_path / "look", "--img-size", "48x16")
    assert code == 0
    assert "give some to see attention" in printed
    names = {path.name for path in (tmp_path / "look").iterdir()}
    assert names == {"look.html", "look.json", "filters.png", "positions-learned.png"}
    assert "6 × 2" in (tmp_path / "look" / "look.html").read_text(encoding="utf-8")


def test_unreadable_pictures_are_named_and_the_page_is_safe(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "broken.jpg").write_bytes(b"nothing")
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(folder / f"{EVIL}.png")
    found = vitrail.look(classifier(), folder, tmp_path / "look", steps=1)
    assert [name.rpartition("/")[2] for name, _ in found.skipped] == ["broken.jpg"]
    reading = Reading(found.page.read_text(encoding="utf-8"))
    assert EVIL in "".join(reading.text)
    assert all("onerror" not in attributes for _, attributes in reading.tags)
    model = classifier().save(tmp_path / "model")
    code, _, err = run(capsys, "look", model, folder / "broken.jpg", "--out", tmp_path / "other")
    assert code == 1
    assert err.count("broken.jpg") == 1
    shutil.copy(folder / "broken.jpg", folder / "worse.jpg")
    code, _, err = run(capsys, "look", model, folder / "broken.jpg", folder / "worse.jpg", "--out", tmp_path / "other")
    assert code == 1
    assert "none of 2 files is a picture: " in err
    assert err.count("broken.jpg") == 1
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--class", "cactus"], "no class 'cactus': its classes are 'rose', 'tulip', 'daisy'"),
        (["--class", "tulips"], "no class 'tulips': did you mean 'tulip'?"),
        (["--class", "5"], "no class 5: the model has classes 0 to 4"),
        (["--patch", "4,0"], "no patch in row 4, column 0: the grid is 4 x 4"),
        (["--patch", "4"], "--patch 4 must be a row and a column"),
        (["--img-size", "big"], "--img-size big is not understood: give it as 384 or 224x448"),
        (["--shown", "0"], "shown from 1 to"),
        (["nowhere.jpg"], "there is no nowhere.jpg: check the path"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(flags: list[str], words: str, photos: Path, tmp_path: Path, capsys) -> None:
    model = classifier().save(tmp_path / "model")
    code, _, err = run(capsys, "look", model, photos / "a.jpg", *flags, "--out", tmp_path / "look")
    assert code == 1
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "look").exists()


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("attention", {"rollout": (4, 4), "by_layer": (3, 4, 4)}),
        ("heads", {"attention": (3, 4, 4, 4)}),
        ("explanation", dict.fromkeys(figures.METHODS, (4, 4))),
        ("tokens", {"colours": (4, 4, 3), "similarity": (4, 4), "norms": (3, 4, 4)}),
        ("similarity", {"similarity": (4, 4)}),
        ("norms", {"norms": (1, 3, 4, 4)}),
        ("distances", {"distances": (1, 3, 4)}),
    ],
)
def test_each_figure_is_there_by_itself_with_its_arrays(name: str, shapes: dict[str, Any], photos: Path) -> None:
    drawn = getattr(figures, name)(classifier(), photos / "a.jpg")
    assert {key: value.shape for key, value in drawn.values.items()} == shapes
    assert isinstance(drawn.figure, Figure)


def test_figures_of_the_model_alone_and_of_deletion(photos: Path) -> None:
    model = classifier()
    assert figures.filters(model, 7).values["filters"].shape == (7, 3, 8, 8)
    assert figures.positions(model).values["learned"].shape == (4, 4, 4, 4)
    lines = figures.deletion(model, photos / "a.jpg", "tulip", steps=3).values
    kinds = [f"{method} {kind}" for method in (*figures.METHODS, "random") for kind in ("deletion", "insertion")]
    assert set(lines) == {"fractions", *kinds}
    with pytest.raises(vitrail.VitrailError, match="no positions"):
        figures.positions(classifier("mean", positions="none"))


@pytest.mark.parametrize("grid", [(14, 14), (7, 28), (37, 37)])
def test_positions_are_drawn_for_any_grid(grid: tuple[int, int]) -> None:
    drawn = figures.positions(classifier(img_size=(8 * grid[0], 8 * grid[1])))
    title = drawn.figure.axes[0].get_title("left")
    assert f"{grid[0]} × {grid[1]}" in title
    assert ("some of the places" in title) == (max(grid) > 14)
