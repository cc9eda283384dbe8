"""`vitrail check` as a user meets it: what it prints, writes, refuses, and how it ends."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.training.running import make_pictures
from vitrail.cli import main
from vitrail.errors import VitrailError


def smooth(seed: int) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(values).resize((64, 48), Image.Resampling.BICUBIC)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes, two splits, one leak, one contradiction, one text."""
    folder = tmp_path / "photos"
    for split in ("train", "val"):
        for place, kind in enumerate(("rose", "tulip")):
            (folder / split / kind).mkdir(parents=True)
            for k in range(6 if split == "train" else 2):
                smooth(100 * place + 10 * (split == "val") + k).save(folder / split / kind / f"{k}.jpg", quality=90)
    smooth(3).save(folder / "val" / "rose" / "leak.jpg", quality=50)
    smooth(101).save(folder / "train" / "rose" / "two.png")
    (folder / "train" / "rose" / "text.jpg").write_text("not found")
    return folder


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    for kind in ("rose", "tulip"):
        (tmp_path / "clean" / kind).mkdir(parents=True)
        for k in range(3):
            smooth(50 * (kind == "rose") + k).save(tmp_path / "clean" / kind / f"{k}.png")
    return tmp_path / "clean"


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_it_prints_a_summary_and_writes_the_page_and_the_tables(photos: Path, tmp_path: Path, capsys) -> None:
    code, out, _ = run(capsys, "check", photos, "--out", tmp_path / "found")
    assert code == 0
    assert "19 pictures, 2 classes (train 14, val 5)" in out
    lines = {line[2:20].strip(): line[20:] for line in out.splitlines() if line.startswith("  ")}
    assert lines["unreadable"] == "1"
    assert lines["near duplicates"] == "4 pictures in 2 groups"
    assert lines["in two splits"] == "1 of val are in train too"
    assert lines["two labels"] == "1 group"
    assert sorted(p.name for p in (tmp_path / "found").iterdir()) == ["bad_images.csv", "check.html", "duplicates.csv"]
    bad = rows(tmp_path / "found" / "bad_images.csv")
    assert [(row["name"], row["kind"]) for row in bad] == [("train/rose/text.jpg", "unreadable")]
    pairs = rows(tmp_path / "found" / "duplicates.csv")
    assert [(row["group"], row["name"], row["label"], row["in_two_splits"], row["two_labels"]) for row in pairs] == [
        ("1", "train/rose/3.jpg", "rose", "1", "0"),
        ("1", "val/rose/leak.jpg", "rose", "1", "0"),
        ("2", "train/rose/two.png", "rose", "0", "1"),
        ("2", "train/tulip/1.jpg", "tulip", "0", "1"),
    ]


def test_classes_of_one_size_are_told_as_that(tmp_path: Path, capsys) -> None:
    make_pictures(tmp_path / "pictures", classes=3)
    _, out, _ = run(capsys, "check", tmp_path / "pictures", "--out", tmp_path / "found")
    lines = {line[2:20].strip(): line[20:] for line in out.splitlines() if line.startswith("  ")}
    assert lines["classes"].endswith(" pictures each")
    assert ", the middle one " in lines["shorter side"]


def test_what_is_not_there_is_said_even_where_the_folder_of_the_page_is(tmp_path: Path, capsys) -> None:
    (tmp_path / "check").mkdir()
    code, _, err = run(capsys, "check", tmp_path / "nothere", "--out", tmp_path / "check")
    assert code == 1
    assert "nothere" in err


def test_help_has_an_example(capsys) -> None:
    code, out, _ = run(capsys, "check", "--help")
    assert code == 0
    assert "Example: vitrail check photos/" in out


