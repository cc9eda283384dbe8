"""Little folders of real JPEGs, and little shards."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.shard_making import many

Photos = Callable[..., Path]


def jpeg(number: int, size: tuple[int, int] = (24, 16)) -> bytes:
    """A JPEG that differs from those of other numbers."""
    ramp = np.linspace(0, 1, size[0])[None, :, None] * np.ones((size[1], 1, 3))
    colour = np.array([number * 37 % 256, number * 91 % 256, number * 53 % 256])
    buffer = io.BytesIO()
    Image.fromarray((ramp * colour).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Photos:
    """Makes a folder: `photos({"cat": 3, "train/dog": ["a.jpg", "b.PNG"]})`, numbers count files, names name them."""

    def make(tree: Mapping[str, int | list[str]], name: str = "photos") -> Path:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        number = 0
        for folder, files in tree.items():
            (root / folder).mkdir(parents=True, exist_ok=True)
            for file in [f"{i:03d}.jpg" for i in range(files)] if isinstance(files, int) else files:
                number += 1
                (root / folder / file).write_bytes(jpeg(number))
        return root

    return make


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices that cannot stand beside their shards go to a folder of this test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of little tar shards."""
    many(tmp_path / "shards")
    return tmp_path / "shards"
