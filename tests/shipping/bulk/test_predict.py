"""One row for each input, whatever becomes of it; and a second call goes on, or is refused in one line."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests.shipping.bulk.conftest import NAMES, TINY, hashes, left_behind, tiny
from tests.shipping.bulk.test_rows import read
from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.scoring.features import Extractor
from vitrail.shipping.bulk import decoding
from vitrail.shipping.engines import TorchEngine

QUICK = {"workers": 0, "batch_size": 8, "rows_per_part": 20}


def rows_in(folder: Path) -> list[dict]:
    return [row for path in sorted(folder.iterdir()) if path.name[0] != "." for row in read(path)]


def test_rows_are_what_the_classifier_says_of_each_picture(classifier, pictures, tmp_path: Path) -> None:
    folder = pictures(50)
    report = vitrail.predict_many(classifier, [folder], tmp_path / "out" / "part-*.parquet", top=3, **QUICK)
    rows = rows_in(tmp_path / "out")
    paths = sorted(folder.rglob("*.ppm"))
    assert [row["path"] for row in rows] == [str(path) for path in paths]
    assert [row["index"] for row in rows] == list(range(50))
    for row, said in zip(rows, classifier.predict(paths, top=3), strict=True):
        assert (row["label"], row["error"]) == (said.label, None)
        assert [one["score"] for one in row["top"]] == pytest.approx([score for _, score in said.top], abs=2e-6)
    assert (report.rows, report.unreadable, report.files, report.continued) == (50, 0, 3, 0)
    assert left_behind(tmp_path / "out") == []


def test_the_hash_that_is_told_is_what_sha256sum_says(classifier, pictures, tmp_path: Path) -> None:
    folder, out = pictures(30), tmp_path / "out"
    many = vitrail.predict_many(classifier, [folder], out / "part-*.csv", top=2, **QUICK)
    summed = subprocess.run("sha256sum part-* | sha256sum", shell=True, cwd=out, capture_output=True, text=True)
    assert summed.stdout.split()[0] == many.sha256
    one = vitrail.predict_many(classifier, [folder], tmp_path / "all.csv", top=2, **QUICK)
    assert hashlib.sha256((tmp_path / "all.csv").read_bytes()).hexdigest() == one.sha256
    assert read(tmp_path / "all.csv") == rows_in(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.csv", "out", "photos"]  # its parts are gone


def test_the_number_of_workers_changes_no_byte(classifier, pictures, tmp_path: Path) -> None:
    folder = pictures(60)
    for workers in (0, 2):
        out = tmp_path / str(workers) / "part-*.jsonl"
        vitrail.predict_many(classifier, [folder], out, batch_size=8, rows_per_part=20, workers=workers)
    assert hashes(tmp_path / "0") == hashes(tmp_path / "2")


def test_a_bad_picture_costs_its_own_row(classifier, pictures, tmp_path: Path) -> None:
    folder = pictures(25)
    good = rows_of(classifier, folder, tmp_path / "good")
    (folder / "000" / "03.ppm").write_bytes(b"P6 8 8 255\nshort")
    (folder / "000" / "10.ppm").write_text("not a picture")
    rows = rows_of(classifier, folder, tmp_path / "bad")
    assert [k for k, row in enumerate(rows) if row["error"]] == [3, 10]
    assert "03.ppm: is truncated" in rows[3]["error"]
    assert "10.ppm: holds text, not a picture" in rows[10]["error"]
    assert [rows[k]["label"] for k in (3, 10)] == [None, None]
    assert [row for k, row in enumerate(rows) if k not in (3, 10)] == [
        row for k, row in enumerate(good) if k not in (3, 10)
    ]


def rows_of(classifier, folder: Path, out: Path, **changes) -> list[dict]:
    vitrail.predict_many(classifier, [folder], out / "part-*.jsonl", **(QUICK | changes))
    return rows_in(out)


def test_a_picture_that_crashes_the_decoder_costs_its_own_row(
    classifier, pictures, tmp_path: Path, monkeypatch
) -> None:
    folder, decode = pictures(40), decoding.decode
    expected = rows_of(classifier, folder, tmp_path / "good")

    def deadly(items, preprocessing):
        if any(item.path.endswith("13.ppm") for item in items):
            os.kill(os.getpid(), signal.SIGKILL)
        return decode(items, preprocessing)

    monkeypatch.setattr(decoding, "decode", deadly)
    rows = rows_of(classifier, folder, tmp_path / "out", workers=2)
    assert rows[13]["error"].endswith("13.ppm: the decoder crashes on it")
    assert rows[:13] + rows[14:] == expected[:13] + expected[14:]


def test_features_are_those_that_a_probe_reads(classifier, pictures, tmp_path: Path) -> None:
    folder = pictures(10)
    rows = rows_of(classifier, folder, tmp_path / "out", features=True)
    inputs = np.stack([classifier.preprocessing(path) for path in sorted(folder.rglob("*.ppm"))])
    with torch.inference_mode():
        expected = Extractor(classifier)(torch.from_numpy(inputs)).numpy()
    assert np.allclose([row["features"] for row in rows], expected, atol=1e-5)
    assert rows[0]["label"] in NAMES


def test_an_encoder_without_a_head_writes_features_alone(pictures, tmp_path: Path) -> None:
    encoder = vitrail.Classifier(vitrail.create("vit_ti16", num_classes=0, **TINY))
    with pytest.raises(VitrailError, match="no head, so it cannot predict: train one, or ask for its --features"):
        rows_of(encoder, pictures(3), tmp_path / "none")
    row = rows_of(encoder, pictures(3), tmp_path / "out", features=True)[0]
    assert (sorted(row), len(row["features"])) == (["error", "features", "index", "path"], 16)


def test_all_shards_together_write_what_one_process_would(classifier, pictures, tmp_path: Path) -> None:
    folder = pictures(90)
    rows_of(classifier, folder, tmp_path / "one")
    for number in (3, 1, 2):
        rows_of(classifier, folder, tmp_path / "three", shard=f"{number}/3")
    assert hashes(tmp_path / "one") == hashes(tmp_path / "three")


def test_few_pictures_are_shared_out_too(classifier, pictures, tmp_path: Path) -> None:
    folder = pictures(10)
    for number in (1, 2, 3):
        report = vitrail.predict_many(
            classifier, [folder], tmp_path / "o" / "p*.csv", shard=f"{number}/3", workers=0, top=2
        )
        assert report.rows in (2, 4)
    assert [row["index"] for row in rows_in(tmp_path / "o")] == list(range(10))
    report = vitrail.predict_many(classifier, [folder], tmp_path / "x" / "p*.csv", shard="20/20", workers=0)
    assert (report.rows, report.files) == (0, 0)  # there is no picture for the last of twenty


def test_a_job_that_is_done_is_left_as_it_is(classifier, pictures, tmp_path: Path) -> None:
    folder = pictures(30)
    first = vitrail.predict_many(classifier, [folder], tmp_path / "o" / "part-*.csv", **QUICK)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "o").glob("part-*")}
    again = vitrail.predict_many(classifier, [folder], tmp_path / "o" / "part-*.csv", **QUICK)
    assert (again.continued, again.sha256) == (30, first.sha256)
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "o").glob("part-*")}


def test_a_part_that_is_gone_or_short_is_written_again(classifier, pictures, tmp_path: Path) -> None:
    folder, out = pictures(60), tmp_path / "o"
    rows_of(classifier, folder, out)
    before = hashes(out)
    (out / "part-00000.jsonl").unlink()
    os.truncate(out / "part-00002.jsonl", 100)
    report = vitrail.predict_many(classifier, [folder], out / "part-*.jsonl", **QUICK)
    assert (report.continued, hashes(out)) == (20, before)


def test_a_note_that_a_crash_cut_off_is_no_note(classifier, pictures, tmp_path: Path) -> None:
    folder, out = pictures(60), tmp_path / "o"
    rows_of(classifier, folder, out)
    before, notes = hashes(out), out / ".part.jsonl.ledger" / "done.jsonl"
    os.truncate(notes, notes.stat().st_size - 9)
    report = vitrail.predict_many(classifier, [folder], out / "part-*.jsonl", **QUICK)
    assert (report.continued, hashes(out)) == (40, before)
    assert len([json.loads(line) for line in notes.read_text().splitlines()]) == 3


def noting(function, file: Path):
    """The function, which writes down from when to when it works, and takes a little longer."""

    def noted(*arguments):
        began = time.monotonic()
        result = function(*arguments)
        time.sleep(0.02)
        with file.open("a") as notes:
            notes.write(f"{began} {time.monotonic()}\n")
        return result

    return noted


def test_pictures_are_decoded_while_others_are_computed(classifier, pictures, tmp_path: Path, monkeypatch) -> None:
    folder = pictures(160)
    monkeypatch.setattr(decoding, "decode", noting(decoding.decode, tmp_path / "decoded"))
    monkeypatch.setattr(TorchEngine, "run", noting(TorchEngine.run, tmp_path / "computed"))
    rows_of(classifier, folder, tmp_path / "o", workers=2)
    decoded, computed = (
        [tuple(map(float, line.split())) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("decoded", "computed")
    )
    assert len(decoded) == len(computed) == 24  # in parts of 20, batches of 8, 8 and 4
    beside = [one for one in computed if any(start < one[1] and one[0] < stop for start, stop in decoded)]
    assert len(beside) >= 6


def test_a_list_with_duplicates_and_names_of_all_kinds(classifier, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = [b"plain.ppm", b"new\nline.ppm", b"\xff.ppm", b"a[1]*.ppm"]
    for name in names:
        Path(os.fsdecode(name)).write_bytes(tiny(rng))
    listed = b"\0".join([*names, b"plain.ppm", b"absent.ppm"])
    vitrail.predict_many(classifier, ["-"], "o.jsonl", listed=io.BytesIO(listed), **QUICK)
    rows = read(tmp_path / "o.jsonl")
    assert [row["path"] for row in rows] == [
        "plain.ppm", "new\nline.ppm", r"\xff.ppm", "a[1]*.ppm", "plain.ppm", "absent.ppm"
    ]  # fmt: skip
    assert [row["error"] for row in rows] == [None] * 5 + ["absent.ppm: there is no such file; check the path"]
    assert rows[0]["score"] == rows[4]["score"]


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_writes_labels_of_a_table_beside_its_own(capsys, model: Path, pictures, tmp_path: Path) -> None:
    folder = pictures(4)
    (folder / "t.csv").write_text("name,kind\n" + "".join(f"000/{k:02}.ppm,{NAMES[k]}\n" for k in range(4)))
    arguments = ["predict", model, folder / "t.csv", "--path-column", "name", "--label-column", "kind"]
    code, out, err = run(capsys, *arguments, "--out", tmp_path / "o.jsonl", "--top", 2, "--workers", 0)
    assert (code, err.split(":")[0]) == (0, "engine torch")
    assert out.startswith(f"{tmp_path / 'o.jsonl'}: 4 rows in 1 file, ")
    assert [row["truth"] for row in read(tmp_path / "o.jsonl")] == NAMES
    code, out, _ = run(capsys, *arguments, "--out", tmp_path / "o.csv", "--json", "--workers", 0)
    told = json.loads(out)
    assert (told["rows"], told["unreadable"], told["engine"]) == (4, 0, "torch")


def test_the_command_reads_a_list_and_patterns(capsys, model: Path, pictures, monkeypatch) -> None:
    folder = pictures(3)
    listed = b"".join(os.fsencode(path) + b"\0" for path in sorted(folder.rglob("*.ppm")))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(listed)))
    code, out, err = run(capsys, "predict", model, "-", f"{folder}/*/00.ppm")
    assert (code, err) == (0, "")
    assert [line.split(":")[0][-6:] for line in out.splitlines()] == ["00.ppm", "01.ppm", "02.ppm", "00.ppm"]


def test_a_name_that_is_no_text_can_be_printed(capsys, model: Path, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.ppm")).write_bytes(tiny(np.random.default_rng(0)))
    code, out, err = run(capsys, "predict", model, tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith(rf"{tmp_path}/\xff.ppm: ")
    assert json.loads(run(capsys, "predict", model, tmp_path, "--json")[1])["predictions"][0]["label"] in NAMES
