"""Pictures from a .npz file are the arrays that were written, with their splits, labels and classes."""

import json
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.cli import main
from vitrail.data import make_splits, open_source
from vitrail.data.samples import SPLITS, UNSAID
from vitrail.errors import DataError
from vitrail.pictures import as_picture

RNG = np.random.default_rng(0)
FORMS = {"keras": ("x_{}", "y_{}"), "medmnist": ("{}_images", "{}_labels")}


def pictures(count, size=(5, 6), channels=3):
    return RNG.integers(0, 256, (count, *size, channels), np.uint8)


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("word", ["val", "valid", "validation"])
def test_a_file_has_its_pictures_labels_and_splits(tmp_path, form, word):
    parts = {"train": pictures(7), word: pictures(3), "test": pictures(4)}
    labels = {name: RNG.integers(0, 4, (len(part), 1)) for name, part in parts.items()}  # in a column, as both have it
    labels["train"][0] = 3
    arrays = {FORMS[form][0].format(name): part for name, part in parts.items()}
    arrays |= {FORMS[form][1].format(name): some for name, some in labels.items()}
    source = open_source(write(tmp_path / "set.npz", **arrays, other=np.arange(3)))
    assert source.classes == ("0", "1", "2", "3")
    assert len(source) == 14
    names = list(source.samples.names)
    assert names == sorted(names)
    for name, part in parts.items():
        split = "val" if name == word else name
        rows = [row for row, own in enumerate(names) if own.startswith(f"{split}/")]
        assert names[rows[0]] == f"{split}/000000"
        assert set(source.samples.splits[rows]) == {SPLITS.index(split)}
        assert source.samples.labels[rows].tolist() == labels[name][:, 0].tolist()
        for row, picture in zip(rows, part, strict=True):
            assert np.array_equal(as_picture(source.all().read(row)), picture)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(2, 6),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    channels=st.sampled_from([None, 1, 3, 4]),
    first=st.booleans(),
    compressed=st.booleans(),
)
def test_pictures_may_be_grey_and_channels_stand_first_or_last(
    tmp_path_factory, count, size, channels, first, compressed
):
    path = tmp_path_factory.mktemp("npz") / "some.NPZ"
    array = pictures(count, size, channels or 1)
    stored = array[..., 0] if channels is None else np.moveaxis(array, 3, 1) if first else array
    with open(path, "wb") as file:  # numpy would end the name in small letters
        (np.savez_compressed if compressed else np.savez)(file, images=stored, labels=np.arange(count))
    source = open_source(path)
    assert set(source.samples.splits) == {UNSAID}
    assert list(source.samples.names)[1] == "000001"
    for row, picture in enumerate(array):
        assert np.array_equal(as_picture(source.all().read(row)), as_picture(picture))


def test_classes_are_named_by_the_file_or_by_the_labels_themselves(tmp_path):
    numbers = write(tmp_path / "a.npz", x=pictures(3), y=[1, 0, 1], classes=["cat", "dog", "ox"])
    assert open_source(numbers).classes == ("cat", "dog", "ox")
    words = open_source(write(tmp_path / "b.npz", x=pictures(3), y=["ox", "cat", "ox"]))
    assert (words.classes, words.samples.labels.tolist()) == (("cat", "ox"), [1, 0, 1])


def test_zeros_and_ones_in_columns_are_several_labels(tmp_path):
    several = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1]], np.uint8)
    samples = open_source(write(tmp_path / "a.npz", train_images=pictures(3), train_labels=several)).samples
    assert samples.multi_label
    assert [samples.labels_of(row).tolist() for row in range(3)] == [[0, 2], [], [1, 2]]
    assert np.array_equal(samples.targets(np.arange(3)), several)


def test_pictures_without_labels_are_for_learning_without(tmp_path):
    source = open_source(write(tmp_path / "a.npz", x_train=pictures(5)))
    assert source.classes == ()
    assert set(source.samples.labels) == {UNSAID}


