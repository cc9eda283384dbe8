"""The page: safe whatever the files are called, complete by itself, and bounded."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.pages.reading import EVIL, Reading
from vitrail.checking import page
from vitrail.checking.page import make_page


def smooth(seed: int) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(values).resize((64, 48), Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Everything that can be wrong, under names that are an attack."""
    for split in ("train", "val"):
        for kind in ("plain", EVIL):
            (tmp_path / split / kind).mkdir(parents=True)
            smooth(len(kind)).save(tmp_path / split / kind / f"{EVIL}.png")
    (tmp_path / "train" / EVIL / f"broken{EVIL}.jpg").write_text("<b>no picture</b>")
    Image.new("RGB", (9, 9)).save(tmp_path / "train" / EVIL / f"dot{EVIL}.png")
    smooth(5).save(tmp_path / "train" / "plain" / "one.png")
    smooth(5).save(tmp_path / "train" / EVIL / "other.png")
    return tmp_path


def test_names_are_text_and_nothing_else(folder: Path) -> None:
    report = vitrail.check(folder)
    text = make_page(report)
    read = Reading(text)
    assert not read.open
    assert not {name for name, _ in read.tags} & {"script", "iframe", "object", "embed", "link", "form", "base"}
    assert all(a["src"].startswith("data:image/jpeg;base64,") for name, a in read.tags if name == "img")
    assert not any(key.startswith("on") for _, attributes in read.tags for key in attributes)
    assert all(a["href"].startswith("#") for _, a in read.tags if "href" in a)
    assert "http" not in text  # nothing is fetched from anywhere
    assert any(EVIL in part for part in read.text)
    links = {a["href"][1:] for name, a in read.tags if name == "a"}
    assert links <= {a.get("id") for _, a in read.tags}


def test_sections_say_what_was_found(folder: Path) -> None:
    report = vitrail.check(folder)
    words = " ".join(Reading(make_page(report)).text)
    for heading in ("Unreadable", "Suspicious", "In two splits", "One picture, two labels", "Classes, sizes, formats"):
        assert heading in words
    assert report.leaked == {"val in train": 2}
    assert len(report.contradictions) == 1
    assert "holds text, not a picture" in words


def test_the_number_of_pictures_is_bounded_and_the_rest_is_counted(tmp_path: Path, monkeypatch) -> None:
    for name in ("MOST_PICTURES", "MOST_GROUPS", "MOST_LINES"):
        monkeypatch.setattr(page, name, 3)
    (tmp_path / "a").mkdir()
    for k in range(8):
        Image.new("RGB", (40, 40), (k * 30, 0, 0)).save(tmp_path / "a" / f"plain{k}.png")
        (tmp_path / "a" / f"text{k}.jpg").write_text("text")
        for copy in range(6):
            smooth(k).save(tmp_path / "a" / f"smooth{k}_{copy}.png")
    read = Reading(make_page(vitrail.check(tmp_path)))
    words = " ".join(read.text)
    assert sum(name == "img" for name, _ in read.tags) == 3 + 3 * page.MOST_IN_GROUP
    assert words.count("5 more are in bad_images.csv.") == 2
    assert "5 more are in duplicates.csv." in words
    assert "and 2 more" in words


def test_many_classes_are_one_silhouette(tmp_path: Path) -> None:
    for k in range(50):
        (tmp_path / f"class{k}").mkdir()
        smooth(k).save(tmp_path / f"class{k}" / "a.png")
    assert any(name == "path" for name, _ in Reading(make_page(vitrail.check(tmp_path))).tags)


def test_an_unlabelled_folder_has_a_page_too(tmp_path: Path) -> None:
    for k in range(3):
        smooth(k).save(tmp_path / f"{k}.png")
    assert "3 pictures" in make_page(vitrail.check(tmp_path))
