"""Small models of every kind, and a folder of labelled pictures that one of them knows."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
BACKBONE = {"img_size": (32, 32), "layers": (1,), "width": 8, "groups": 4, "preact": False, "padding": "same"}
KINDS = {
    "plain": {},
    "deep": {"depth": 4, "patch_size": 4},
    "distilled": {"distilled": True},
    "hybrid": {"patch_size": 1, "backbone": vitrail.ResNetConfig(num_classes=0, **BACKBONE)},
    "registers, mean": {"registers": 3, "pool": "mean", "final_norm": "pooled"},
    "not square": {"img_size": (24, 40)},
    "rope, rms": {
        "class_token": False,
        "pool": "mean",
        "rope": True,
        "norm": "rms",
        "qk_norm": True,
        "mlp": "swiglu",
        "layer_scale": 0.1,
    },
    "relative, map": {"relative_bias": True, "pool": "map", "positions": "sincos_2d"},
}


def classifier_of(kind: str) -> vitrail.Classifier:
    torch.manual_seed(0)
    if kind == "resnet":
        config = vitrail.ResNetConfig(**{**BACKBONE, "preact": True}, num_classes=5, zero_head=False)
        model = vitrail.ResNet(config)
    else:
        model = vitrail.ViT(vitrail.ViTConfig(**{**SMALL, **KINDS[kind]}))
    for parameter in model.parameters():  # fresh models are nearly constant functions
        torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.15)
    return vitrail.Classifier(model.eval(), classes=["ant", "bee", "cow", "dog", "eel"])


@pytest.fixture
def plain() -> vitrail.Classifier:
    return classifier_of("plain")


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures whose class is what the plain model says they are."""
    folder, model = tmp_path_factory.mktemp("labelled"), classifier_of("plain")
    draw = np.random.default_rng(0)
    for number in range(120):
        small = draw.integers(0, 256, (5, 5, 3), np.uint8)
        picture = Image.fromarray(small).resize((48, 40), Image.Resampling.BICUBIC)
        place = folder / model.predict(picture)[0].label
        place.mkdir(exist_ok=True)
        picture.save(place / f"{number}.png")
    return folder
