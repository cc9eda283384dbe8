"""`vitrail stress` as a user types it."""

import json
from pathlib import Path

import pytest

from vitrail.cli import main

QUICK = ("--only", "shuffle,scale", "--seeds", 1)


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(["stress", *map(str, arguments), "--device", "cpu", "--workers", "0"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_one_model_and_data_are_two_words(folders, coloured: Path, capsys) -> None:
    code, out, _ = run(capsys, folders[0], coloured, *QUICK)
    assert code == 0
    assert f"{coloured} (val): 22 pictures, 1 seed" in out
    assert "Patches shuffled: accuracy, %" in out
    assert "corruptions" not in out


def test_several_models_stand_on_one_plot(folders, coloured: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    code, text, _ = run(capsys, *folders, "--data", coloured, *QUICK, "--out", out)
    assert code == 0
    assert [line.split()[0] for line in text.splitlines() if line.startswith(("vit ", "resnet "))] == [
        "vit",
        "resnet",
    ] * 2
    assert {path.name for path in out.iterdir()} == {"stress.json", "stress.csv", "stress.png", "trials.jsonl"}
    assert f"are in {out}" in text


def test_json_is_one_object_and_nothing_else(folders, coloured: Path, capsys) -> None:
    code, out, err = run(capsys, folders[0], coloured, "--only", "shuffle", "scale", "--seeds", 2, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out, parse_constant=pytest.fail)
    assert said["tests"] == ["shuffle", "scale"]
    assert len(said["models"][0]["curves"][0]["points"][0]["accuracies"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["{vit}"], 1, "give a model and data"),
        ([], 2, "MODELS"),
        (["{vit}", "{data}", "--only", "rain"], 1, "there is no test 'rain'"),
        (["{vit}", "{vit}", "--data", "{data}"], 1, "a model is given twice"),
        (["{vit}", "{data}/absent"], 1, "is not there"),
        (["{data}", "{data}"], 1, "vitrail: "),
        (["{vit}", "{data}", "--seeds", "0"], 1, "at least 1"),
        (["{vit}", "{data}", "--split", "test"], 1, "has no pictures in test"),
        (["{vit}", "{data}", "--eps", "much"], 2, "much"),
    ],
)
def test_bad_input_gets_one_line_and_the_right_code(arguments, code: int, says: str, folders, coloured, capsys) -> None:
    words = [word.format(vit=folders[0], data=coloured) for word in arguments]
    got, out, err = run(capsys, *words)
    assert (got, out) == (code, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith("vitrail: ")
    assert says in last


def test_help_has_examples(capsys) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "Example: vitrail stress" in out
