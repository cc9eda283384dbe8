"""A small model, and pictures for it."""

from pathlib import Path

import pytest
import torch

import vitrail
from tests.scoring.probing.making import COLOURS, make_folder


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path: Path) -> Path:
    """Nothing is left in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vitrail" / "features"


@pytest.fixture(scope="session")
def coloured(tmp_path_factory) -> Path:
    """{train,val}/<colour>/*.png: 12 and 6 of each of three."""
    counts = {f"{split}/{name}": count for split, count in (("train", 12), ("val", 6)) for name in COLOURS}
    return make_folder(tmp_path_factory.mktemp("coloured"), counts)


@pytest.fixture(scope="session")
def tiny() -> vitrail.Classifier:
    torch.manual_seed(0)
    changes = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 4}
    return vitrail.Classifier(vitrail.create("vit_ti16", **changes)).to("cpu")


@pytest.fixture(scope="session")
def tiny_folder(tiny, tmp_path_factory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("models") / "tiny")
