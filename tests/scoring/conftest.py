"""A small model, and a folder of pictures that it has classes for."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail

FLOWERS = ("daisy", "rose", "tulip")


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """A model folder; its classes are not in the order of the alphabet."""
    torch.manual_seed(0)
    changes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 1, "num_classes": 4}
    net = vitrail.create("vit_ti16", zero_head=False, **changes)
    torch.nn.init.normal_(net.head.weight)
    names = ["tulip", "sun flower", "rose", "daisy"]
    return vitrail.Classifier(net, classes=names).save(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """{train,val}/<class>/*.png of noise: 9 to train, 35 to validate, and one of those cannot be read."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(44):
        split = "train" if number < 9 else "val"
        path = root / split / FLOWERS[number % 3] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        colour = rng.integers(0, 256, 3)
        pixels = np.clip(rng.normal(colour, 60, (40, 48, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(path)
    (root / "val" / "rose" / "bad.png").write_text("not a picture")
    return root


@pytest.fixture
def one_thread():
    """As in the processes that a test starts: another number of threads may sum in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
