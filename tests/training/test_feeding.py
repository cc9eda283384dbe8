"""How pictures come to the model: what is resized or streamed is told, in the output and in the run."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.training.running import TINY, make_pictures
from vitrail.cli import main
from vitrail.data.opening import open_source
from vitrail.data.splits import make_splits
from vitrail.pictures import Preprocessing
from vitrail.training import feeding
from vitrail.training.feeding import Feeding
from vitrail.training.parallel import World
from vitrail.training.recipe_files import make_recipe


def fed(folder: Path, device: str = "cpu", size: int = 8, **changes: Any) -> Feeding:
    recipe = make_recipe({}, TINY | {key.replace("__", "."): value for key, value in changes.items()})
    pixels = Preprocessing(size=(size, size), mean=(0.5,) * 3, std=(0.5,) * 3)
    return Feeding(recipe, make_splits(open_source(folder)), pixels, World(0, 1, torch.device(device)))


PIXELS = 106 * 8 * 8 * 3  # bytes of all pictures of `make_pictures`


@pytest.mark.parametrize(
    ("device", "engine", "part"), [("cuda", "auto", 0.3), ("cuda", "resident", 0.7), ("cpu", "resident", 0.7)]
)
@pytest.mark.parametrize("fits", [True, False])
def test_a_device_too_small_for_all_pixels_gets_them_streamed_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, engine: str, part: float, fits: bool
) -> None:
    memory = int(PIXELS / part * (1.01 if fits else 0.5))
    monkeypatch.setattr(feeding, "memory_of", lambda device: memory)
    made = fed(make_pictures(tmp_path / "data"), device, data__engine=engine)
    assert made.engine == ("resident" if fits else "workers")
    told = [note for note in made.notes if "streamed" in note]
    words = f"the pixels take 2.04e-05 GB, and {device} has room for 1.02e-05 GB: pictures are streamed through workers"
    assert told == ([] if fits else [words])


def test_a_run_that_was_asked_to_be_resident_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feeding, "memory_of", lambda device: 1000)
    data = make_pictures(tmp_path / "data")
    run = vitrail.train(data, recipe="small", out=tmp_path / "run", quiet=False, **TINY | {"data.engine": "resident"})
    said = capsys.readouterr().out
    assert "pictures are streamed through workers" in said
    assert "pictures come through workers" in said
    assert run.is_complete
    assert any("streamed" in note for note in run.facts["notes"])


@pytest.mark.parametrize(
    ("own", "words"), [(8, None), (12, "pictures of 12 x 12 pixels are resized: the model reads 8 x 8")]
)
def test_pictures_of_another_size_than_the_recipe_is_for_are_resized_and_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], own: int, words: str | None
) -> None:
    data = make_pictures(tmp_path / "data", size=own)
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in TINY.items()]
    assert main(["train", str(data), "--recipe", "small", "--out", str(tmp_path / "run"), *arguments]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "resized" in line]
    run = vitrail.Run.open(tmp_path / "run")
    assert lines == run.facts["notes"] == ([] if words is None else [words])
    assert (words or "resized") in (tmp_path / "run" / "report.html").read_text() or words is None


def test_pictures_of_many_sizes_are_told_by_one_of_them(tmp_path: Path) -> None:
    make_pictures(tmp_path / "data", classes=1, each=20, size=10)
    make_pictures(tmp_path / "data" / "more", classes=1, each=20, size=14)
    told = fed(tmp_path / "data").notes
    assert "pictures of 10 x 10 pixels and other sizes are resized: the model reads 8 x 8" in told


def test_a_part_of_the_pictures_can_be_asked_for_by_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_pictures(tmp_path / "data")
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in TINY.items()]
    out = tmp_path / "run"
    assert main(["train", str(data), "--recipe", "small", "--out", str(out), "--subset", "0.25", *arguments]) == 0
    assert "24 of the 95 training pictures are used: 25% of each class" in capsys.readouterr().out
    assert vitrail.Run.open(out).recipe.data.subset == 0.25
