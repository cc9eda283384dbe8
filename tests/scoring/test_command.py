"""`vitrail evaluate` as a user types it, and the folder that it writes."""

import csv
import json
import shutil
from pathlib import Path

import pytest

import vitrail
from tests.training.running import TINY, make_pictures
from vitrail.cli import main


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(["evaluate", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_it_prints_figures_classes_and_what_was_left_out(small: Path, photos: Path, capsys) -> None:
    code, out, _ = run(capsys, small, photos, "--device", "cpu", "--workers", 0)
    assert code == 0
    assert f"{small} on {photos} (val): 35 pictures, 3 of 4 classes" in out
    assert "unreadable, not scored: 1: 'val/rose/bad.png'" in out
    for word in ("loss", "top-1", "balanced accuracy", "calibration error", "Brier score", "macro F1", "tulip"):
        assert word in out
    assert "top-5" not in out  # of four classes


def test_json_is_one_object_and_nothing_else(small: Path, photos: Path, capsys) -> None:
    code, out, err = run(capsys, small, photos, "--json", "--split", "train", "--device", "cpu", "--workers", 0)
    assert (code, err) == (0, "")
    said = json.loads(out, parse_constant=pytest.fail)
    assert said["pictures"] == 9
    assert said["split"] == "train"
    assert sum(one["support"] for one in said["per_class"]) == 9
    assert sum(one["pictures"] for one in said["reliability"]) == 9


def test_out_is_a_folder_with_the_whole_of_it(small: Path, photos: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "report"
    arguments = (small, photos, "--device", "cpu", "--workers", 0, "--out", out)
    assert run(capsys, *arguments)[0] == 0
    assert {path.name for path in out.iterdir()} == {
        "report.json",
        "per_class.csv",
        "confusion.csv",
        "mistakes.csv",
        "bad_images.csv",
    }
    said = json.loads((out / "report.json").read_text())
    cells = table(out / "confusion.csv")
    assert sum(int(cell["pictures"]) for cell in cells) == 35
    right = sum(int(cell["pictures"]) for cell in cells if cell["label"] == cell["answer"])
    assert said["top1"] == right / 35
    mistakes = table(out / "mistakes.csv")
    assert len(mistakes) == 35 - right
    assert all((photos / row["name"]).is_file() and row["label"] in row["name"] for row in mistakes)
    probabilities = [float(row["probability"]) for row in mistakes]
    assert probabilities == sorted(probabilities, reverse=True)
    classes = table(out / "per_class.csv")
    assert [row["name"] for row in classes] == ["tulip", "sun flower", "rose", "daisy"]
    assert classes[1]["recall"] == ""
    assert table(out / "bad_images.csv")[0]["name"] == "val/rose/bad.png"

    code, _, err = run(capsys, *arguments)
    assert code == 1
    assert "already there" in err
    assert run(capsys, *arguments, "--overwrite")[0] == 0
    (out / "mine.txt").write_text("kept")
    assert run(capsys, *arguments, "--overwrite")[0] == 1
    assert (out / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--strict"], 1, "bad.png"),
        (["--split", "test"], 1, "no pictures in test"),
        (["--split", "dev"], 2, "dev"),
        (["--batch-size", "0"], 1, "--batch-size"),
        (["--real", "nowhere.json"], 1, "nowhere.json"),
        (["--in-order"], 1, "3 classes cannot be matched in order to 4 outputs"),
        (["--device", "abacus"], 1, "abacus"),
    ],
)
def test_what_goes_wrong_is_one_line(small: Path, photos: Path, capsys, arguments, code, says) -> None:
    found, out, err = run(capsys, small, photos, "--workers", 0, *arguments)
    assert (found, out) == (code, "")
    assert says in err
    assert err.count("\n") == 1


def test_help_has_an_example(capsys) -> None:
    assert "Example: vitrail evaluate my-model/ photos/" in run(capsys, "--help")[1]


def test_of_a_runs_own_data_what_it_held_out_is_scored(tmp_path: Path, capsys) -> None:
    """Whoever evaluates a run on the folder it learned from would else be told how well it remembers."""
    data = make_pictures(tmp_path / "pictures")
    count = len(list(data.rglob("*.png")))
    made = vitrail.train(data, recipe="small", out=tmp_path / "run", changes=TINY | {"steps": 2}, device="cpu")
    held = round(count * made.recipe.data.val_fraction)
    assert 0 < held < count
    common = ("--device", "cpu", "--workers", 0)
    for model in (made.folder, made.folder / "best"):
        code, out, err = run(capsys, model, data, *common)
        assert (code, err) == (0, "")
        assert f"(val of the run): {held} pictures" in out
    assert f"(val of the run): {held} pictures" in run(capsys, made.folder, data, "--split", "val", *common)[1]
    _, out, err = run(capsys, made.folder, data, "--split", "all", *common)
    assert f"(all): {count} pictures" in out
    assert f"{made.folder} had {count - held} of the {count} pictures of {data} to learn from" in err
    others = copied(data, tmp_path / "others")
    _, out, err = run(capsys, made.folder, others, *common)
    assert f"(all): {count - 1} pictures" in out
    assert err == ""


def copied(data: Path, to: Path) -> Path:
    """The same pictures but for one."""
    shutil.copytree(data, to)
    next(to.rglob("*.png")).unlink()
    return to
