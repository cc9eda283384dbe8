"""What happened in a run, one line a row: `log.jsonl` while it goes on, `log.csv` for spreadsheets."""

from __future__ import annotations

import csv
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from vitrail.errors import DataError
from vitrail.whole import written_whole

Row = dict[str, Any]

LINES = "log.jsonl"
TABLE = "log.csv"
_FIRST = ("kind", "step", "epoch", "time", "pictures", "loss", "accuracy", "lr", "grad_norm", "pictures_per_s")


class Log:
    """Appends to the log of a run.

    A row has `kind` ("train", "eval" or "event") and `step`; `time`, in seconds since the run began, is filled in.
    A line that a killed process left unfinished is cut off. With `resume_at`, so are the rows of later steps: what
    is then written makes the log of a run that was never stopped, so the rows of a step are to be written before its
    checkpoint.
    """

    def __init__(self, folder: Path, *, resume_at: int | None = None) -> None:
        self._folder = folder
        self._columns: dict[str, None] = {}
        self._waiting: list[Row] | None = None  # not yet in the table; None: the table is not of this log
        self._written: set[tuple[str, int]] = set()  # rows of the step at which the run goes on
        folder.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic() - _latest(_repaired(folder / LINES))
        self._file = _opened(folder / LINES)
        if resume_at is not None:
            self.cut(resume_at)
            self._began = time.monotonic() - _latest(read_log(folder))

    def cut(self, step: int) -> None:
        """Takes back the rows of all steps after this one, at which the training goes on."""
        rows = read_log(self._folder)
        kept = [row for row in rows if row.get("step", 0) <= step]
        if len(kept) < len(rows):
            self._file.close()
            with written_whole(self._folder / LINES, overwrite=True) as new:
                new.write_text("".join(map(_line, kept)), encoding="utf-8")
            self._file = _opened(self._folder / LINES)
            self._waiting = None
        # a step that was written before its checkpoint, and is evaluated again after it, stands once
        self._written = {(row["kind"], row["step"]) for row in kept if row.get("step") == step}

    @property
    def seconds(self) -> float:
        """How long the run has gone on, without the time between a stop and going on."""
        return time.monotonic() - self._began

    def write(self, row: Mapping[str, Any]) -> Row:
        """Gives the row as it was written: plain numbers, with its time; what is not finite is None."""
        plain: Row = {"kind": row["kind"], "step": row["step"], "time": round(self.seconds, 3)}
        plain |= {key: _plain(value) for key, value in row.items()}
        if plain["kind"] != "event" and (plain["kind"], plain["step"]) in self._written:
            return plain
        self._file.write(_line(plain))
        self._file.flush()
        if self._waiting is not None:
            self._waiting.append(plain)
        if plain["kind"] == "eval":
            os.fsync(self._file.fileno())
            self._write_table()
        return plain

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()
            self._write_table()

    def _write_table(self) -> None:
        """Adds what is new; the whole table only at first, and when there is a new column."""
        new = self._waiting
        if new is None or any(key not in self._columns for row in new for key in row):
            new = read_log(self._folder)
            found = dict.fromkeys(key for row in new for key in row)
            self._columns = {key: None for key in _FIRST if key in found} | found
            with written_whole(self._folder / TABLE, overwrite=True) as path, _opened(path) as file:
                table = csv.DictWriter(file, self._columns)
                table.writeheader()
                table.writerows(map(_cells, new))
        else:
            with _opened(self._folder / TABLE) as file:
                csv.DictWriter(file, self._columns).writerows(map(_cells, new))
        self._waiting = []


def read_log(folder: Path) -> list[Row]:
    """The rows of a run's log, also while it is being written."""
    path = folder / LINES
    if not path.exists():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0]
    rows = []
    for number, line in enumerate(whole.splitlines(), 1):
        row = _row(line)
        if row is None:
            raise DataError(f"{path}: line {number} is damaged: remove it")
        rows.append(row)
    return rows


def _repaired(path: Path) -> list[Row]:
    """The rows of a log, after what a killed process left unfinished at its end was cut off."""
    if not path.exists():
        return []
    content = path.read_bytes()
    good = content.rpartition(b"\n")
    end = len(good[0]) + len(good[1])
    while end and _row(content[content.rfind(b"\n", 0, end - 1) + 1 : end]) is None:
        end = content.rfind(b"\n", 0, end - 1) + 1
    if end < len(content):
        os.truncate(path, end)
    return read_log(path.parent)


def _latest(rows: list[Row]) -> float:
    return max((row.get("time") or 0.0 for row in rows), default=0.0)


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _line(row: Row) -> str:
    return json.dumps(row) + "\n"  # ASCII, so that a name that is no Unicode can be written too


def _plain(value: Any) -> Any:
    """As JSON has it: tensors and NumPy's numbers as numbers, and no NaN."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cells(row: Row) -> Row:
    return {key: json.dumps(value) if isinstance(value, dict | list) else value for key, value in row.items()}


def _opened(path: Path) -> TextIO:
    return open(path, "a", encoding="utf-8", errors="backslashreplace", newline="")
