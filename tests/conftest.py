"""Where the real data is that some tests need; without it they skip and say so."""

import faulthandler
import json
import multiprocessing
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.parts import divided, file_of, weights

# before torch is loaded: tests share their cores with others
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if any(argument.startswith("--part") for argument in sys.argv):
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one of several processes

DATA = Path(os.environ.get("VITRAIL_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="I/N", help="the Ith of N parts that take about as long: for several processes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("--part"):
        number, parts = map(int, part.split("/"))
        files = divided(weights({file_of(item.path) for item in items}), parts)[number - 1]
        config.hook.pytest_deselected(items=[item for item in items if file_of(item.path) not in files])
        items[:] = [item for item in items if file_of(item.path) in files]


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def pytest_unconfigure() -> None:
    """A Python that does not come to its end says where it waits, and fails."""
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)


def _need(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"real data is not here: {path.name} (set VITRAIL_TEST_DATA to the folder that has it)")
    return path


@pytest.fixture(scope="session")
def deit_tiny() -> Path:
    """The real weights of DeiT-Tiny."""
    return _need(DATA / "deit-tiny" / "deit_tiny_patch16_224.safetensors")


@pytest.fixture(scope="session")
def imagenet_sample(tmp_path_factory) -> Path:
    """A folder with one validation picture of each of ImageNet's 1,000 classes: <wordnet id>/*.JPEG."""
    archive = _need(DATA / "imagenet-sample.tar")
    folder = tmp_path_factory.mktemp("imagenet")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def imagenet_classes() -> list[tuple[str, str]]:
    """(wordnet id, name) in the order of a classifier's outputs."""
    return [tuple(pair) for pair in json.loads(_need(DATA / "imagenet-classes.json").read_text())]


@pytest.fixture(scope="session")
def flowers(tmp_path_factory) -> Path:
    """A folder with 3,670 photographs of 5 kinds of flower: {train,val}/<class>/*.jpg."""
    archive = _need(DATA / "flowers.tar")
    folder = tmp_path_factory.mktemp("flowers")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def cifar10_test() -> tuple[Any, Any, list[str]]:
    """The 10,000 test pictures of CIFAR-10, their labels, and the names of the classes."""
    mosaic = np.asarray(Image.open(_need(DATA / "cifar10" / "test.webp")).convert("RGB"))
    said = json.loads(_need(DATA / "cifar10" / "labels.json").read_text())
    side = mosaic.shape[0] // 32
    pictures = mosaic.reshape(side, 32, side, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)
    return pictures, np.array(said["test"]), said["classes"]
