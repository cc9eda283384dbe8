"""A table as a source: CSV, JSON lines and Parquet say the same, and what is wrong in them is said with its row."""

import csv
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitrail.data.samples import SPLITS, UNSAID
from vitrail.data.table import from_table
from vitrail.errors import DataError
from vitrail.pictures import as_picture


def write(root: Path, text: str | bytes, name: str = "table.csv") -> Path:
    path = root / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def facts(source) -> dict[str, tuple]:
    """{name: (labels, split)}"""
    samples = source.samples
    return {
        name: (
            tuple(source.classes[label] for label in samples.labels_of(row)),
            "" if samples.splits[row] == UNSAID else SPLITS[samples.splits[row]],
        )
        for row, name in enumerate(samples.names)
    }


@pytest.fixture
def root(photos) -> Path:
    return photos({"cat": 3, "dog": 2})


PLAIN = "path,label\ncat/001.jpg,cat\ndog/000.jpg,dog\ncat/000.jpg,cat\n"


def test_paths_are_relative_to_the_table_and_pictures_are_found(root: Path, monkeypatch, tmp_path) -> None:
    table = write(root, PLAIN)
    monkeypatch.chdir(tmp_path)
    source = from_table(table.relative_to(tmp_path))
    monkeypatch.chdir("/")
    assert list(source.samples.names) == ["cat/000.jpg", "cat/001.jpg", "dog/000.jpg"]
    assert facts(source)["dog/000.jpg"] == (("dog",), "")
    assert as_picture(source.all().read(2)).size == (24, 16)
    assert source.notes == ()


