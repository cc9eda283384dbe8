"""Packing: what comes out of shards is what went in, to the byte."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.transforms.v2.functional as tv
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

import vitrail
from tests.data.conftest import Photos, jpeg
from vitrail.data.folder import from_folder
from vitrail.data.packing import pack
from vitrail.data.samples import Names, Samples
from vitrail.data.shard_writer import keys_of
from vitrail.data.shards import from_shards, make_index
from vitrail.data.source import Source
from vitrail.errors import DataError, VitrailError

WEBDATASET_KEY = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$", re.DOTALL)  # as its documentation gives the rule


class Given:
    """A reader of pictures that are there already."""

    def __init__(self, pictures: list[Any]) -> None:
        self.pictures = pictures

    def read_many(self, rows: Any) -> list[Any]:
        return [self.pictures[row] for row in rows]


def source_of(names: list[str], pictures: list[Any], **columns: Any) -> Source:
    plain = {"labels": np.zeros(len(names), np.int32), "splits": np.full(len(names), -1, np.int8), "classes": ("a",)}
    return Source("given", Samples(Names.of(names), **(plain | columns)), Given(pictures))


def same(one: Samples, other: Samples) -> None:
    assert list(one.names) == list(other.names)
    assert one.classes == other.classes
    for column in ("labels", "splits", "groups", "weights", "label_list", "label_ends"):
        mine, theirs = getattr(one, column), getattr(other, column)
        assert (mine is None) == (theirs is None), column
        assert mine is None or np.array_equal(mine, theirs), column


def scanned(folder: Path) -> Source:
    """The source with an index that was not written while packing."""
    (folder / "vitrail-index.npz").unlink(missing_ok=True)
    make_index(folder)
    return from_shards(folder)


def tar_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}


def groups_of(path: Path) -> list[dict[str, bytes]]:
    """The samples of a shard as WebDataset groups them: neighbours with one key."""
    samples: list[dict[str, bytes]] = []
    with tarfile.open(path) as tar:
        for member in tar:
            match = WEBDATASET_KEY.match(member.name)
            assert match, member.name
            key, ending = os.fsencode(match[1]), match[2].lower()
            if not samples or samples[-1]["__key__"] != key:
                samples.append({"__key__": key})
            assert ending not in samples[-1]
            samples[-1][ending] = tar.extractfile(member).read()
    return samples


TREE = {
    "train/rose": 30,
    "train/tulip": ["a.b.c.JPG", "x y.jpg", "ü.jpeg", "a.jpg", "a.jpeg"],
    "val/rose": 5,
    "test/tulip": 2,
}


def test_a_folder_comes_back_with_its_names_labels_splits_and_bytes(photos: Photos, tmp_path: Path) -> None:
    folder = photos(TREE)
    before = from_folder(folder)
    report = pack(folder, tmp_path / "packed", shard_mb=0.02)
    after = from_shards(tmp_path / "packed")
    same(before.samples, after.samples)
    files = [(folder / name).read_bytes() for name in before.samples.names]
    assert after.reader.read_many(range(len(after))) == files
    assert (report.pictures, report.bad, report.resized, report.classes) == (42, 0, 0, 2)
    assert report.splits == {"train": 35, "val": 5, "test": 2}
    assert report.shards == len(list((tmp_path / "packed").glob("*.tar"))) >= 4
    assert max(path.stat().st_size for path in (tmp_path / "packed").glob("*.tar")) <= 20_000
    assert {path.name[:-11] for path in (tmp_path / "packed").glob("*.tar")} == {"train", "val", "test"}
    again = scanned(tmp_path / "packed")
    same(after.samples, again.samples)
    assert np.array_equal(after.positions, again.positions)
    assert again.reader.read_many(range(len(after))) == files


def test_shards_of_shards_are_the_same_set(photos: Photos, tmp_path: Path) -> None:
    first = pack(photos(TREE), tmp_path / "one", shard_mb=0.02)
    pack(tmp_path / "one", tmp_path / "two")
    one, two = from_shards(tmp_path / "one"), from_shards(tmp_path / "two")
    same(one.samples, two.samples)
    assert one.reader.read_many(range(len(one))) == two.reader.read_many(range(len(two)))
    assert first.shards > len(list((tmp_path / "two").glob("*.tar")))


@st.composite
def odd_names(draw: st.DrawFn) -> list[str]:
    base = st.one_of(
        st.binary(min_size=1, max_size=40).filter(lambda b: not set(b) & {0, 0x2F}).map(os.fsdecode),
        st.text(st.sampled_from("ab.% é2EF_-\n"), min_size=1, max_size=12),
    )
    suffix = st.sampled_from([".jpg", ".JPG", ".jpeg", ".png", ""])
    folder = st.sampled_from(["", "rose/", "a.b/c%2E/", "../", "/abs/", "./"])
    parts = st.tuples(folder, base, suffix).map("".join)
    return sorted(draw(st.lists(parts, min_size=1, max_size=12, unique=True)), key=os.fsencode)


@settings(max_examples=60, deadline=None)
@given(names=odd_names())
def test_odd_names_survive_and_keys_follow_the_rule_of_webdataset(names: list[str]) -> None:
    source = source_of(names, [jpeg(i) for i in range(len(names))])
    with tempfile.TemporaryDirectory() as folder:
        dest = Path(folder) / "packed"
        pack(source, dest, workers=1)
        for back in (from_shards(dest), scanned(dest)):
            same(source.samples, back.samples)
            assert back.reader.read_many(range(len(names))) == source.reader.pictures
        (shard,) = dest.glob("*.tar")
        samples = groups_of(shard)
        assert len(samples) == len(names)
        assert len({sample["__key__"] for sample in samples}) == len(names)
        assert all(len(sample) == 3 and "json" in sample for sample in samples)
        with tarfile.open(shard) as tar:
            assert not [m.name for m in tar if m.name.startswith("/") or ".." in m.name.split("/")]


def test_plain_names_are_kept_as_they_are() -> None:
    assert list(keys_of(["train/rose/1.jpg", "x y.png", "no suffix"])) == ["train/rose/1", "x y", "no suffix"]
    assert list(keys_of(["a.b.jpg", "a%2Eb.jpg", "a.jpg", "a.png"])) == ["a%2Eb", "a%252Eb", "a", "a%2F2"]


def test_several_labels_groups_weights_and_empty_classes_come_back(tmp_path: Path) -> None:
    columns = {
        "labels": np.zeros(0, np.int32),
        "splits": np.array([0, 1, -1], np.int8),
        "classes": ("z", "never", "a"),
        "groups": np.array([7, 7, -1]),
        "weights": np.array([0.1, 1.0, 3.3], np.float32),
        "label_list": np.array([0, 2, 2], np.int32),
        "label_ends": np.array([2, 2, 3]),
    }
    source = source_of(["a.jpg", "b.jpg", "train/c.jpg"], [jpeg(i) for i in range(3)], **columns)
    pack(source, tmp_path / "packed")
    same(source.samples, from_shards(tmp_path / "packed").samples)
    same(source.samples, scanned(tmp_path / "packed").samples)


def test_pictures_without_labels_do_not_get_any_from_their_folders(tmp_path: Path) -> None:
    nothing = {"labels": np.full(2, -1, np.int32), "classes": ()}
    source = source_of(["train/rose/a.jpg", "train/rose/b.jpg"], [jpeg(0), jpeg(1)], **nothing)
    pack(source, tmp_path / "packed")
    same(source.samples, scanned(tmp_path / "packed").samples)


def test_arrays_and_pil_pictures_become_lossless_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    colour, grey = rng.integers(0, 256, (9, 7, 3), dtype=np.uint8), rng.integers(0, 256, (8, 8), dtype=np.uint8)
    source = source_of(["0", "1", "2"], [colour, grey, Image.fromarray(colour)])
    pack(source, tmp_path / "packed")
    back = from_shards(tmp_path / "packed").reader.read_many(range(3))
    for content, truth in zip(back, (colour, grey, colour), strict=True):
        with Image.open(io.BytesIO(content)) as picture:
            assert picture.format == "PNG"
            assert np.array_equal(np.asarray(picture), truth)


# resizing


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def file_of(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def test_resizing_takes_the_shorter_side_and_never_enlarges(tmp_path: Path) -> None:
    sizes = {"wide.jpg": (300, 101), "tall.jpg": (90, 200), "small.jpg": (31, 500), "exact.jpg": (64, 32)}
    files = [file_of(photo(*size), "JPEG", quality=98) for _, size in sorted(sizes.items())]
    report = pack(source_of(sorted(sizes), files), tmp_path / "packed", resize=32)
    back = from_shards(tmp_path / "packed")
    assert list(back.samples.names) == sorted(sizes)
    for name, before, after in zip(sorted(sizes), files, back.reader.read_many(range(4)), strict=True):
        with Image.open(io.BytesIO(before)) as old, Image.open(io.BytesIO(after)) as new:
            if min(old.size) <= 32:
                assert before == after, name
                continue
            expected = tv.resize(old.convert("RGB"), 32, interpolation=tv.InterpolationMode.BICUBIC)
            assert new.size == expected.size
            assert np.abs(np.asarray(new, float) - np.asarray(expected, float)).mean() < 2.5, name
    assert report.resized == 2
    assert "nothing cropped" in report.fit


def test_resized_pngs_and_arrays_are_pillows_pixels_exactly(tmp_path: Path) -> None:
    picture = photo(60, 40)
    names, pictures = ["a.png", "b", "c.bmp"], [file_of(picture, "PNG"), np.asarray(picture), file_of(picture, "BMP")]
    pack(source_of(names, pictures), tmp_path / "packed", resize=20)
    back = from_shards(tmp_path / "packed")
    assert list(back.samples.names) == names  # though a bitmap is now a PNG
    truth = np.asarray(picture.resize((30, 20), Image.Resampling.BICUBIC))
    for content in back.reader.read_many(range(3)):
        with Image.open(io.BytesIO(content)) as found:
            assert found.format == "PNG"
            assert np.array_equal(np.asarray(found), truth)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_resized_pictures_stand_upright(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = file_of(photo(120, 80, 3), "JPEG", quality=98, exif=exif)
    pack(source_of(["a.jpg"], [content]), tmp_path / "packed", resize=40, workers=1)
    (found,) = from_shards(tmp_path / "packed").reader.read_many([0])
    with Image.open(io.BytesIO(content)) as picture, Image.open(io.BytesIO(found)) as after:
        upright = ImageOps.exif_transpose(picture)
        expected = tv.resize(upright, 40, interpolation=tv.InterpolationMode.BICUBIC)
        assert after.size == expected.size
        assert 0x0112 not in after.getexif()
        assert np.abs(np.asarray(after, float) - np.asarray(expected, float)).mean() < 2.5


# the same bytes


@pytest.mark.parametrize("resize", [None, 12])
def test_the_same_input_and_seed_give_the_same_bytes_with_any_number_of_workers(
    photos: Photos, tmp_path: Path, resize: int | None
) -> None:
    folder = photos(TREE | {"train/many": 60})
    made = []
    for number, workers in enumerate((0, 1, 2, 3)):
        pack(folder, tmp_path / str(number), resize=resize, shard_mb=0.03, workers=workers)
        made.append(tar_bytes(tmp_path / str(number)))
    assert made[0] == made[1] == made[2] == made[3]
    pack(folder, tmp_path / "other", resize=resize, shard_mb=0.03, seed=1)
    assert tar_bytes(tmp_path / "other") != made[0]
    first = next(iter(made[0].values()))
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        assert {(m.mtime, m.uid, m.gid, m.mode) for m in tar} == {(0, 0, 0, 0o644)}


def test_any_stretch_of_a_shard_mixes_the_classes(photos: Photos, tmp_path: Path) -> None:
    pack(photos({"a": 60, "b": 60}), tmp_path / "packed")
    source = from_shards(tmp_path / "packed")
    stored = source.samples.labels[np.argsort(source.positions)]
    for start in range(0, 120, 20):
        assert 2 <= stored[start : start + 20].sum() <= 18


# what goes wrong


def test_unreadable_pictures_are_left_out_named_and_counted(photos: Photos, tmp_path: Path) -> None:
    folder = photos({"rose": 20, "tulip": 20})
    (folder / "rose" / "000.jpg").write_bytes(jpeg(0)[:300])
    (folder / "tulip" / "000.jpg").write_text("not a picture")
    (folder / os.fsdecode(b"tulip/\xff.jpg")).write_bytes(b"")
    report = pack(folder, tmp_path / "packed")
    assert (report.pictures, report.bad) == (38, 3)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "packed" / "bad_images.csv").read_text("utf-8"))))
    assert [row["name"] for row in rows] == ["rose/000.jpg", "tulip/000.jpg", r"tulip/\udcff.jpg"]
    assert "truncated" in rows[0]["reason"]
    assert "text" in rows[1]["reason"]
    back = from_shards(tmp_path / "packed")
    assert len(back) == 38
    assert back.classes == ("rose", "tulip")
    with pytest.raises(DataError, match=r"\.jpg: .*strict"):
        pack(folder, tmp_path / "strict", strict=True)
    assert not (tmp_path / "strict").exists()


def test_a_set_without_one_readable_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of 2 pictures"):
        pack(source_of(["a.jpg", "b.jpg"], [b"", b"x"]), tmp_path / "packed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"resize": 0}, "resize"),
        ({"quality": 101}, "quality"),
        ({"shard_mb": 0}, "shard"),
        ({"workers": -1}, "workers"),
    ],
)
def test_settings_without_meaning_are_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(VitrailError, match=says):
        pack(source_of(["a.jpg"], [jpeg(0)]), tmp_path / "packed", **options)


def test_what_is_already_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    with pytest.raises(DataError, match="is already there"):
        pack(source_of(["a.jpg"], [jpeg(0)]), tmp_path / "packed")
    with pytest.raises(DataError, match="local folder"):
        pack(source_of(["a.jpg"], [jpeg(0)]), "s3://bucket/packed")


def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(photos: Photos, tmp_path: Path) -> None:
    folder = photos({"a": 100})
    script = (
        "import resource, signal, sys; from vitrail.cli import main;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"  # the write fails instead, as on a full disk
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
        "sys.exit(main(['pack', sys.argv[1], sys.argv[2], '--workers', '1']))"
    )
    arguments = [sys.executable, "-c", script, str(folder), str(tmp_path / "out" / "packed")]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"vitrail: .*packed cannot be written \(.*\); .*", done.stderr.splitlines()[-1])
    assert list((tmp_path / "out").iterdir()) == []


def test_stopped_half_way_nothing_is_left(photos: Photos, tmp_path: Path) -> None:
    folder = photos({"a": 0})
    content = file_of(photo(1500, 1200), "JPEG")
    for number in range(200):
        (folder / "a" / f"{number:03}.jpg").write_bytes(content)
    arguments = [sys.executable, "-m", "vitrail", "pack", str(folder), str(tmp_path / "out" / "packed")]
    running = subprocess.Popen(
        [*arguments, "--resize", "1000", "--workers", "2"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("out/.packed*/packed/*.tar")) and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "Traceback" not in said
    assert list((tmp_path / "out").iterdir()) == []


def test_what_was_done_is_written_beside_the_shards(photos: Photos, tmp_path: Path) -> None:
    report = vitrail.pack(photos({"a": 3, "b": 3}), tmp_path / "packed", seed=5)
    said = json.loads((tmp_path / "packed" / "pack.json").read_text())
    assert said["seed"] == 5
    assert said == {name: value for name, value in report.to_json().items() if name != "dest"}
    assert json.loads((tmp_path / "packed" / "classes.json").read_text()) == ["a", "b"]
    (shard,) = (tmp_path / "packed").glob("*.tar")
    facts = json.loads(groups_of(shard)[0]["json"])
    assert facts["label"] in ("a", "b")
    assert facts["name"].startswith(facts["label"])


def test_real_photographs_come_back_to_the_byte_and_resized_ones_nearly(imagenet_sample: Path, tmp_path: Path) -> None:
    before = from_folder(imagenet_sample)
    rows = np.random.default_rng(0).permutation(len(before))[:60]
    chosen = source_of(
        sorted(before.samples.names.take(rows), key=os.fsencode),
        [imagenet_sample / name for name in sorted(before.samples.names.take(rows), key=os.fsencode)],
    )
    pack(chosen, tmp_path / "copied")
    pack(chosen, tmp_path / "resized", resize=128)
    copied, resized = from_shards(tmp_path / "copied"), from_shards(tmp_path / "resized")
    for row, path in enumerate(chosen.reader.pictures):
        assert copied.reader.read_many([row]) == [path.read_bytes()]
        (small,) = resized.reader.read_many([row])
        with Image.open(path) as picture, Image.open(io.BytesIO(small)) as after:
            expected = tv.resize(picture.convert("RGB"), 128, interpolation=tv.InterpolationMode.BICUBIC)
            assert after.size == expected.size
            apart = np.abs(np.asarray(after.convert("RGB"), float) - np.asarray(expected, float))
            assert apart.mean() < 6, path  # JPEG at 95, and halves where the decoder halves
