"""Files of rows: CSV, JSON lines or Parquet, each written whole or not at all."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.pictures.sources import printable
from vitrail.shipping.bulk.answers import Answers
from vitrail.shipping.bulk.items import Item
from vitrail.whole import flush

FORMATS = (".parquet", ".jsonl", ".csv")


@dataclass(frozen=True)
class Layout:
    """The columns of a row: `index` among all inputs, `path`, `truth` where sources give labels, `label` and `score`,
    `top` where more than the best class was asked for, `features`, `error`."""

    suffix: str
    classes: Sequence[str]
    top: int
    truth: bool
    width: int  # of the features; 0: none

    def write(self, path: Path, first: int, items: Sequence[Item], answers: Answers) -> None:
        {".parquet": _write_parquet, ".jsonl": _write_lines, ".csv": _write_csv}[self.suffix](
            self, path, self.rows(first, items, answers)
        )

    def rows(self, first: int, items: Sequence[Item], answers: Answers) -> dict[str, list[Any]]:
        """The columns of a part whose first input has this number."""
        bad = answers.errors
        count = len(items)
        columns: dict[str, list[Any]] = {
            "index": list(range(first, first + count)),
            "path": [text_of(item.path) for item in items],
        }
        if self.truth:
            columns["truth"] = [None if item.truth is None else text_of(item.truth) for item in items]
        if self.top:
            names = [[self.classes[k] for k in row] for row in answers.classes.tolist()]
            scores = answers.scores.tolist()
            columns["label"] = [None if k in bad else names[k][0] for k in range(count)]
            columns["score"] = [None if k in bad else scores[k][0] for k in range(count)]
        if self.top > 1:
            columns["top"] = [
                None if k in bad else [{"label": n, "score": s} for n, s in zip(names[k], scores[k], strict=True)]
                for k in range(count)
            ]
        if self.width:
            assert answers.vectors is not None
            columns["features"] = [None if k in bad else answers.vectors[k] for k in range(count)]
        columns["error"] = [bad.get(k) for k in range(count)]
        return columns


def text_of(name: str) -> str:
    """A file's name as text that every program can read: bytes that are no UTF-8 are written as \\xff."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _write_csv(layout: Layout, path: Path, columns: dict[str, list[Any]]) -> None:
    """Lists become columns: label_2, score_2 and so on; feature_0, feature_1 and so on."""
    plain = {name: column for name, column in columns.items() if name not in ("top", "features", "error")}
    for place in range(1, layout.top):
        for key in ("label", "score"):
            plain[f"{key}_{place + 1}"] = [None if row is None else row[place][key] for row in columns["top"]]
    for place in range(layout.width):
        plain[f"feature_{place}"] = [None if row is None else str(row[place]) for row in columns["features"]]
    plain["error"] = columns["error"]
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(plain)
        lines.writerows(zip(*plain.values(), strict=True))


def _write_lines(_: Layout, path: Path, columns: dict[str, list[Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for cells in zip(*columns.values(), strict=True):
            row = dict(zip(columns, cells, strict=True))
            if row.get("features") is not None:
                row["features"] = [float(number) for number in row["features"].astype(str)]  # as short as they can be
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _write_parquet(_: Layout, path: Path, columns: dict[str, list[Any]]) -> None:
    import pyarrow
    from pyarrow import parquet

    score = pyarrow.float32()
    types = {
        "index": pyarrow.int64(),
        "score": score,
        "top": pyarrow.list_(pyarrow.struct({"label": pyarrow.string(), "score": score})),
        "features": pyarrow.list_(pyarrow.float32()),  # of a fixed size they could not be read with nulls among them
    }
    arrays = {name: pyarrow.array(column, types.get(name, pyarrow.string())) for name, column in columns.items()}
    parquet.write_table(pyarrow.table(arrays), path, compression="zstd")


def check_format(suffix: str) -> None:
    if suffix not in FORMATS:
        raise VitrailError(f"--out ends in {suffix or 'nothing'}: name files that end in {' '.join(FORMATS)}")
    if suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise VitrailError("Parquet needs pyarrow: pip install 'vitrail[hub]', or write .jsonl or .csv") from error


def put(path: Path, aside: Path, write: Callable[[Path], None]) -> tuple[int, str]:
    """Writes to a file aside, on the same disk, flushes and renames it; gives its size and SHA-256."""
    try:
        write(aside)
        flush(aside)
        size, digest = aside.stat().st_size, sha256(aside)
        os.replace(aside, path)
        flush(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        cause = printable(error.strerror or error)
        kept = "what is done is kept: make room, and run the same command again"
        raise VitrailError(f"{printable(path)} is not written ({cause}); {kept}") from error
    return size, digest


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def join(parts: Sequence[Path], path: Path) -> None:
    """All rows of these parts in one file."""
    if path.suffix.lower() == ".parquet":
        _join_parquet(parts, path)
        return
    with path.open("wb") as file:
        for number, part in enumerate(parts):
            with part.open("rb") as rows:
                if number and path.suffix.lower() == ".csv":
                    rows.readline()  # its header
                while block := rows.read(2**20):
                    file.write(block)


def _join_parquet(parts: Sequence[Path], path: Path) -> None:
    from pyarrow import parquet

    with parquet.ParquetWriter(path, parquet.read_schema(parts[0]), compression="zstd") as writer:
        for part in parts:
            writer.write_table(parquet.read_table(part))
