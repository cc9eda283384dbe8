"""What a job is refused for, in one line, and that nothing is harmed by it."""

import io
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import vitrail
from tests.shipping.bulk.conftest import NAMES, TINY, hashes, tiny
from tests.shipping.bulk.test_predict import QUICK, rows_of, run
from vitrail.errors import VitrailError
from vitrail.training import locks

REFUSED = [
    ({"top": 2}, "was begun with --top 1, not 2"),
    ({"features": True}, "was begun with --features False, not True"),
    ({"batch_size": 4}, "was begun with --batch-size 8, not 4"),
    ({"rows_per_part": 10}, "was begun with --rows-per-part 20, not 10"),
    ({"shard": "1/2"}, "was begun with --shard 1/1, not 1/2"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_other_flags_are_refused(classifier, pictures, tmp_path: Path, change: dict, words: str) -> None:
    folder = pictures(30)
    rows_of(classifier, folder, tmp_path / "o")
    before = hashes(tmp_path / "o")
    with pytest.raises(VitrailError, match=words) as caught:
        rows_of(classifier, folder, tmp_path / "o", **change)
    assert "run it as it began, choose another --out, or begin again (--overwrite)" in str(caught.value)
    assert hashes(tmp_path / "o") == before


def test_another_model_and_other_inputs_are_refused(classifier, pictures, tmp_path: Path) -> None:
    folder, out = pictures(30), tmp_path / "o"
    rows_of(classifier, folder, out)
    before = hashes(out)
    other = vitrail.Classifier(vitrail.create("vit_ti16", zero_head=False, num_classes=4, **TINY), classes=NAMES)
    with pytest.raises(VitrailError, match="was begun with another model, or at another --img-size"):
        rows_of(other, folder, out)
    (folder / "000" / "07.ppm").write_bytes(tiny(np.random.default_rng(9)))
    with pytest.raises(VitrailError, match="from other inputs: 30 then, 30 now, and some of them changed"):
        rows_of(classifier, folder, out)
    (folder / "zzz.ppm").write_bytes(tiny(np.random.default_rng(10)))
    with pytest.raises(VitrailError, match="from other inputs: 30 then, 31 now"):
        rows_of(classifier, folder, out)
    assert hashes(out) == before
    assert len(rows_of(classifier, folder, out, overwrite=True)) == 31


def test_begun_again_with_another_number_of_shares_nothing_of_the_first_is_left(classifier, pictures, tmp_path) -> None:
    folder, out = pictures(90), tmp_path / "o"
    for number in (1, 2):
        rows_of(classifier, folder, out, shard=f"{number}/2", rows_per_part=10)
    with pytest.raises(VitrailError, match="was begun with --shard 1/2, not 1/1 and with --rows-per-part 10, not 20"):
        rows_of(classifier, folder, out)
    assert len(rows_of(classifier, folder, out, overwrite=True)) == 90
    assert len(hashes(out)) == 5
    rows_of(classifier, folder, out, shard="1/2", top=2, overwrite=True)
    with pytest.raises(VitrailError, match="was begun with --top 2, not 1"):
        rows_of(classifier, folder, out, shard="2/2")


def test_what_is_there_already_is_not_written_over(classifier, pictures, tmp_path: Path) -> None:
    folder = pictures(30)
    (tmp_path / "all.csv").write_text("mine")
    with pytest.raises(VitrailError, match=r"all.csv is already there: choose another --out, or say --overwrite"):
        vitrail.predict_many(classifier, [folder], tmp_path / "all.csv", **QUICK)
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "part-00001.csv").write_text("mine")
    with pytest.raises(VitrailError, match=r"part-00001.csv is already there, and is none of this job's"):
        vitrail.predict_many(classifier, [folder], tmp_path / "o" / "part-*.csv", **QUICK)
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["part-00001.csv"]
    vitrail.predict_many(classifier, [folder], tmp_path / "all.csv", overwrite=True, **QUICK)
    assert len(read_plain(tmp_path / "all.csv")) == 31


def read_plain(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_full_disk_is_said_and_what_is_done_is_kept(classifier, pictures, tmp_path: Path) -> None:
    folder, out = pictures(40), tmp_path / "o"
    for number in range(20):
        (folder / "000" / f"{number:02}.ppm").write_bytes(b"")  # short rows, so that the first part is the smaller
    expected = rows_of(classifier, folder, tmp_path / "e", features=True)
    small, large = (path.stat().st_size for path in sorted((tmp_path / "e").glob("part-*")))
    assert small < large - 1
    with room_for(large - 1), pytest.raises(VitrailError, match=r"part-00001.jsonl is not written \(File too large\)"):
        rows_of(classifier, folder, out, features=True)
    assert [path.name for path in out.glob("*part-*")] == ["part-00000.jsonl"]
    assert rows_of(classifier, folder, out, features=True) == expected
    with room_for(1000), pytest.raises(VitrailError, match=r"the list of inputs is not written to .* make room there"):
        rows_of(classifier, folder, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can become longer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_second_process_on_the_same_files_is_refused(classifier, pictures, tmp_path: Path, monkeypatch) -> None:
    folder, out = pictures(5), tmp_path / "o"
    rows_of(classifier, folder, out)
    monkeypatch.setattr(locks, "_PATIENCE", 0.1)
    lock = locks.FolderLock(out / ".part.jsonl.ledger")
    with pytest.raises(VitrailError, match=r"another process is writing to .*: wait for it, stop it, or choose"):
        rows_of(classifier, folder, out)
    lock.release()


def bad_commands(model: Path, folder: Path, tmp: Path) -> list[tuple[list[object], str]]:
    return [
        ([model, folder, "--out", tmp / "x.txt"], r"--out ends in .txt: name files that end in .parquet .jsonl .csv"),
        ([model, folder, "--out", tmp / "a*b*.csv"], "one star, in the name of the file"),
        ([model, folder, "--out", "s3://bucket/p-*.csv"], "rows are written to a folder here"),
        ([model, folder, "--out", tmp / "p*.csv", "--shard", "0/4"], "the first of eight is 1/8"),
        ([model, folder, "--out", tmp / "p*.csv", "--shard", "x"], "--shard x is no share"),
        ([model, folder, "--out", tmp / "p.csv", "--shard", "1/2"], "--shard needs a star in --out"),
        ([model, folder, "--out", tmp / "p.csv", "--engine", "abacus"], "there is no engine abacus"),
        ([model, tmp / "absent", "--out", tmp / "p.csv"], "there is no .*absent: check the path"),
        ([model, folder, "--features"], "--features is for rows that are written to files: say where with --out"),
        ([model, folder, "--ray"], "--ray is for rows"),
    ]


def test_bad_input_gets_one_line_and_leaves_nothing(capsys, model: Path, pictures, tmp_path: Path) -> None:
    folder, work = pictures(3), tmp_path / "work"
    work.mkdir()
    for arguments, words in bad_commands(model, folder, work):
        code, out, err = run(capsys, "predict", *arguments)
        assert (code, out) == (1, "")
        assert len(err.strip().splitlines()) == 1
        with pytest.raises(VitrailError, match=words):
            raise VitrailError(err.removeprefix("vitrail: "))
        assert os.listdir(work) == []


def test_an_empty_list_is_said(classifier, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="there are no pictures: the list is empty"):
        vitrail.predict_many(classifier, ["-"], tmp_path / "o.csv", listed=io.BytesIO(b""))
    assert os.listdir(tmp_path) == []
