"""What is computed and written of a picture: other libraries' answers, and files that other programs read."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pyarrow import parquet

from vitrail.shipping.bulk.answers import Answers, best_classes
from vitrail.shipping.bulk.items import Item
from vitrail.shipping.bulk.parts import FORMATS, Layout, join, text_of

LOGITS = arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.floats(-50, 50, width=32))


@given(LOGITS, st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_the_best_classes_are_those_of_torch(logits: np.ndarray, top: int) -> None:
    classes, scores = best_classes(logits, top)
    expected = torch.from_numpy(logits).double().softmax(dim=1)
    best = expected.topk(min(top, logits.shape[1]))
    assert np.allclose(scores, best.values.numpy(), atol=1e-6)
    assert np.allclose(expected.gather(1, torch.from_numpy(classes).long()).numpy(), scores, atol=1e-6)


def test_of_equal_classes_the_first_is_best() -> None:
    classes, _ = best_classes(np.zeros((1, 5), np.float32), 5)
    assert classes.tolist() == [[0, 1, 2, 3, 4]]


ODD = ["plain.jpg", "new\nline.jpg", 'a,"b".jpg', "é 🌷.jpg", os.fsdecode(b"\xff\xfe.jpg"), ""]


def some_rows(count: int, width: int) -> tuple[list[Item], Answers]:
    rng = np.random.default_rng(0)
    items = [Item(ODD[k], ODD[k], truth="cat" if k % 2 else None) for k in range(count)]
    classes, scores = best_classes(rng.normal(size=(count, 3)).astype(np.float32), 2)
    vectors = rng.normal(size=(count, width)).astype(np.float32) if width else None
    return items, Answers(classes, scores, vectors, {1: "broken\tit is"})


def read(path: Path) -> list[dict]:
    """The rows of a file, by readers that are not ours, with lists made of columns."""
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with path.open(newline="", encoding="utf-8") as file:
        return [_from_csv(row) for row in csv.DictReader(file)]


def _from_csv(row: dict[str, str]) -> dict:
    plain: dict = {key: value or None for key, value in row.items()}
    plain |= {"index": int(row["index"]), "path": row["path"], "score": float(row["score"]) if row["score"] else None}
    second = {"label": plain.pop("label_2"), "score": plain.pop("score_2")}
    first = {"label": plain["label"], "score": plain["score"]}
    features = [plain.pop(key) for key in row if key.startswith("feature_")]
    bad = plain["error"] is not None
    plain["top"] = None if bad else [first, {**second, "score": float(second["score"])}]
    return plain | ({"features": None if bad else [float(one) for one in features]} if features else {})


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("width", [0, 5])
def test_rows_are_read_back_by_other_programs(tmp_path: Path, suffix: str, width: int) -> None:
    items, answers = some_rows(6, width)
    path = tmp_path / f"rows{suffix}"
    Layout(suffix, ["x", "y", "z"], 2, True, width).write(path, 40, items, answers)
    rows = read(path)
    assert [row["index"] for row in rows] == [40, 41, 42, 43, 44, 45]
    assert [row["path"] for row in rows] == [*ODD[:4], r"\xff\xfe.jpg", ""]
    assert [row["truth"] for row in rows] == [None, "cat"] * 3
    assert [row["error"] for row in rows] == [None, "broken\tit is", None, None, None, None]
    for k, row in enumerate(rows):
        if k == 1:
            assert [row[key] for key in ("label", "score", "top")] == [None] * 3
            continue
        labels = ["xyz"[place] for place in answers.classes[k]]
        assert row["label"] == labels[0]
        assert [one["label"] for one in row["top"]] == labels
        assert [one["score"] for one in row["top"]] == pytest.approx(answers.scores[k].tolist(), abs=1e-7)
        if width:
            assert np.array_equal(np.array(row["features"], np.float32), answers.vectors[k])
    assert not width or rows[1]["features"] is None


@pytest.mark.parametrize("suffix", FORMATS)
def test_joined_parts_are_the_rows_of_all(tmp_path: Path, suffix: str) -> None:
    items, answers = some_rows(6, 0)
    layout = Layout(suffix, ["x", "y", "z"], 2, True, 0)
    parts = [tmp_path / f"{k}{suffix}" for k in range(3)]
    for k, part in enumerate(parts):
        layout.write(part, 6 * k, items, answers)
    join(parts, tmp_path / f"all{suffix}")
    assert read(tmp_path / f"all{suffix}") == [row for part in parts for row in read(part)]


def test_many_files_are_one_data_set_to_arrow(tmp_path: Path) -> None:
    items, answers = some_rows(3, 4)
    for k in range(2):
        Layout(".parquet", ["x", "y", "z"], 2, True, 4).write(tmp_path / f"{k}.parquet", 3 * k, items, answers)
    table = parquet.read_table(tmp_path)
    assert table.num_rows == 6
    assert table.schema.field("features").type == pyarrow.list_(pyarrow.float32())


@given(st.binary(max_size=20))
def test_any_name_becomes_text_that_is_utf_8(name: bytes) -> None:
    text = text_of(os.fsdecode(name))
    assert text.encode() == name or b"\\x" in text.encode()
