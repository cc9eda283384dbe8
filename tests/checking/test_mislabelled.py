"""Labels that are likely wrong, on real photographs and with real weights."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import vitrail
from vitrail.errors import VitrailError


@pytest.fixture(scope="module")
def flipped(flowers: Path, tmp_path_factory) -> tuple[Path, set[str]]:
    """Three hundred flowers of two kinds, of which twelve lie in the folder of the other kind."""
    folder = tmp_path_factory.mktemp("flipped")
    rng = np.random.default_rng(0)
    wrong = set()
    for kind, other in (("dandelion", "roses"), ("roses", "dandelion")):
        chosen = set(rng.choice(150, 6, replace=False).tolist())
        for number, path in enumerate(sorted((flowers / "train" / kind).iterdir())[:150]):
            given = other if number in chosen else kind
            (folder / given).mkdir(exist_ok=True)
            shutil.copy(path, folder / given / path.name)
            wrong |= {f"{given}/{path.name}"} if number in chosen else set()
    return folder, wrong


def test_flipped_labels_of_real_photographs_are_found(flipped: tuple[Path, set[str]], deit_tiny: Path) -> None:
    folder, wrong = flipped
    model = vitrail.load(deit_tiny, img_size=160)  # half the tokens: quick, and good enough for two kinds of flower
    labels = vitrail.check(folder, model=model, device="cpu").labels
    names = vitrail.data.from_folder(folder).samples.names
    found = [names[doubt.row] for doubt in labels.doubts]
    assert labels.judged == 300
    assert len(wrong & set(found)) >= 0.7 * len(wrong)
    assert len(wrong & set(found[: len(wrong)])) >= 0.5 * len(wrong)  # by chance, one in twenty-five
    assert all(doubt.given != doubt.suggested for doubt in labels.doubts)
    margins = [doubt.margin for doubt in labels.doubts]
    assert margins == sorted(margins)


@pytest.fixture
def model() -> vitrail.Classifier:
    return vitrail.Classifier(vitrail.create("vit_ti16", img_size=16, depth=1, num_classes=0))


def coloured(folder: Path, name: str, colour: tuple[int, int, int], seed: int) -> None:
    """A picture of one colour with a pattern of its own."""
    from PIL import Image

    pattern = np.random.default_rng(seed).normal(0, 25, (6, 6, 3)) + np.array(colour)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pattern.clip(0, 255).astype(np.uint8)).resize((48, 48), Image.Resampling.BICUBIC).save(path)


def test_classes_that_are_too_small_are_left_out_and_counted(tmp_path: Path, model: vitrail.Classifier) -> None:
    for k in range(12):
        coloured(tmp_path, f"red/{k}.png", (220, 40, 40), k)
        coloured(tmp_path, f"blue/{k}.png", (40, 40, 220), 100 + k)
    for k in range(3):
        coloured(tmp_path, f"rare/{k}.png", (40, 220, 40), 200 + k)
    for k in range(9):  # nine files, one picture
        shutil.copy(tmp_path / "rare" / "0.png", tmp_path / "rare" / f"copy{k}.png")
    coloured(tmp_path, "red/wrong.png", (40, 40, 220), 300)
    labels = vitrail.check(tmp_path, model=model, device="cpu", workers=0).labels
    assert (labels.judged, labels.unjudged) == (25, 12)
    classes = ["blue", "rare", "red"]
    assert [(classes[doubt.given], classes[doubt.suggested]) for doubt in labels.doubts] == [("red", "blue")]


def test_one_class_alone_cannot_be_judged(tmp_path: Path, model: vitrail.Classifier) -> None:
    for k in range(8):
        coloured(tmp_path, f"red/{k}.png", (220, 40, 40), k)
    with pytest.raises(VitrailError, match="two or more classes"):
        vitrail.check(tmp_path, model=model, device="cpu", workers=0)


def test_several_labels_to_a_picture_cannot_be_judged(tmp_path: Path, model: vitrail.Classifier) -> None:
    for k in range(4):
        coloured(tmp_path, f"{k}.png", (220, 40, 40), k)
    table = tmp_path / "table.csv"
    table.write_text("path,label\n0.png,a|b\n1.png,a\n2.png,b\n3.png,a|b\n")
    with pytest.raises(VitrailError, match="one label"):
        vitrail.check(table, model=model, separator="|", device="cpu", workers=0)
