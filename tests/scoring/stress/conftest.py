"""Two small models, and pictures that they can tell apart a little."""

import warnings
from pathlib import Path

import pytest
import torch

import vitrail
from tests.scoring.probing.making import COLOURS, make_folder

NAMES = ["red", "blue", "green"]


@pytest.fixture(scope="session")
def coloured(tmp_path_factory) -> Path:
    """val/<colour>/*.png: 7 of each of three, and one that cannot be read."""
    folder = make_folder(tmp_path_factory.mktemp("coloured"), {f"val/{name}": 7 for name in COLOURS})
    (folder / "val" / "red" / "bad.png").write_text("not a picture")
    return folder


@pytest.fixture(scope="session")
def vit() -> vitrail.Classifier:
    torch.manual_seed(0)
    changes = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
    return vitrail.Classifier(_lively(vitrail.create("vit_ti16", zero_head=False, **changes)), classes=NAMES)


@pytest.fixture(scope="session")
def resnet() -> vitrail.Classifier:
    torch.manual_seed(0)
    config = vitrail.ResNetConfig(
        img_size=(16, 16), layers=(1,), width=32, small_stem=True, num_classes=3, zero_head=False
    )
    return vitrail.Classifier(_lively(vitrail.ResNet(config)), classes=NAMES)


def _lively(model):
    """Answers that depend on the picture: the head of a fresh model is nearly zero."""
    torch.nn.init.normal_(model.head.weight if hasattr(model.head, "weight") else model.head.fc.weight, std=1.0)
    return model.eval()


@pytest.fixture(scope="session")
def folders(vit, resnet, tmp_path_factory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timm has no such ResNet
        return vit.save(root / "vit"), resnet.save(root / "resnet")
