"""Well-known sets: the pictures, labels and classes that torchvision has, for files in the sets' own formats."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets
from sklearn.datasets import load_digits

from tests.data.named_files import MAKERS
from vitrail.data.arrays import Arrays
from vitrail.data.named import KNOWN, data_folder, from_named
from vitrail.data.named_sets import NAMED
from vitrail.data.samples import SPLITS, UNSAID
from vitrail.data.splits import make_splits
from vitrail.errors import DataError
from vitrail.pictures import as_picture


@pytest.fixture(autouse=True)
def any_content_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksums are those of the real sets; here a file that exists is whole."""
    for module in ("cifar", "flowers102", "imagenet", "mnist", "stl10", "svhn"):
        monkeypatch.setattr(
            f"torchvision.datasets.{module}.check_integrity", lambda path, md5=None: os.path.isfile(path)
        )


def peer_of(name: str, root: Path, split: str):
    named = NAMED[name]
    return getattr(torchvision.datasets, named.maker)(str(root / named.folder), **named.splits[split])


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_set_has_the_pictures_labels_and_splits_that_torchvision_gives(name: str, tmp_path: Path) -> None:
    MAKERS[name](tmp_path)
    source = from_named(name, data_dir=tmp_path)
    names = list(source.samples.names)
    assert names == sorted(names)
    assert len(set(source.classes)) == len(source.classes)
    seen = 0
    for split in NAMED[name].splits:
        peer = peer_of(name, tmp_path, split)
        rows = [row for row, own in enumerate(names) if own.startswith(f"{split}/" if split else "")]
        assert len(rows) == len(peer) > 0
        assert set(source.samples.splits[rows]) == {SPLITS.index(split) if split else UNSAID}
        theirs = [peer[i] for i in range(len(peer))]
        if name == "sun397":  # in whatever order the file system has them
            theirs = [theirs[i] for i in sorted(range(len(peer)), key=lambda i: str(peer._image_files[i]))]
        assert source.samples.labels[rows].tolist() == [int(label) for _, label in theirs]
        for row, (picture, _) in zip(rows, theirs, strict=True):
            assert np.array_equal(as_picture(source.all().read(row)), picture.convert("RGB"))
        seen += len(rows)
    assert seen == len(source)


@pytest.mark.parametrize(
    ("name", "shape"), [("cifar10", (24, 32, 32, 3)), ("mnist", (9, 28, 28, 1)), ("svhn", (8, 32, 32, 3))]
)
def test_pictures_of_one_size_are_one_array(name: str, shape, tmp_path: Path) -> None:
    MAKERS[name](tmp_path)
    reader = from_named(name, data_dir=tmp_path).reader
    assert isinstance(reader, Arrays)
    assert reader.array.shape == shape
    assert reader.array.dtype == np.uint8
    assert reader.array.flags.c_contiguous


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("imagenet", ("tench, Tinca tinca", "crane (n02012849)", "crane (n03126707)")),
        ("svhn", tuple("0123456789")),
        ("pets", ("Abyssinian", "American Bulldog")),
        ("caltech101", ("ant", "crab")),
    ],
)
def test_classes_are_called_as_the_set_calls_them_and_each_name_is_there_once(name, classes, tmp_path: Path) -> None:
    MAKERS[name](tmp_path)
    assert from_named(name, data_dir=tmp_path).classes == classes


def test_names_count_the_pictures_of_a_split(tmp_path: Path) -> None:
    MAKERS["cifar10"](tmp_path)
    source = from_named("cifar10", data_dir=tmp_path)
    assert list(source.samples.names)[:5] == [
        "test/000000",
        "test/000001",
        "test/000002",
        "test/000003",
        "train/000000",
    ]
    made = make_splits(source, fraction=0.25)
    assert (len(made.train), len(made.val), len(made.test), made.made) == (15, 5, 4, True)


def test_the_digits_are_those_of_scikit_learn_in_255_shades() -> None:
    source = from_named("digits")
    digits = load_digits()
    assert np.array_equal(np.round(source.reader.array[..., 0] / 255 * 16), digits.images)
    assert (source.reader.array.min(), source.reader.array.max()) == (0, 255)
    assert source.samples.labels.tolist() == digits.target.tolist()
    assert source.classes == tuple("0123456789")
    assert (source.samples.splits == UNSAID).all()
    assert as_picture(source.all().read(0)).size == (8, 8)
    assert np.array_equal(pickle.loads(pickle.dumps(source.reader)).array, source.reader.array)


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_set_that_is_not_there_is_one_line_that_says_how_to_get_it(name: str, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError, match=f"{name} is not in {folder}.*--data-dir") as caught:
            from_named(name, data_dir=folder)
        assert "\n" not in str(caught.value)
        assert ("--download gets it" in str(caught.value)) == NAMED[name].can_download
    assert not (tmp_path / "absent").exists()


def test_what_is_asked_for_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "download", lambda self: MAKERS["cifar10"](Path(self.root)))
    with pytest.raises(DataError, match="--download gets it"):
        from_named("cifar10", data_dir=tmp_path / "new")
    assert len(from_named("cifar10", data_dir=tmp_path / "new", download=True)) == 24


def test_a_download_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self) -> None:
        raise OSError("no route\nto host")

    monkeypatch.setattr(torchvision.datasets.CIFAR10, "download", fail)
    with pytest.raises(DataError, match=r"cifar10 could not be downloaded to .*: no route to host"):
        from_named("cifar10", data_dir=tmp_path, download=True)


def test_an_unknown_name_is_told_with_those_that_are_known() -> None:
    with pytest.raises(DataError, match=r"no set called cifar11: choose from aircraft, .*cifar10, .*digits"):
        from_named("cifar11")
    assert "digits" in KNOWN


def test_sets_are_kept_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder("~/x") == Path.home() / "x"
    monkeypatch.delenv("VITRAIL_DATA")
    assert data_folder() == Path.home() / ".cache" / "vitrail" / "data"