def test_all_columns_are_understood_in_every_kind_of_file(root: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(
        {
            "Image Path": ["cat/000.jpg", "cat/001.jpg", "cat/002.jpg", "dog/000.jpg", "dog/001.jpg"],
            "Category": ["cat", "cat", "cat", "dog", None],
            "set": ["train", "Validation", "test", "TRAIN", ""],
            "Patient-ID": ["p1", "p2", "p1", None, "p2"],
            "weight": [1.0, 2.5, 0.0, 1.0, 3.0],
            "remark": ["a, b", 'said "no"', "line\nbreak", "", None],
        }
    )
    frame.to_csv(root / "t.csv", index=False)
    frame.to_csv(root / "t.tsv", index=False, sep="\t")
    frame.to_csv(root / "semicolons.csv", index=False, sep=";")
    frame.to_csv(root / "wide.csv", index=False, encoding="utf-16")
    frame.to_csv(root / "marked.csv", index=False, encoding="utf-8-sig")
    frame.to_json(root / "t.jsonl", orient="records", lines=True)
    frame.to_parquet(root / "t.parquet")
    sources = [from_table(path) for path in sorted(root.iterdir()) if path.is_file()]
    assert len(sources) == 7
    for source in sources:
        assert facts(source) == {
            "cat/000.jpg": (("cat",), "train"),
            "cat/001.jpg": (("cat",), "val"),
            "cat/002.jpg": (("cat",), "test"),
            "dog/000.jpg": (("dog",), "train"),
            "dog/001.jpg": ((), ""),
        }
        one, two, again, alone, two_again = source.samples.groups.tolist()
        assert one == again != two == two_again
        assert alone == UNSAID
        assert source.samples.weights.tolist() == [1.0, 2.5, 0.0, 1.0, 3.0]
        assert "1 row without a label" in source.notes


def test_a_separator_or_a_list_gives_several_labels(root: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lists = {"cat/000.jpg": ["small", "cat"], "cat/001.jpg": [], "dog/000.jpg": ["dog"]}
    write(root, "file,labels\n" + "".join(f"{name},{' | '.join(own)}\n" for name, own in lists.items()))
    rows = [{"file": name, "labels": own} for name, own in lists.items()]
    write(root, "\n\n".join(map(json.dumps, rows)), "table.jsonl")
    parquet.write_table(pyarrow.Table.from_pylist(rows), root / "table.parquet")
    for name, options in (("table.csv", {"separator": "|"}), ("table.jsonl", {}), ("table.parquet", {})):
        source = from_table(root / name, **options)
        assert source.classes == ("cat", "dog", "small")
        assert source.samples.multi_label
        assert source.samples.targets(np.arange(3)).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_numbers_are_classes_in_the_order_of_their_values(root: Path) -> None:
    csv_source = from_table(write(root, "path,label\ncat/000.jpg,10\ncat/001.jpg,9\ncat/002.jpg,-1\ndog/000.jpg,9\n"))
    assert csv_source.classes == ("-1", "9", "10")
    assert csv_source.samples.labels.tolist() == [2, 1, 0, 1]
    lines = '{"path": "cat/000.jpg", "label": 10}\n{"path": "cat/001.jpg", "label": 9.0}\n{"path": "dog/000.jpg"}\n'
    json_source = from_table(write(root, lines, "table.jsonl"))
    assert json_source.classes == ("9", "10")
    assert json_source.samples.labels.tolist() == [1, 0, UNSAID]
    mixed = from_table(write(root, "path,label\ncat/000.jpg,10\ncat/001.jpg,9\ncat/002.jpg,x\n"))
    assert mixed.classes == ("10", "9", "x")


def test_columns_can_be_named(root: Path) -> None:
    table = write(root, "id,where,what,label\n1,cat/000.jpg,tabby,cat\n2,dog/000.jpg,terrier,dog\n")
    source = from_table(table, path_column="where", label_column="what")
    assert source.classes == ("tabby", "terrier")


@pytest.mark.parametrize(
    ("header", "options", "said"),
    [
        ("id,what", {}, r"no path column .* --path-column; it has 'id', 'what'"),
        ("path,species", {}, r"no label column .* --label-column; it has 'path', 'species'"),
        ("path,label", {"label_column": "kind"}, r"no column 'kind': it has 'path', 'label'"),
        ("path,label", {"path_column": "where"}, r"no column 'where': it has 'path', 'label'"),
    ],
)
def test_a_column_that_is_not_there_is_told_with_those_that_are(root: Path, header: str, options, said: str) -> None:
    with pytest.raises(DataError, match=said):
        from_table(write(root, f"{header}\n1,2\n"), **options)


def test_a_table_of_paths_alone_has_no_labels(root: Path) -> None:
    source = from_table(write(root, "path,split\ncat/000.jpg,train\ncat/001.jpg,val\n"))
    assert source.classes == ()
    assert source.samples.labels.tolist() == [UNSAID, UNSAID]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("path,label,split\ncat/000.jpg,cat,train\n\ncat/001.jpg,cat,holdout\n", "row 4: split 'holdout' is none of"),
        ("path,label,weight\ncat/000.jpg,cat,-1\n", "row 2: weight '-1' is no number"),
        ("path,label,weight\ncat/000.jpg,cat,inf\n", "row 2: weight 'inf' is no number"),
        ("path,label,weight\ncat/000.jpg,cat,much\n", "row 2: weight 'much' is no number"),
        ("path,label\ncat/000.jpg,cat\n,dog\n", "row 3: no path"),
        ("path,label\ncat/000.jpg,cat,tabby\n", "row 2: 3 cells for 2 columns"),
        (
            "path,label\ncat/000.jpg,cat\ndog/000.jpg,dog\ncat/./000.jpg,dog\n",
            "one label in row 2 and another in row 4",
        ),
        ("path,label,split\ncat/000.jpg,a,train\ncat/000.jpg,a,val\n", "one split in row 2 and another in row 3"),
        ("", "is empty"),
        ("path,label\n", "has columns and no rows"),
        ('path,label\n"' + "x" * 200_000, "row 2: this is no CSV"),
    ],
)
def test_what_is_wrong_is_told_with_its_row(root: Path, rows: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        from_table(write(root, rows))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ('{"path": "cat/000.jpg", "label": "cat"}\n{"path"', "row 2: this is no JSON"),
        ('["cat/000.jpg", "cat"]', "row 1: not an object"),
        ('{"path": "cat/000.jpg", "label": {"a": 1}}', "row 1: a label is text or a number, not a dict"),
        ('{"path": 7, "label": "cat"}', "row 1: 7 is no path"),
        ('{"path": "\\ud800.jpg", "label": "cat"}', "row 1: .* can be no file's name"),
        ("\n\n", "is empty"),
    ],
)
def test_json_lines_that_are_wrong_are_told_with_their_row(root: Path, rows: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        from_table(write(root, rows, "table.jsonl"))
    assert "\n" not in str(caught.value)


def test_the_same_row_twice_is_kept_once_and_told(root: Path) -> None:
    source = from_table(write(root, PLAIN + "cat/000.jpg,cat\ncat//000.jpg,cat\n"))
    assert len(source) == 3
    assert "2 rows left out, the same picture again" in source.notes


def test_labels_of_one_picture_in_several_rows_are_joined_where_it_may_have_several(root: Path) -> None:
    source = from_table(write(root, PLAIN + "cat/000.jpg,small\n"), separator="|")
    assert facts(source)["cat/000.jpg"] == (("cat", "small"), "")


def test_rows_without_a_file_are_left_out_and_counted(root: Path) -> None:
    source = from_table(write(root, PLAIN + "cat/gone.jpg,cat\nnowhere/x.jpg,dog\n"))
    assert len(source) == 3
    assert source.notes == ("2 rows left out, without a file: 'cat/gone.jpg', 'nowhere/x.jpg'",)
    with pytest.raises(DataError, match=r"names 1 picture and none is there, such as cat/gone.jpg: paths are relative"):
        from_table(write(root, "path,label\ncat/gone.jpg,cat\n"))


def test_paths_may_be_absolute_or_lead_elsewhere(root: Path, photos) -> None:
    other = photos({"x": 1}, "other")
    rows = f"path,label\n{root}/cat/000.jpg,cat\n{other}/x/000.jpg,dog\n../other/x/000.jpg,dog\n"
    source = from_table(write(root, rows))
    assert list(source.samples.names) == ["../other/x/000.jpg", f"{other}/x/000.jpg", "cat/000.jpg"]
    assert [as_picture(picture).size for picture in source.all().read_many([0, 1, 2])] == [(24, 16)] * 3


def test_names_that_are_no_utf8_survive(root: Path) -> None:
    os.rename(root / "cat/000.jpg", os.fsencode(root) + b"/cat/\xff.jpg")
    source = from_table(write(root, b"path,label\ncat/\xff.jpg,cat\ndog/000.jpg,dog\n"))
    assert os.fsencode(source.samples.names[0]) == b"cat/\xff.jpg"
    assert as_picture(source.all().read(0)).size == (24, 16)


def test_a_pattern_groups_before_a_column_does(root: Path) -> None:
    table = write(root, "path,label,group\ncat/000.jpg,cat,x\ndog/000.jpg,dog,x\ndog/001.jpg,dog,y\n")
    assert from_table(table).samples.groups.tolist() == [0, 0, 1]
    assert from_table(table, group_by="^[a-z]+").samples.groups.tolist() == [0, 1, 1]


def test_other_files_and_none_are_one_line(root: Path) -> None:
    with pytest.raises(DataError, match="there is no table"):
        from_table(root / "absent.csv")
    with pytest.raises(DataError, match=r"no table that can be read here: .* \.csv \.tsv"):
        from_table(write(root, PLAIN, "table.xlsx"))
    with pytest.raises(DataError, match="the separator of labels is empty"):
        from_table(write(root, PLAIN), separator="")


def test_a_parquet_file_is_refused_in_one_line(root: Path, monkeypatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    with pytest.raises(DataError, match="is no Parquet file"):
        from_table(write(root, PLAIN, "table.parquet"))
    with pytest.raises(DataError, match="there is no table"):
        from_table(root / "absent.parquet")
    held = pyarrow.table({"image": [{"bytes": b"1", "path": "x"}], "label": [0]})
    parquet.write_table(held, root / "held.parquet")
    with pytest.raises(DataError, match="'image' holds pictures, not their paths"):
        from_table(root / "held.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs pyarrow: pip install 'vitrail\[hub\]'"):
        from_table(root / "held.parquet")


texts = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=8).filter(
    lambda text: text == text.strip() and text
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(texts, min_size=2, max_size=2), st.sampled_from(",;\t|"))
def test_labels_of_any_text_come_through_csv_as_the_csv_module_writes_them(root: Path, labels, delimiter) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter)
    writer.writerows([["path", "label"], ["cat/000.jpg", labels[0]], ["dog/000.jpg", labels[1]]])
    found = facts(from_table(write(root, buffer.getvalue())))
    assert [found[name][0] for name in ("cat/000.jpg", "dog/000.jpg")] == [(labels[0],), (labels[1],)]
