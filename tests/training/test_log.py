"""The log: nothing lost, nothing twice, whenever a run is killed and wherever it goes on."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import DataError
from vitrail.training.log import Log, read_log


def rows_of(steps: int, every: int) -> list[dict]:
    """What a training writes, in its order."""
    rows = []
    for step in range(1, steps + 1):
        rows.append({"kind": "train", "step": step, "epoch": step / every, "loss": 1 / step})
        if step % every == 0:
            rows.append({"kind": "eval", "step": step, "epoch": step // every, "accuracy": step / steps})
    return rows


def timeless(rows: list[dict]) -> list[dict]:
    return [{key: value for key, value in row.items() if key != "time"} for row in rows]


def write_all(log: Log, rows: list[dict]) -> None:
    for row in rows:
        log.write(row)
    log.close()


@settings(max_examples=25, deadline=None)
@given(
    steps=st.integers(1, 12),
    every=st.integers(1, 4),
    saved=st.integers(0, 12),
    cut=st.floats(0, 1),
    again=st.booleans(),
)
def test_a_killed_run_that_goes_on_leaves_the_log_of_one_never_stopped(steps, every, saved, cut, again) -> None:
    """Killed anywhere after the rows of its last checkpoint; it goes on there, and may evaluate that step again."""
    saved = min(saved, steps)
    rows = rows_of(steps, every)
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        write_all(Log(whole), rows)
        write_all(Log(killed), rows)
        lines = (killed / "log.jsonl").read_bytes().splitlines(keepends=True)
        safe = sum(len(line) for line, row in zip(lines, rows, strict=True) if row["step"] <= saved)
        total = sum(map(len, lines))
        os.truncate(killed / "log.jsonl", round(safe + cut * (total - safe)))
        write_all(
            Log(killed, resume_at=saved),
            [row for row in rows if row["step"] > saved or (again and row["step"] == saved and row["kind"] == "eval")],
        )
        assert timeless(read_log(killed)) == timeless(read_log(whole)) == rows
        assert table(killed) == table(whole)


def table(folder: Path) -> list[dict]:
    with open(folder / "log.csv", newline="", encoding="utf-8") as file:
        return timeless(list(csv.DictReader(file)))


def test_the_table_has_every_column_and_every_row_at_each_evaluation_and_at_the_end(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write({"kind": "train", "step": 1, "loss": 2.5, "odd": 'a,b\n"c"'})
    assert not (tmp_path / "log.csv").exists()
    log.write({"kind": "eval", "step": 1, "accuracy": 0.5})
    assert [row["loss"] for row in table(tmp_path)] == ["2.5", ""]
    log.write({"kind": "train", "step": 2, "loss": 1.5})
    log.write({"kind": "eval", "step": 2, "accuracy": 0.6})
    assert [row["accuracy"] for row in table(tmp_path)] == ["", "0.5", "", "0.6"]
    log.write({"kind": "event", "step": 2, "text": "ünusual", "parts": [1, {"a": 2}]})
    log.close()
    found = table(tmp_path)
    assert len(found) == 5
    assert found[0]["odd"] == 'a,b\n"c"'
    assert found[4]["text"] == "ünusual"
    assert json.loads(found[4]["parts"]) == [1, {"a": 2}]
    assert list(found[0])[:4] == ["kind", "step", "loss", "accuracy"]


def test_numbers_of_any_kind_are_plain_json_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    log = Log(tmp_path)
    row = {"kind": "train", "step": np.int64(3), "loss": torch.tensor(0.5), "grad_norm": float("nan"), "lr": math.inf}
    given_back = log.write(row)
    log.close()
    line = (tmp_path / "log.jsonl").read_text()
    found = json.loads(line, parse_constant=lambda name: pytest.fail(name))
    assert found == given_back
    assert found.items() >= {"step": 3, "loss": 0.5, "grad_norm": None, "lr": None}.items()


def test_time_goes_on_where_it_stopped(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for step in (1, 2, 3):
        log.write({"kind": "train", "step": step, "time": 100.0 * step})
    log.close()
    assert 300 <= Log(tmp_path).seconds < 301
    log = Log(tmp_path, resume_at=2)
    assert 200 <= log.seconds < 201
    assert 200 <= log.write({"kind": "train", "step": 3})["time"] < 201


def test_a_training_that_goes_back_takes_its_rows_back(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for row in rows_of(6, 3):
        log.write(row)
    log.cut(4)
    log.write({"kind": "event", "step": 4, "text": "back"})
    log.write({"kind": "train", "step": 5, "loss": 9.0})
    log.close()
    assert [(row["kind"], row["step"]) for row in read_log(tmp_path)][-3:] == [("train", 4), ("event", 4), ("train", 5)]
    assert table(tmp_path)[-1]["loss"] == "9.0"


def test_a_log_is_read_while_it_is_written_and_damage_in_its_middle_is_named(tmp_path: Path) -> None:
    assert read_log(tmp_path) == []
    path = tmp_path / "log.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n{"kind": "tr')
    assert read_log(tmp_path) == [{"kind": "train", "step": 1}]
    path.write_bytes(b'{"kind": "train", "step": 1}\n\x00\x00\x00\n{"kind": "train", "step": 2}\n')
    with pytest.raises(DataError, match="line 2 is damaged"):
        read_log(tmp_path)
    path.write_bytes(b'{"kind": "train", "step": 1}\n\x00\x00\x00\n\x00\x00')
    Log(tmp_path).close()
    assert read_log(tmp_path) == [{"kind": "train", "step": 1}]


def test_what_was_written_before_a_kill_is_there(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from vitrail.training.log import Log\n"
        "log = Log(Path(sys.argv[1]))\n"
        "for step in range(10**9):\n"
        "    log.write({'kind': 'train', 'step': step, 'text': 'x' * 500})\n"
        "    print(step, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        said = [int(line) for line in process.stdout.read().splitlines() if line.strip()]
    Log(tmp_path).close()
    steps = [row["step"] for row in read_log(tmp_path)]
    assert steps == list(range(len(steps)))
    assert len(steps) > max(said[:-1])