def test_json_is_one_object_and_nothing_else(photos: Path, tmp_path: Path, capsys) -> None:
    code, out, _ = run(capsys, "check", photos, "--out", tmp_path / "found", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["pictures"] == 19
    assert found["leaks"] == {"val in train": 1}
    assert found["unreadable"][0]["name"] == "train/rose/text.jpg"
    assert found["classes"]["counts"] == {"train": [8, 6], "val": [3, 2]}
    assert found["formats"] == {"JPEG": 17, "PNG": 1}
    assert found["percentiles"]["shorter side"] == [48] * 9


def test_strict_makes_findings_a_failure(photos: Path, clean: Path, tmp_path: Path, capsys) -> None:
    assert run(capsys, "check", photos, "--out", tmp_path / "a", "--strict")[0] == 1
    assert run(capsys, "check", clean, "--out", tmp_path / "b", "--strict")[0] == 0


def test_an_earlier_check_is_replaced_only_when_told(clean: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "found"
    assert run(capsys, "check", clean, "--out", out)[0] == 0
    code, _, err = run(capsys, "check", clean, "--out", out)
    assert code == 1
    assert "already there" in err
    assert run(capsys, "check", clean, "--out", out, "--overwrite")[0] == 0


def test_a_folder_with_anything_else_in_it_is_never_replaced(clean: Path, capsys) -> None:
    code, _, err = run(capsys, "check", clean, "--out", clean, "--overwrite")
    assert code == 1
    assert "more than an earlier check" in err
    assert len(list(clean.rglob("*.png"))) == 6


def test_a_wrong_address_is_one_line(capsys, tmp_path: Path) -> None:
    code, _, err = run(capsys, "check", tmp_path / "nowhere", "--out", tmp_path / "found")
    assert code == 1
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "found").exists()


def test_workers_change_nothing(photos: Path) -> None:
    reports = [vitrail.check(photos, workers=workers) for workers in (0, 1, 3)]
    assert all((report.records == reports[0].records).all() for report in reports)
    assert all(report.to_json() == reports[0].to_json() for report in reports)


def test_every_file_is_looked_at_once_with_many_chunks(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for k in range(300):
        smooth(k).save(tmp_path / "a" / f"{k:03d}.png")
    seen: list[tuple[str, int, int]] = []
    report = vitrail.check(tmp_path, workers=2, progress=lambda *step: seen.append(step))
    assert report.readable.all()
    assert not report.duplicates
    assert seen[-1] == ("reading", 300, 300)


def test_a_name_that_is_not_utf8_is_reported_and_keeps_its_bytes(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "photos" / "rose"
    folder.mkdir(parents=True)
    smooth(0).save(folder / "good.png")
    with open(os.fsencode(folder) + b"/caf\xe9.jpg", "wb") as file:
        file.write(b"text")
    code, out, _ = run(capsys, "check", tmp_path / "photos", "--out", tmp_path / "found", "--json")
    assert code == 0
    assert json.loads(out)["unreadable"][0]["name"] == "rose/caf\\xe9.jpg"
    assert b"rose/caf\xe9.jpg," in (tmp_path / "found" / "bad_images.csv").read_bytes()


def test_shards_are_checked_and_indexed(clean: Path, tmp_path: Path, capsys) -> None:
    vitrail.pack(clean, tmp_path / "shards")
    for index in (tmp_path / "shards").glob("*index*"):
        index.unlink()
    code, out, _ = run(capsys, "check", tmp_path / "shards", "--index", "--out", tmp_path / "found", "--json")
    assert code == 0
    assert json.loads(out)["formats"] == {"PNG": 6}
    assert list((tmp_path / "shards").glob("*index*"))


def test_an_index_is_made_of_shards_alone(clean: Path, capsys, tmp_path: Path) -> None:
    code, _, err = run(capsys, "check", clean, "--index", "--out", tmp_path / "found")
    assert code == 1
    assert ".tar" in err


def test_a_named_set_of_arrays_is_checked(tmp_path: Path) -> None:
    report = vitrail.check("digits", workers=0, out=tmp_path / "found")
    assert report.formats == {"pixels": 1797}
    assert report.traits["grey"] == 1797
    assert not report.unreadable
    assert (tmp_path / "found" / "check.html").stat().st_size < 2_000_000


def test_an_empty_source_is_refused(clean: Path) -> None:
    source = vitrail.data.from_folder(clean)
    empty = vitrail.data.Source("nothing", type(source.samples)(*_no_rows(source)), source.reader)
    with pytest.raises(VitrailError, match="no pictures"):
        vitrail.check(empty)


def _no_rows(source):
    none = np.zeros(0, np.int64)
    samples = source.samples
    return samples.names.take(none), samples.classes, samples.labels[none], samples.splits[none]


@pytest.mark.skipif(sys.platform != "linux", reason="needs process groups and signals as Linux has them")
def test_an_interrupt_ends_it_at_once_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    smooth(0).resize((3000, 2400)).save(tmp_path / "a" / "0.png")
    for k in range(1, 400):
        os.link(tmp_path / "a" / "0.png", tmp_path / "a" / f"{k}.png")
    command = [sys.executable, "-m", "vitrail", "check", str(tmp_path), "--out", str(tmp_path / "found")]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and not children.read_text().split():
        time.sleep(0.05)  # until its workers are at work
    time.sleep(0.3)
    start = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - start < 3
    assert (process.returncode, out, err) == (130, "", "vitrail: stopped\n")
    assert not (tmp_path / "found").exists()