def test_pictures_of_one_group_stay_on_one_side(tmp_path):
    source = open_source(write(tmp_path / "a.npz", x=pictures(40), y=np.arange(40) % 2), group_by=r"(\d)$")
    val = make_splits(source, fraction=0.3, seed=0).val
    endings = {val.name_of(place)[-1] for place in range(len(val))}
    assert len(val) == 4 * len(endings) > 0


OBJECTS = np.array([{"a": 1}, None], dtype=object)
WRONG = {
    "no pictures: they are looked for as x_train, x_val, x_test, or train_images and so on, or x; it has a, b": {
        "a": [1],
        "b": [2],
    },
    "x_train is float32: pictures must be bytes from 0 to 255: save them as uint8": {
        "x_train": np.zeros((2, 4, 4, 3), np.float32)
    },
    "x_train is (2, 6, 6, 5): pictures must be (pictures, height, width[, channels])": {
        "x_train": np.zeros((2, 6, 6, 5), np.uint8)
    },
    "x_train is (0, 4, 4, 3): pictures must be": {"x_train": np.zeros((0, 4, 4, 3), np.uint8)},
    "x_train has 2 pictures, y_train 3 labels": {"x_train": pictures(2), "y_train": [0, 1, 0]},
    "has labels of float64, (2,): they must be whole numbers, or names": {"x": pictures(2), "y": [0.0, 1.0]},
    "has labels that are no numbers of classes from 0": {"x": pictures(2), "y": [0, -1]},
    "nor zeros and ones for each class": {"x": pictures(2), "y": [[0, 2], [1, 1]]},
    "has labels up to 1,000,000,000: number the classes from 0": {"x": pictures(2), "y": [0, 10**9]},
    "names 2 classes in `classes`, but has labels of 3": {"x": pictures(2), "y": [0, 2], "classes": ["a", "b"]},
    "names 1 classes in `classes`, but has labels of 2": {"x": pictures(2), "y": [0, 1], "classes": ["a", "a"]},
    "has pictures of 2 sizes: all in one file must have the same": {
        "x_train": pictures(2),
        "x_test": pictures(2, (7, 7)),
    },
    "has labels of one kind in one split, and others or none in another": {
        "x_train": pictures(2),
        "y_train": [0, 1],
        "x_test": pictures(2),
    },
    "has pictures of a split and others of none": {"x": pictures(2), "x_test": pictures(2)},
    "holds Python objects, which are not read: save plain arrays": {"x": OBJECTS},
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_in_a_file_is_one_line(tmp_path, words):
    path = write(tmp_path / "some.npz", **WRONG[words])
    with pytest.raises(DataError) as error:
        open_source(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_none_and_damaged_ones_are_said(tmp_path):
    (tmp_path / "text.npz").write_text("pictures")
    with pytest.raises(DataError, match=r"text\.npz is no \.npz file"):
        open_source(tmp_path / "text.npz")
    with pytest.raises(DataError, match=r"there\.npz is not there"):
        open_source(tmp_path / "there.npz")
    whole = write(tmp_path / "whole.npz", x=pictures(50), y=np.zeros(50, int)).read_bytes()
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(whole[:3000] + bytes(500) + whole[3500:])
    with pytest.raises(DataError, match=r"damaged\.npz is damaged: "):
        open_source(damaged)
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as file:
        file.writestr("x.npy", b"no array")
    with pytest.raises(DataError, match=r"other\.npz"):
        open_source(tmp_path / "other.npz")


def test_one_trains_and_evaluates_by_its_name(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bright = np.arange(24) % 2
    some = (pictures(24, (8, 8)) // 4 + 150 * bright[:, None, None, None]).astype(np.uint8)
    write(tmp_path / "some.npz", x_train=some, y_train=bright, x_test=some, y_test=bright, classes=["dark", "light"])
    tiny = "--img-size=8 --architecture.patch-size=4 --architecture.embed-dim=16 --architecture.depth=1 --steps=20"
    tiny += " --architecture.num-heads=2 --batch-size=8 --schedule.warmup-epochs=0 --optimiser.lr=0.01 --out=run"
    assert main(["train", "some.npz", *tiny.split(), "--recipe=small"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "some.npz", "--split=test", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["top1"] == 1.0, found
