"""A folder as a source: what is listed, in which order, under which class and split."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from vitrail.data.folder import from_folder
from vitrail.data.samples import SPLITS, UNSAID
from vitrail.errors import DataError
from vitrail.pictures import as_picture
from vitrail.pictures.sources import SUFFIXES


def rows(source) -> list[tuple[str, str, str]]:
    """(name, class, split) of all samples; empty where not said."""
    samples = source.samples
    return [
        (name, "" if label == UNSAID else source.classes[label], "" if split == UNSAID else SPLITS[split])
        for name, label, split in zip(samples.names, samples.labels, samples.splits, strict=True)
    ]


def test_classes_labels_and_files_are_those_of_torchvision(photos) -> None:
    root = photos({"dog": 3, "Cat": 2, "été": 2, "cat": 1, "zebra/young/very": 2, "zebra": ["x.PNG"]})
    peer = ImageFolder(str(root))
    source = from_folder(root)
    assert list(source.classes) == peer.classes
    ours = source.reader.read_many(range(len(source)))
    assert sorted(zip(ours, source.samples.labels.tolist(), strict=True)) == sorted(peer.samples)
    assert (source.samples.splits == UNSAID).all()
    assert source.notes == ()


def test_the_order_is_that_of_the_bytes_of_the_names(photos) -> None:
    root = photos({"a": ["b.jpg", "B.jpg", "é.jpg", "10.jpg", "9.jpg"], "a-b": 1, "a/b": 1, "a.b": 1})
    names = [os.fsencode(name) for name in from_folder(root).samples.names]
    assert names == sorted(names)
    assert len(names) == 8


def test_real_photographs_are_read(imagenet_sample: Path) -> None:
    source = from_folder(imagenet_sample)
    peer = ImageFolder(str(imagenet_sample))
    assert list(source.classes) == peer.classes
    assert source.samples.counts().tolist() == [1] * 1000
    assert source.reader.read_many([0, 999]) == [peer.samples[0][0], peer.samples[999][0]]
    assert as_picture(source.all().read(17)).mode == "RGB"


@pytest.mark.parametrize("val", ["val", "valid", "validation", "VAL", "Validation"])
def test_split_folders_are_known_in_any_spelling(photos, val: str) -> None:
    root = photos({"Train/cat": 2, "Train/dog": 2, f"{val}/cat": 1, f"{val}/dog": 1, "test/cat": 1, "test/dog": 1})
    source = from_folder(root)
    assert source.classes == ("cat", "dog")
    assert [len(source.said(split)) for split in SPLITS] == [4, 2, 2]
    assert set(source.said("val").names()) == {f"{val}/cat/000.jpg", f"{val}/dog/000.jpg"}
    assert source.notes == ()


def test_a_class_that_a_split_lacks_is_told_and_shifts_no_other(photos) -> None:
    root = photos({"train/a": 2, "train/b": 2, "train/d": 2, "val/a": 1, "val/c": 1, "val/d": 1})
    source = from_folder(root)
    assert source.classes == ("a", "b", "c", "d")
    assert all(name.split("/")[1] == label for name, label, _ in rows(source))
    assert "val has no pictures of 'b'" in source.notes
    assert any("only val has pictures of 'c'" in note for note in source.notes)


def test_a_class_may_be_called_train(photos) -> None:
    source = from_folder(photos({"car": 2, "plane": 2, "train": 3}))
    assert source.classes == ("car", "plane", "train")
    assert source.notes == ("taken as a class and not as a split, since there are pictures in it: 'train'",)
    assert (source.samples.splits == UNSAID).all()


def test_it_is_asked_whether_train_is_a_class_or_a_split(photos) -> None:
    with pytest.raises(DataError, match=r"not clear whether 'train' is a split or a class.*'car'"):
        from_folder(photos({"car": 2, "train/steam": 2}))


def test_pictures_beside_the_splits_are_left_out_and_counted(photos) -> None:
    source = from_folder(photos({"train/a": 1, "val/a": 1, "extra/a": 3, "train": ["loose.jpg"]}))
    assert len(source) == 2
    assert "4 pictures left out, in 'extra' beside the splits, or in no class folder" in source.notes


def test_a_folder_without_class_folders_has_no_labels(photos) -> None:
    source = from_folder(photos({".": 3}))
    assert source.classes == ()
    assert rows(source) == [(f"{i:03d}.jpg", "", "") for i in range(3)]
    split = from_folder(photos({"train": 2, "val": 1}, "split"))
    assert split.classes == ()
    assert [split for _, _, split in rows(split)] == ["train", "train", "val"]


def test_loose_pictures_beside_class_folders_are_left_out_and_counted(photos) -> None:
    source = from_folder(photos({"a": 1, "b": 1, ".": 2}))
    assert len(source) == 2
    assert source.notes == ("2 pictures left out, in no class folder",)


def test_hidden_files_are_skipped_and_others_counted(photos) -> None:
    root = photos({"a": ["1.JPG", ".2.jpg", "notes.txt", "b.txt", "README", "jpg"], ".git/x": 1, "b": 1, "empty": 0})
    source = from_folder(root)
    assert [name for name, _, _ in rows(source)] == ["a/1.JPG", "b/000.jpg"]
    assert "4 files left out, not named like a picture: .txt 2, no suffix 2" in source.notes
    assert "no class, a folder without pictures: 'empty'" in source.notes


@pytest.mark.parametrize("suffix", sorted(SUFFIXES))
def test_every_suffix_is_known_in_any_case(photos, suffix: str) -> None:
    assert len(from_folder(photos({"a": [f"x{suffix}", f"y{suffix.upper()}"]}))) == 2


def test_a_name_that_is_not_utf8_is_listed_and_opened(photos) -> None:
    root = photos({"a": 1, "b": 1})
    odd = os.fsencode(root) + b"/a/\xff\xfe.jpg"
    os.rename(os.fsencode(root) + b"/a/000.jpg", odd)
    source = from_folder(root)
    assert os.fsencode(source.samples.names[0]) == b"a/\xff\xfe.jpg"
    assert as_picture(pickle.loads(pickle.dumps(source.reader)).read_many([0])[0]).size == (24, 16)


def test_links_are_followed_once(photos, tmp_path: Path) -> None:
    root = photos({"b": 2, "c": 1})
    outside = photos({"deep/deeper": 2}, "outside")
    (root / "a").symlink_to("b")  # sorts before what it points to, which keeps its own name
    (root / "b" / "up").symlink_to("..")  # a loop
    (root / "d").symlink_to(outside)
    (root / "e").symlink_to(outside / "deep")  # the same directory again
    (root / "c" / "link.jpg").symlink_to(root / "b" / "000.jpg")  # a file is a sample wherever it lies
    (root / "c" / "gone.jpg").symlink_to("nothing")
    (root / "c" / "self.jpg").symlink_to("self.jpg")
    (outside / "back").symlink_to(root)
    os.mkfifo(root / "c" / "pipe.jpg")
    source = from_folder(root)
    assert rows(source) == [
        ("b/000.jpg", "b", ""),
        ("b/001.jpg", "b", ""),
        ("c/000.jpg", "c", ""),
        ("c/link.jpg", "c", ""),
        ("d/deep/deeper/000.jpg", "d", ""),
        ("d/deep/deeper/001.jpg", "d", ""),
    ]
    assert source.notes == (
        "not listed again, a link to a folder that is listed already: 'a', 'b/up', 'd/back', 'e'",
        "left out, a link to nothing or no file: 'c/gone.jpg', 'c/pipe.jpg', 'c/self.jpg'",
    )


def test_a_folder_of_links_alone_is_read(photos) -> None:
    store = photos({"one": 2, "two": 1}, "store")
    root = photos({})
    (root / "x").symlink_to(store / "one")
    (root / "y").symlink_to(store / "two")
    assert from_folder(root).samples.counts().tolist() == [2, 1]


def test_a_folder_that_cannot_be_opened_is_told(photos, monkeypatch: pytest.MonkeyPatch) -> None:
    root = photos({"a": 1, "b": 1, "locked": 1})
    scandir = os.scandir

    def refuse(path):
        if os.fsdecode(path).endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert "left out, a folder that cannot be opened: 'locked'" in from_folder(root).notes
    with pytest.raises(DataError, match="locked: reading this folder is not permitted"):
        from_folder(root / "locked")


def test_what_is_no_folder_of_pictures_is_one_line(photos, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*: check the path"):
        from_folder(tmp_path / "absent")
    with pytest.raises(DataError, match=r"there are no pictures in .*photos: expected .*photos/<class>/"):
        from_folder(photos({}))
    with pytest.raises(DataError, match=r"no pictures in .* \(1 other file\)"):
        from_folder(photos({"a": ["x.txt"]}, "texts"))
    with pytest.raises(DataError, match="is a file, not a folder"):
        from_folder(photos({"a": 1}, "one") / "a" / "000.jpg")


def test_one_class_is_told(photos) -> None:
    assert from_folder(photos({"a": 2})).notes == ("there is one class, 'a': nothing can be told apart",)


def test_groups_are_what_the_pattern_finds_in_the_names(photos) -> None:
    root = photos({"a": ["p1_x.jpg", "p1_y.jpg", "p2_x.jpg", "other.jpg"], "b": ["p1_z.jpg"]})
    source = from_folder(root, group_by=r"/(p\d)_")
    by_name = dict(zip(source.samples.names, source.samples.groups.tolist(), strict=True))
    assert by_name["a/p1_x.jpg"] == by_name["a/p1_y.jpg"] == by_name["b/p1_z.jpg"] != by_name["a/p2_x.jpg"]
    assert by_name["a/other.jpg"] == UNSAID
    assert np.array_equal(from_folder(root, group_by=r"p\d(?=_)").samples.groups, source.samples.groups)


@pytest.mark.parametrize(("pattern", "said"), [("(", "this is no regular expression"), ("zzz", "matches no name")])
def test_a_pattern_that_cannot_group_is_one_line(photos, pattern: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        from_folder(photos({"a": 1}), group_by=pattern)


MEASURE = """
import re, sys, time
from vitrail.data.folder import from_folder
started = time.perf_counter()
source = from_folder(sys.argv[1])
taken = time.perf_counter() - started
peak = int(re.search("VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024  # rusage has the parent's too
print(len(source), len(source.classes), taken, peak)
"""


def list_many(root: Path, folders: int, files: int) -> tuple[int, int, float, float]:
    """(pictures, classes, seconds, peak MB) of listing so many files in a process of its own."""
    for number in range(folders):
        folder = root / f"class_{number:04d}"
        folder.mkdir(parents=True)
        for file in range(files):
            os.close(os.open(folder / f"picture_{number:04d}_{file:06d}.JPEG", os.O_CREAT | os.O_WRONLY))
    done = subprocess.run([sys.executable, "-c", MEASURE, root], capture_output=True, text=True, check=True)
    pictures, classes, seconds, peak = done.stdout.split()
    return int(pictures), int(classes), float(seconds), float(peak)


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured through /proc")


@needs_proc
def test_listing_needs_little_memory(tmp_path: Path) -> None:
    pictures, classes, _, peak = list_many(tmp_path / "many", 20, 1000)
    assert (pictures, classes) == (20_000, 20)
    assert peak < 150


@needs_proc
@pytest.mark.slow
def test_a_million_files_are_listed_in_little_memory_and_time(tmp_path: Path) -> None:
    pictures, classes, seconds, peak = list_many(tmp_path / "many", 1000, 1000)
    print(f"{pictures} pictures in {seconds:.1f} s and {peak:.0f} MB")
    assert (pictures, classes) == (1_000_000, 1000)
    assert peak < 1500
    assert seconds < 60


def test_with_everything_no_picture_is_left_out_and_labels_are_kept_where_there_are_some(tmp_path):
    names = ["loose.png", "cat/1.png", "cat/deep/2.png", "dog/3.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    plain, whole = from_folder(tmp_path), from_folder(tmp_path, everything=True)
    assert len(plain) == 3
    assert "1 picture left out" in " ".join(plain.notes)
    found = {name: whole.samples.labels_of(k).tolist() for k, name in enumerate(whole.samples.names)}
    assert found == {"loose.png": [], "cat/1.png": [0], "cat/deep/2.png": [0], "dog/3.png": [1]}
    assert whole.classes == ("cat", "dog")
    assert not any("left out" in note for note in whole.notes)


def test_with_everything_splits_hold_and_what_stands_beside_them_is_in_none(tmp_path):
    names = ["train/cat/1.png", "train/2.png", "val/cat/3.png", "more/4.png", "5.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    samples = from_folder(tmp_path, everything=True).samples
    found = {name: int(samples.splits[k]) for k, name in enumerate(samples.names)}
    assert found == {"train/cat/1.png": 0, "train/2.png": 0, "val/cat/3.png": 1, "more/4.png": -1, "5.png": -1}
    (tmp_path / "val" / "cat" / "3.png").unlink()  # now it is not clear whether train is a split or a class
    with pytest.raises(DataError):
        from_folder(tmp_path)
    assert len(from_folder(tmp_path, everything=True)) == 4
