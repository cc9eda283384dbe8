"""Tar shards as a source: names, labels and splits are those of what is in them."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.data.shard_making import extracted, labels, splits, write_tar
from vitrail.data.shard_files import expand_braces
from vitrail.data.shards import from_shards
from vitrail.errors import DataError

pytestmark = pytest.mark.usefixtures("own_cache")


def test_names_labels_and_bytes_are_what_tarfile_extracts(shards: Path) -> None:
    source = from_shards(shards)
    truth = extracted(*sorted(shards.glob("*.tar")))
    pictures = sorted(name for name in truth if name.endswith(".jpg"))
    assert list(source.samples.names) == pictures
    assert labels(source) == {name: truth[name[:-3] + "cls"].decode() for name in pictures}
    assert source.classes == ("0", "1", "2", "3", "4")
    assert set(splits(source).values()) == {"train"}
    rows = np.random.default_rng(1).integers(0, len(source), 300).tolist()  # with repeats, in no order
    assert source.reader.read_many(rows) == [truth[pictures[row]] for row in rows]
    assert source.reader.read_many([]) == []


def test_positions_rank_the_rows_as_they_lie_in_the_shards(shards: Path) -> None:
    source = from_shards(shards)
    assert source.positions is not None
    stored = [name for path in sorted(shards.glob("*.tar")) for name in extracted(path) if name.endswith(".jpg")]
    assert [source.samples.names[int(row)] for row in np.argsort(source.positions)] == stored


@pytest.mark.parametrize(("size", "run"), [(2**20, 8), (3 * 2**20, 3), (1000, 64), (2**24, 1)])
def test_a_run_is_about_eight_megabytes_and_at_most_64_pictures(tmp_path: Path, size: int, run: int) -> None:
    write_tar(tmp_path / "x.tar", {f"a/{number}.jpg": bytes(size) for number in range(3)})
    assert from_shards(tmp_path / "x.tar").run == run


def test_a_key_ends_at_the_first_dot_and_its_picture_is_the_plain_one(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "x.tar",
        {
            "./d.ir/a.seg.png": b"mask",
            "./d.ir/a.JPG": b"picture",
            "./d.ir/a.json": b'{"label": "rose"}',
            "b.input.png": b"only one",
            "._b.jpg": b"resource fork",
            "notes.md": b"",
            "c.cls": b"label without picture",
        },
    )
    source = from_shards(tmp_path / "x.tar")
    assert list(source.samples.names) == ["b.input.png", "d.ir/a.JPG"]
    assert source.reader.read_many([0, 1]) == [b"only one", b"picture"]
    assert labels(source) == {"b.input.png": None, "d.ir/a.JPG": "rose"}
    assert any("1 keys have a label and no picture" in note for note in source.notes)


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ({"cls": b"7\n"}, "7"),
        ({"cls": b" rose "}, "rose"),
        ({"cls": b"-1"}, None),
        ({"json": b'{"label": "rose", "name": "not ours"}'}, "rose"),
        ({"json": b'{"cls": 3}'}, "3"),
        ({"json": b'{"class": 3.0}'}, "3"),
        ({"json": b'{"caption": "a rose"}', "txt": b"a caption"}, None),
        ({"txt": b"rose\n"}, "rose"),
        ({"txt": b"a caption " * 50}, None),
        ({"cls": b"7", "json": b'{"label": 3}', "txt": b"x"}, "7"),
        ({}, None),
    ],
)
def test_a_label_is_read_from_cls_json_or_txt(tmp_path: Path, notes: dict[str, bytes], expected: str | None) -> None:
    members = {"k.jpg": b"x"} | {f"k.{kind}": data for kind, data in notes.items()}
    assert labels(from_shards(write_tar(tmp_path / "x.tar", members))) == {"k.jpg": expected}


def test_lists_in_json_are_several_labels(tmp_path: Path) -> None:
    said = {"a": ["x", "y"], "b": [], "c": "y"}
    members: dict[str, bytes] = {}
    for key, label in said.items():
        members |= {f"{key}.jpg": key.encode(), f"{key}.json": json.dumps({"label": label}).encode()}
    samples = from_shards(write_tar(tmp_path / "x.tar", members)).samples
    assert samples.multi_label
    assert [[samples.classes[i] for i in samples.labels_of(row)] for row in range(3)] == [["x", "y"], [], ["y"]]


@pytest.mark.parametrize("file", ["classes.txt", "classes.json", "by name", "by number"])
def test_numbers_point_into_the_list_of_classes_beside_the_shards(tmp_path: Path, file: str) -> None:
    write_tar(tmp_path / "x.tar", {"a.jpg": b"x", "a.cls": b"2", "b.jpg": b"x", "b.cls": b"0"})
    names = ["zebra", "ant", "bee"]
    if file == "classes.txt":
        (tmp_path / file).write_text("\n".join(names) + "\n")
    else:
        kinds = {"by name": dict(zip(names, range(3), strict=True)), "by number": dict(enumerate(names))}
        (tmp_path / "classes.json").write_text(json.dumps(kinds.get(file, names)))
    source = from_shards(tmp_path)
    assert source.classes == tuple(names)
    assert labels(source) == {"a.jpg": "bee", "b.jpg": "zebra"}
    for old in tmp_path.glob("classes.*"):
        old.unlink()
    (tmp_path / "classes.txt").write_text("only one")
    with pytest.raises(DataError, match="a label is 2, but the list of classes beside the shards has 1"):
        from_shards(tmp_path)


def test_a_name_that_the_list_lacks_comes_after_it_and_shifts_nothing(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", {"a.jpg": b"x", "a.cls": b"new", "b.jpg": b"x", "b.cls": b"zebra"})
    (tmp_path / "classes.txt").write_text("zebra\nant\n")
    source = from_shards(tmp_path)
    assert source.classes == ("zebra", "ant", "new")
    assert source.samples.labels.tolist() == [2, 0]
    assert any("'new'" in note for note in source.notes)


def test_numbers_without_a_list_are_ordered_as_numbers(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for k in (10, 9, 2):
        members |= {f"{k}.jpg": b"x", f"{k}.cls": str(k).encode()}
    assert from_shards(write_tar(tmp_path / "x.tar", members)).classes == ("2", "9", "10")


def test_folders_of_keys_are_classes_and_splits_as_in_a_folder_of_pictures(tmp_path: Path) -> None:
    from vitrail.data.folder import from_folder

    names = ["train/rose/1.jpg", "train/tulip/more/2.png", "val/rose/3.jpg", "test/tulip/4.webp"]
    for name in names:
        (tmp_path / "f" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "f" / name).write_bytes(name.encode())
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(tmp_path / "f", ".")
    folder, shard = from_folder(tmp_path / "f"), from_shards(tmp_path / "x.tar")
    assert list(shard.samples.names) == list(folder.samples.names)
    assert shard.classes == folder.classes
    assert labels(shard) == labels(folder)
    assert splits(shard) == splits(folder)


def test_the_split_is_in_the_name_of_the_shard_or_of_its_folder(tmp_path: Path) -> None:
    words = {"train-0.tar": "train", "validation-0.tar": "val", "val_1.tar": "val", "test.tar": "test"}
    words |= {"trainable-0.tar": None, "x.tar": None}
    for i, name in enumerate(words):
        write_tar(tmp_path / "a" / name, {f"{i}.jpg": b"x"})
    assert list(splits(from_shards(tmp_path / "a")).values()) == list(words.values())
    write_tar(tmp_path / "b" / "train" / "0.tar", {"1.jpg": b"x"})
    write_tar(tmp_path / "b" / "val" / "0.tar", {"2.jpg": b"x"})
    assert splits(from_shards(tmp_path / "b" / "{train,val}" / "*.tar")) == {"1.jpg": "train", "2.jpg": "val"}


def test_one_key_in_two_shards_is_two_pictures(tmp_path: Path) -> None:
    write_tar(tmp_path / "train-0.tar", {"1.jpg": b"a"})
    write_tar(tmp_path / "val-0.tar", {"1.jpg": b"b"})
    source = from_shards(tmp_path)
    assert splits(source) == {"train-0.tar/1.jpg": "train", "val-0.tar/1.jpg": "val"}
    assert source.reader.read_many([1, 0]) == [b"b", b"a"]


def test_groups_come_from_a_pattern(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", {f"p{k // 2}_{k}.jpg": b"x" for k in range(6)})
    groups = from_shards(tmp_path / "x.tar", group_by=r"p(\d)_").samples.groups
    assert groups is not None
    assert len(set(groups.tolist())) == 3
    assert all(groups[2 * k] == groups[2 * k + 1] for k in range(3))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("{a,b}{1..2}", ["a1", "a2", "b1", "b2"]),
        ("{3..1}", ["3", "2", "1"]),
        ("plain{}.tar", ["plain{}.tar"]),
    ],
)
def test_braces_are_written_out_as_a_shell_does(pattern: str, expected: list[str]) -> None:
    assert list(expand_braces(pattern)) == expected


def test_every_kind_of_address_finds_the_shards(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(from_shards(shards).samples.names)
    monkeypatch.chdir(shards.parent)
    for address in (
        f"{shards}/",
        f"{shards}/*.tar",
        f"{shards}/train-{{0000..0002}}.tar",
        f"file://{shards}",
        "shards",
    ):
        assert list(from_shards(address).samples.names) == whole
    assert len(from_shards(shards / "train-0001.tar")) == 40
    assert len(from_shards(f"{shards}/train-{{0000,0002}}.tar")) == 80


@pytest.mark.parametrize(
    ("make", "address", "says"),
    [
        (None, "nothing", "there is no such shard or folder"),
        ("empty/readme.md", "empty", "there is no .tar there"),
        ("gz/a.tar.gz", "gz", "compressed with gzip.*gunzip"),
        ("zst/a.tar.zst", "zst/a.tar.zst", "compressed with zstd.*unzstd"),
        (None, "x-*.tar", "there is no .tar there"),
        (None, "nosuch://x/a.tar", "nosuch"),
    ],
)
def test_an_address_without_shards_is_one_line(tmp_path: Path, make: str | None, address: str, says: str) -> None:
    if make:
        (tmp_path / make).parent.mkdir()
        (tmp_path / make).write_bytes(b"x")
    with pytest.raises(DataError, match=says) as caught:
        from_shards(address if "://" in address else tmp_path / address)
    assert "\n" not in str(caught.value)


def test_shards_without_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="hold no picture"):
        from_shards(write_tar(tmp_path / "x.tar", {"a.txt": b"x"}))


def test_a_shard_without_an_end_mark_is_read_and_reported(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {"a.jpg": b"x" * 512})
    path.write_bytes(path.read_bytes()[:1024])
    source = from_shards(path)
    assert source.reader.read_many([0]) == [b"x" * 512]
    assert any("no end mark" in note for note in source.notes)
