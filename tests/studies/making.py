"""Studies that take seconds: generated pictures, a tiny model, a file written for the test."""

from pathlib import Path
from typing import Any

from tests.training.running import TINY, make_pictures
from vitrail.training.recipe_files import make_recipe, to_toml

BASE: dict[str, Any] = TINY | {"steps": 4, "eval_epochs": 100.0}


def make_data(folder: Path, size: int = 8) -> Path:
    """Two classes, with a test part of its own."""
    make_pictures(folder, each=30, size=size, split="train")
    return make_pictures(folder, each=10, size=size, split="test")


def write_study(folder: Path, text: str, **changes: Any) -> Path:
    """The file `study.toml`, beside a small recipe `base.toml` and the pictures `data`."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "data").exists():
        make_data(folder / "data")
    (folder / "base.toml").write_text(to_toml(make_recipe({}, BASE | changes)))
    file = folder / "study.toml"
    file.write_text(text)
    return file
