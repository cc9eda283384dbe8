"""Killed at any moment and run again, a job has one row for each input, with the bytes of a run that nobody touched."""

import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from pyarrow import parquet

import vitrail
from tests.shipping.bulk.conftest import hashes, left_behind
from tests.shipping.bulk.measuring import family
from tests.training import processes
from vitrail.shipping.bulk import decoding, parts

SETTINGS = {"batch_size": 16, "rows_per_part": 40, "top": 2, "features": True, "engine": "torch"}


def run_job(model: Path, folder: Path, out: Path) -> None:
    """Slowly enough to be killed at every stage of it."""
    torch.set_num_threads(1)
    decoding.decode, parts.flush = slower(decoding.decode, 0.01), slower(parts.flush, 0.01)
    vitrail.predict_many(vitrail.load(model), [folder], out / "part-*.parquet", workers=2, **SETTINGS)


def slower(function, seconds: float):
    def slow(*arguments):
        time.sleep(seconds)
        return function(*arguments)

    return slow


def wait_for(process: BaseProcess, out: Path, count: int) -> None:
    """Until so many parts are there."""
    while process.is_alive() and len(list(out.glob("part-*"))) < count:
        time.sleep(0.002)


def end(process: BaseProcess, with_signal: int) -> None:
    """Ends it, and sees that its workers end too."""
    workers = family(process.pid)[1:]
    process.kill() if with_signal == signal.SIGKILL else process.terminate()
    process.join(20)
    assert process.exitcode == -with_signal
    until = time.monotonic() + 20
    while any(map(is_alive, workers)):
        assert time.monotonic() < until
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def stages(out: Path) -> set[str]:
    """What the process was doing when it was killed, by what it left."""
    ledger = {path.name for path in out.glob(".*.ledger/*")}
    noted = (out / ".part.parquet.ledger" / "done.jsonl").read_text().count("\n") if "done.jsonl" in ledger else 0
    found = {"job not begun"} if "job.json" not in ledger else set()
    found |= {"writing a part"} if any(name.startswith("part-") for name in ledger) else set()
    return found | ({"part not noted"} if len(list(out.glob("part-*"))) > noted else set()) or {"computing"}


def kill_and_continue(model: Path, classifier, folder: Path, tmp_path: Path, kills: int) -> None:
    expected, out = tmp_path / "untouched", tmp_path / "killed"
    vitrail.predict_many(classifier, [folder], expected / "part-*.parquet", workers=0, **SETTINGS)
    of, chance, seen = len(hashes(expected)), random.Random(kills), []
    for number in range(kills):
        process = processes.start(run_job, model, folder, out)
        wait_for(process, out, max(number, number * of // (kills + 1)))
        time.sleep(chance.uniform(0, 0.06))
        end(process, signal.SIGKILL)
        for part in out.glob("part-*"):
            assert parquet.read_table(part).num_rows in (40, 20)  # whole, or absent
        seen.append((len(list(out.glob("part-*"))), *stages(out)))
    print(f"parts after each kill, and what it was doing: {seen}")
    assert len({parts for parts, *_ in seen}) > kills // 2
    report = vitrail.predict_many(classifier, [folder], out / "part-*.parquet", workers=0, **SETTINGS)
    assert 0 < report.continued < report.rows
    assert hashes(out) == hashes(expected)
    assert left_behind(out) == []
    rows = parquet.read_table(out)
    assert sorted(rows["index"].to_pylist()) == list(range(report.rows))
    assert sorted(rows["path"].to_pylist()) == sorted(str(path) for path in folder.rglob("*.ppm"))


def test_killed_three_times_and_continued_the_rows_are_the_same(model, classifier, pictures, tmp_path: Path) -> None:
    folder = pictures(420)
    (folder / "000" / "07.ppm").write_bytes(b"broken")
    kill_and_continue(model, classifier, folder, tmp_path, kills=3)


@pytest.mark.slow
def test_killed_twenty_times_and_continued_the_rows_are_the_same(model, classifier, pictures, tmp_path: Path) -> None:
    folder = pictures(2020)
    (folder / "003" / "07.ppm").write_bytes(b"broken")
    kill_and_continue(model, classifier, folder, tmp_path, kills=20)


def test_a_scheduler_that_ends_it_leaves_no_process(model, classifier, pictures, tmp_path: Path) -> None:
    folder, out = pictures(420), tmp_path / "o"
    process = processes.start(run_job, model, folder, out)
    wait_for(process, out, 2)
    end(process, signal.SIGTERM)
    report = vitrail.predict_many(classifier, [folder], out / "part-*.parquet", workers=0, **SETTINGS)
    assert (report.rows, report.unreadable) == (420, 0)
    assert report.continued >= 40
