from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import vitrail
from tests.quiet import one_thread, own_cache  # noqa: F401
from tests.serving.running import Running, running

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 10}


def make_model(folder: Path, seed: int = 0, **changes: object) -> Path:
    torch.manual_seed(seed)
    net = vitrail.create("vit_ti16", zero_head=False, **{**SMALL, **changes})
    classes = [f"class {i}" for i in range(net.config.num_classes)]
    return vitrail.Classifier(net, classes=classes).save(folder, overwrite=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("serving") / "tiny")


@pytest.fixture(scope="module")
def classifier(tiny: Path) -> vitrail.Classifier:
    return vitrail.load(tiny)


@pytest.fixture(scope="module")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """With the settings that users have."""
    from tests.serving.running import picture

    examples = tmp_path_factory.mktemp("examples")
    (examples / "a_small cat.png").write_bytes(picture(5))
    (examples / "notes.txt").write_text("no picture")
    with running(tiny, examples=examples) as one:
        yield one
