"""The columns of a table, whatever file it is: CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from vitrail.errors import DataError
from vitrail.pictures.sources import printable

CSV, LINES, PARQUET = (".csv", ".tsv"), (".jsonl", ".ndjson"), (".parquet", ".pq")
TABLES = CSV + LINES + PARQUET

Row = tuple[int, dict[str, Any]]  # where it stands in the file, and its cells by the part they play
Choice = Callable[[Sequence[str]], dict[str, str]]  # of all columns, those that play a part: {part: column}

_DELIMITERS = ",;\t|"


@dataclass
class Columns:
    """The chosen columns by the part they play, and the row of the file that each entry stands in."""

    values: dict[str, list[Any]]
    rows: Sequence[int]


def read_columns(path: Path, choose: Choice) -> Columns:
    """The columns that `choose` picks, of a file that is known by its suffix."""
    chosen: list[str] = []

    def remembered(there: Sequence[str]) -> dict[str, str]:
        parts = choose(there)
        chosen.extend(parts)
        return parts

    rows: list[int] = []
    values: dict[str, list[Any]] = {}
    for row, cells in iterate_rows(path, remembered):
        rows.append(row)
        for part, cell in cells.items():
            values.setdefault(part, []).append(cell)
    return Columns(values if rows else {part: [] for part in chosen}, rows)


def iterate_rows(path: Path, choose: Choice) -> Iterator[Row]:
    """The row of the file and the cells of the chosen columns, one after the other: a table of any length takes little
    memory."""
    suffix = path.suffix.lower()
    name = printable(path)
    if suffix not in TABLES:
        raise DataError(f"{name} is no table that can be read here: give a file that ends in {' '.join(TABLES)}")
    read = _read_parquet if suffix in PARQUET else _read_csv if suffix in CSV else _read_lines
    try:
        yield from read(path, name, choose)
    except FileNotFoundError:
        raise DataError(f"there is no table {name}: check the path") from None
    except OSError as error:
        raise DataError(f"{name} cannot be read ({printable(error.strerror or error)}): check the path") from error


def _read_csv(path: Path, name: str, choose: Choice) -> Iterator[Row]:
    with _opened(path, name) as file:
        delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(file.readline())
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter)
        header = [column.strip() for column in next(reader, [])]
        if not any(header):
            raise DataError(f"{name} is empty: its first row names the columns, such as path,label")
        chosen = {part: header.index(column) for part, column in choose(header).items()}
        try:
            for cells in reader:
                if not cells:
                    continue
                if len(cells) > len(header):
                    raise DataError(
                        f"{name}, row {reader.line_num}: {len(cells)} cells for {len(header)} columns; "
                        'put a cell that holds the separator between quotes (")'
                    )
                yield (
                    reader.line_num,
                    {part: cells[place] if place < len(cells) else None for part, place in chosen.items()},
                )
        except csv.Error as error:
            raise DataError(f"{name}, row {reader.line_num}: this is no CSV ({error}); correct the row") from error


def _delimiter(header: str) -> str:
    """What cuts the header into most columns; the rows are not asked, since labels may be joined by anything."""
    return max(_DELIMITERS, key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))


@contextmanager
def _opened(path: Path, name: str) -> Iterator[TextIO]:
    """A text file in UTF-8, or UTF-16 if it begins so. Bytes that are no UTF-8 survive, as file names may have them."""
    with open(path, "rb") as binary:
        wide = binary.read(2) in (b"\xff\xfe", b"\xfe\xff")
    encoding, errors = ("utf-16", "strict") if wide else ("utf-8-sig", "surrogateescape")
    with open(path, newline="", encoding=encoding, errors=errors) as file:
        try:
            yield file
        except UnicodeError as error:
            raise DataError(f"{name} is no text ({error}): save it as UTF-8") from error


def _read_lines(path: Path, name: str, choose: Choice) -> Iterator[Row]:
    columns: dict[str, None] = {}  # of all lines, since the first need not have them all
    for _, entry in _json_lines(path, name):
        columns.update(dict.fromkeys(entry))
    if not columns:
        raise DataError(f'{name} is empty: each line is an object such as {{"path": "a.jpg", "label": "cat"}}')
    chosen = choose(list(columns))
    for number, entry in _json_lines(path, name):
        yield number, {part: entry.get(column) for part, column in chosen.items()}


def _json_lines(path: Path, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    with _opened(path, name) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{name}, row {number}: this is no JSON ({error}); correct the row") from error
            if not isinstance(entry, dict):
                raise DataError(f'{name}, row {number}: not an object such as {{"path": "a.jpg", "label": "cat"}}')
            yield number, entry


def _read_parquet(path: Path, name: str, choose: Choice) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(f"{name} needs pyarrow: pip install 'vitrail[hub]'") from error
    os.stat(path)  # what pyarrow says of a missing file is several lines
    try:
        with parquet.ParquetFile(path) as file:
            chosen = choose(file.schema_arrow.names)
            held = file.schema_arrow.field(chosen["path"]).type
            if pyarrow.types.is_struct(held) or pyarrow.types.is_binary(held) or pyarrow.types.is_large_binary(held):
                raise DataError(
                    f"{name}: column {chosen['path']!r} holds pictures, not their paths; name a column of paths"
                )
            row = 0
            for batch in file.iter_batches(columns=list(dict.fromkeys(chosen.values()))):
                columns = {part: batch.column(column).to_pylist() for part, column in chosen.items()}
                for cells in zip(*columns.values(), strict=True):
                    row += 1
                    yield row, dict(zip(columns, cells, strict=True))
    except pyarrow.ArrowException as error:
        raise DataError(f"{name} is no Parquet file ({printable(error)}): write it again") from error
