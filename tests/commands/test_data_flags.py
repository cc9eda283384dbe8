"""How DATA is opened is said by the same flags everywhere."""

import csv
import json
from pathlib import Path

import pytest

from tests.training.running import make_pictures
from vitrail.cli import main
from vitrail.commands.data_flags import DataFlags


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """With columns that are called like no others."""
    folder = make_pictures(tmp_path / "pictures", each=4)
    path = tmp_path / "table.csv"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["where", "what"])
        rows.writerows([str(one), one.parent.name] for one in sorted(folder.rglob("*.png")))
    return path


COLUMNS = ["--path-column", "where", "--label-column", "what", "--json"]


def test_check_and_pack_read_any_columns_of_a_table(table, tmp_path, capsys):
    assert main(["pack", str(table), str(tmp_path / "shards"), *COLUMNS]) == 0
    packed = json.loads(capsys.readouterr().out)
    assert (packed["pictures"], packed["classes"]) == (8, 2)
    assert main(["check", str(table), "--out", str(tmp_path / "check"), *COLUMNS]) == 0
    assert json.loads(capsys.readouterr().out)["pictures"] == 8


def test_without_them_the_columns_that_are_missing_are_named(table, tmp_path, capsys):
    assert main(["pack", str(table), str(tmp_path / "shards")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--path-column" in said or "path" in said
    assert not (tmp_path / "shards").exists()


def test_only_what_was_given_is_passed_on_and_paths_hold_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert DataFlags().given() == {}
    assert DataFlags(data_dir=Path("sets"), separator=";").given() == {
        "data_dir": str(tmp_path / "sets"),
        "separator": ";",
    }
