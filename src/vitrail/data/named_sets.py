"""The table of well-known sets, and what torchvision keeps of each: it has no common way to ask for that."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pictures = NDArray[np.uint8] | list[str]  # one array (pictures, height, width, channels), or paths
Taken = tuple[Pictures, NDArray[np.int64]]  # pictures and labels, nothing decoded


def _arrays(dataset: Any) -> Taken:
    data = np.asarray(dataset.data)
    return data if data.ndim == 4 else data[..., None], _labels(dataset)


def _planes(dataset: Any) -> Taken:
    return np.moveaxis(dataset.data, 1, 3), _labels(dataset)


def _labels(dataset: Any) -> NDArray[np.int64]:
    return np.asarray(dataset.targets if hasattr(dataset, "targets") else dataset.labels).astype(np.int64)


def _files(dataset: Any) -> tuple[list[str], NDArray[np.int64]]:
    return [str(path) for path in dataset._image_files], np.array(dataset._labels, np.int64)


def _images(dataset: Any) -> Taken:
    return [str(path) for path in dataset._images], np.array(dataset._labels, np.int64)


def _pairs(dataset: Any) -> Taken:
    pairs = dataset.samples if hasattr(dataset, "samples") else dataset._samples
    return [path for path, _ in pairs], np.array([label for _, label in pairs], np.int64)


def _unordered(dataset: Any) -> Taken:
    """Files in whatever order the file system gave them: sorted, to be the same everywhere."""
    files, labels = _files(dataset)
    order = sorted(range(len(files)), key=lambda i: os.fsencode(files[i]))
    return [files[i] for i in order], labels[order]


def _caltech101(dataset: Any) -> Taken:
    return _numbered_files(dataset, "101_ObjectCategories", lambda label, number: f"image_{number:04d}.jpg")


def _caltech256(dataset: Any) -> Taken:
    return _numbered_files(dataset, "256_ObjectCategories", lambda label, number: f"{label + 1:03d}_{number:04d}.jpg")


def _numbered_files(dataset: Any, folder: str, file_name: Callable[[int, int], str]) -> Taken:
    files = [
        os.path.join(dataset.root, folder, dataset.categories[label], file_name(label, number))
        for label, number in zip(dataset.y, dataset.index, strict=True)
    ]
    return files, np.array(dataset.y, np.int64)


_BOOL = {"train": {"train": True}, "test": {"train": False}}
_TRAIN_TEST = {"train": {"split": "train"}, "test": {"split": "test"}}
_TRAIN_VAL = {"train": {"split": "train"}, "val": {"split": "val"}}
_ALL = _TRAIN_VAL | _TRAIN_TEST
_NONE: dict[str, dict[str, Any]] = {"": {}}


@dataclass(frozen=True)
class NamedSet:
    """A class of `torchvision.datasets`, the arguments that make each of its splits ("": it has none), what it keeps,
    and how many classes there are where it has no names for them."""

    maker: str
    splits: dict[str, dict[str, Any]]
    take: Callable[[Any], Taken]
    unnamed: int = 0
    can_download: bool = True
    folder: str = ""  # below the data folder, for a set that torchvision would spread over it


NAMED = {
    "aircraft": NamedSet("FGVCAircraft", _ALL, _files),
    "caltech101": NamedSet("Caltech101", _NONE, _caltech101),
    "caltech256": NamedSet("Caltech256", _NONE, _caltech256),
    "cars": NamedSet("StanfordCars", _TRAIN_TEST, _pairs, can_download=False),
    "cifar10": NamedSet("CIFAR10", _BOOL, _arrays),
    "cifar100": NamedSet("CIFAR100", _BOOL, _arrays),
    "country211": NamedSet("Country211", _TRAIN_TEST | {"val": {"split": "valid"}}, _pairs),
    "dtd": NamedSet("DTD", _ALL, _files),
    "eurosat": NamedSet("EuroSAT", _NONE, _pairs),
    "fashion_mnist": NamedSet("FashionMNIST", _BOOL, _arrays),
    "flowers102": NamedSet("Flowers102", _ALL, _files),
    "food101": NamedSet("Food101", _TRAIN_TEST, _files),
    "gtsrb": NamedSet("GTSRB", _TRAIN_TEST, _pairs, unnamed=43),
    "imagenet": NamedSet("ImageNet", _TRAIN_VAL, _pairs, can_download=False, folder="imagenet"),
    "imagenette": NamedSet("Imagenette", _TRAIN_VAL, _pairs),
    "kmnist": NamedSet("KMNIST", _BOOL, _arrays),
    "mnist": NamedSet("MNIST", _BOOL, _arrays),
    "pets": NamedSet("OxfordIIITPet", {"train": {"split": "trainval"}, "test": {"split": "test"}}, _images),
    "rendered_sst2": NamedSet("RenderedSST2", _ALL, _pairs),
    "stl10": NamedSet("STL10", _TRAIN_TEST, _planes),
    "sun397": NamedSet("SUN397", _NONE, _unordered),
    "svhn": NamedSet("SVHN", _TRAIN_TEST, _planes, unnamed=10, folder="svhn"),
    "usps": NamedSet("USPS", _BOOL, _arrays, unnamed=10, folder="usps"),
}


def class_names(named: NamedSet, dataset: Any) -> tuple[str, ...]:
    """The classes in the order of the labels, each name once: of two that are called the same (ImageNet has two kinds
    of crane) each has its identifier after it."""
    if named.unnamed:
        return tuple(map(str, range(named.unnamed)))
    own = dataset.classes if hasattr(dataset, "classes") else dataset.categories
    names = [", ".join(name) if isinstance(name, tuple) else str(name) for name in own]
    identifiers = getattr(dataset, "wnids", range(len(names)))
    times = Counter(names)
    return tuple(
        name if times[name] == 1 else f"{name} ({identifier})"
        for name, identifier in zip(names, identifiers, strict=True)
    )
