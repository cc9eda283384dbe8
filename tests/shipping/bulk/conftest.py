"""A tiny model and tiny pictures for it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # before anybody imports Ray: its workers are not uv's

NAMES = ["rose", "tulip", "daisy", "lily"]
TINY = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 1}


@pytest.fixture(scope="session")
def classifier() -> vitrail.Classifier:
    torch.manual_seed(0)
    net = vitrail.create("vit_ti16", zero_head=False, num_classes=len(NAMES), **TINY)
    return vitrail.Classifier(net, classes=NAMES)


@pytest.fixture(scope="session")
def model(classifier: vitrail.Classifier, tmp_path_factory) -> Path:
    return classifier.save(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder of so many pictures, in folders of 50."""

    def make(count: int, name: str = "photos") -> Path:
        rng = np.random.default_rng(count)
        for number in range(count):
            path = tmp_path / name / f"{number // 50:03}" / f"{number % 50:02}.ppm"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tiny(rng))
        return tmp_path / name

    return make


def tiny(rng: np.random.Generator) -> bytes:
    return b"P6 8 8 255\n" + rng.integers(0, 256, 192, dtype=np.uint8).tobytes()


def hashes(folder: Path) -> dict[str, str]:
    """Of all files that a reader of the folder sees."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if not path.name.startswith(".")
    }


def left_behind(folder: Path) -> list[str]:
    """Files of a job that has ended, but for its ledger's."""
    inside = [os.path.join(base, name) for base, _, names in os.walk(folder) for name in names if "ledger" in base]
    return [path for path in inside if os.path.basename(path) not in (".lock", "job.json", "done.jsonl")]
