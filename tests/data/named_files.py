"""Small files in the very formats in which the well-known sets are published: some pictures in each split."""

import bz2
import itertools
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.io
import torch
from PIL import Image

RNG = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, np.uint8)


def save(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw(9, 12, 3)).save(path)


def save_mat(path: Path, **values: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, values)


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        write(folder / name, pickle.dumps({"data": draw(4, 3072), "labels": RNG.integers(0, 10, 4).tolist()}))
    write(folder / "batches.meta", pickle.dumps({"label_names": [f"kind {i}" for i in range(10)]}))


def cifar100(root: Path) -> None:
    folder = root / "cifar-100-python"
    for name in ("train", "test"):
        write(folder / name, pickle.dumps({"data": draw(7, 3072), "fine_labels": RNG.integers(0, 100, 7).tolist()}))
    write(folder / "meta", pickle.dumps({"fine_label_names": [f"kind {i}" for i in range(100)]}))


def idx(maker: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for name, count in (("train", 6), ("t10k", 3)):
            folder = root / maker / "raw"
            pictures, labels = draw(count, 28, 28), RNG.integers(0, 10, count, np.uint8)
            write(folder / f"{name}-images-idx3-ubyte", struct.pack(">4I", 0x803, count, 28, 28) + pictures.tobytes())
            write(folder / f"{name}-labels-idx1-ubyte", struct.pack(">2I", 0x801, count) + labels.tobytes())

    return make


def svhn(root: Path) -> None:
    for name, count in (("train", 5), ("test", 3)):
        labels = np.array([[10], [1], [9], [2], [10]], np.uint8)[:count]
        save_mat(root / "svhn" / f"{name}_32x32.mat", X=draw(32, 32, 3, count), y=labels)


def stl10(root: Path) -> None:
    folder = root / "stl10_binary"
    for name, count in (("train", 3), ("test", 2)):
        write(folder / f"{name}_X.bin", draw(count, 3, 96, 96).tobytes())
        write(folder / f"{name}_y.bin", bytes(range(1, count + 1)))
    write(folder / "unlabeled_X.bin", b"")
    write(folder / "class_names.txt", "".join(f"kind {i}\n" for i in range(10)))


def usps(root: Path) -> None:
    for name, count in (("usps.bz2", 4), ("usps.t.bz2", 2)):
        lines = [
            f"{i + 1} " + " ".join(f"{k}:{v / 128 - 1:.3f}" for k, v in enumerate(draw(256), 1)) for i in range(count)
        ]
        write(root / "usps" / name, bz2.compress("\n".join(lines).encode()))


def flowers102(root: Path) -> None:
    folder = root / "flowers-102"
    for number in range(1, 10):
        save(folder / "jpg" / f"image_{number:05d}.jpg")
    save_mat(folder / "imagelabels.mat", labels=np.array([[5, 1, 102, 7, 7, 2, 1, 3, 5]]))
    save_mat(
        folder / "setid.mat", trnid=np.array([[7, 2, 9]]), valid=np.array([[1, 3]]), tstid=np.array([[8, 4, 6, 5]])
    )


def pets(root: Path) -> None:
    folder = root / "oxford-iiit-pet"
    for name in ("trainval", "test"):
        kinds = (("Abyssinian", 1), ("american_bulldog", 2))
        animals = [(f"{kind}_{name}{i}", label) for kind, label in kinds for i in range(2)]
        write(folder / "annotations" / f"{name}.txt", "".join(f"{a} {label} 1 1\n" for a, label in reversed(animals)))
        for animal, _ in animals:
            save(folder / "images" / f"{animal}.jpg")


def food101(root: Path) -> None:
    folder = root / "food-101"
    for name, count in (("train", 3), ("test", 2)):
        foods = {kind: [f"{kind}/{name}{i}" for i in range(count)] for kind in ("waffles", "apple_pie")}
        write(folder / "meta" / f"{name}.json", json.dumps(foods))
        for path in itertools.chain(*foods.values()):
            save(folder / "images" / f"{path}.jpg")


def dtd(root: Path) -> None:
    folder = root / "dtd" / "dtd"
    for name in ("train", "val", "test"):
        paths = [f"{kind}/{kind}_{name}{i}.jpg" for kind in ("woven", "banded") for i in range(2)]
        write(folder / "labels" / f"{name}1.txt", "\n".join(paths))
        for path in paths:
            save(folder / "images" / path)


def aircraft(root: Path) -> None:
    folder = root / "fgvc-aircraft-2013b" / "data"
    write(folder / "variants.txt", "707-320\n747 SP\nA300B4\n")
    for name in ("train", "val", "test"):
        write(folder / f"images_variant_{name}.txt", f"{name}1 A300B4\n{name}2 747 SP\n")
        for i in (1, 2):
            save(folder / "images" / f"{name}{i}.jpg")


def cars(root: Path) -> None:
    folder = root / "stanford_cars"
    for name, annotations in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        rows = np.array(
            [(f"{i}.jpg", label) for i, label in enumerate([2, 1, 2])], [("fname", object), ("class", object)]
        )
        save_mat(folder / annotations, annotations=rows)
        for i in range(3):
            save(folder / f"cars_{name}" / f"{i}.jpg")
    save_mat(folder / "devkit" / "cars_meta.mat", class_names=np.array(["AM General Hummer", "Acura RL"], object))


def gtsrb(root: Path) -> None:
    folder = root / "gtsrb"
    for label in range(43):
        save(folder / "GTSRB" / "Training" / f"{label:05d}" / "00000_00000.ppm")
    lines = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    for i, label in enumerate([16, 1, 42]):
        save(folder / "GTSRB" / "Final_Test" / "Images" / f"{i:05d}.ppm")
        lines.append(f"{i:05d}.ppm;12;9;0;0;9;9;{label}")
    write(folder / "GT-final_test.csv", "\n".join(lines))


def folders(where: str, classes: tuple[str, ...], file: str = "{kind}_{i}.jpg") -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for kind in classes:
            for i in range(1, 3):
                save(root / where / kind / file.format(kind=kind, i=i))

    return make


def together(*makers: Callable[[Path], None]) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for maker in makers:
            maker(root)

    return make


def caltech256(root: Path) -> None:
    for label, kind in ((1, "001.ak47"), (2, "002.american-flag")):
        for i in (1, 2):
            save(root / "caltech256" / "256_ObjectCategories" / kind / f"{label:03d}_{i:04d}.jpg")


def sun397(root: Path) -> None:
    for kind in ("a/abbey", "z/zoo", "a/apse/indoor"):
        for i in (2, 1):
            save(root / "SUN397" / kind / f"sun_{i}.jpg")
    write(root / "SUN397" / "ClassName.txt", "/a/abbey\n/a/apse/indoor\n/z/zoo\n")


def imagenet(root: Path) -> None:
    names = {"n02012849": ("crane",), "n03126707": ("crane",), "n01440764": ("tench", "Tinca tinca")}
    for split in ("train", "val"):
        folders(f"imagenet/{split}", tuple(names), "{kind}_{i}.JPEG")(root)
    torch.save((names, []), root / "imagenet" / "meta.bin")


IMAGENETTE = "n01440764 n02102040 n02979186 n03000684 n03028079 n03394916 n03417042 n03425413 n03445777 n03888257"

MAKERS: dict[str, Callable[[Path], None]] = {
    "aircraft": aircraft,
    "caltech101": folders("caltech101/101_ObjectCategories", ("BACKGROUND_Google", "ant", "crab"), "image_000{i}.jpg"),
    "caltech256": caltech256,
    "cars": cars,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "country211": together(*(folders(f"country211/{split}", ("AD", "ZW")) for split in ("train", "valid", "test"))),
    "dtd": dtd,
    "eurosat": folders("eurosat/2750", ("AnnualCrop", "Forest")),
    "fashion_mnist": idx("FashionMNIST"),
    "flowers102": flowers102,
    "food101": food101,
    "gtsrb": gtsrb,
    "imagenet": imagenet,
    "imagenette": together(
        *(folders(f"imagenette2/{split}", tuple(IMAGENETTE.split()), "{kind}_{i}.JPEG") for split in ("train", "val"))
    ),
    "kmnist": idx("KMNIST"),
    "mnist": idx("MNIST"),
    "pets": pets,
    "rendered_sst2": together(
        *(folders(f"rendered-sst2/{s}", ("negative", "positive"), "{i}.png") for s in ("train", "valid", "test"))
    ),
    "stl10": stl10,
    "sun397": sun397,
    "svhn": svhn,
    "usps": usps,
}
