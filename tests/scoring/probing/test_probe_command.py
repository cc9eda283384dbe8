"""`vitrail probe` as a user types it, the folder that it writes, and suites."""

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

import vitrail
from tests.scoring.probing.making import COLOURS, make_folder
from vitrail.cli import main
from vitrail.data.named import KNOWN
from vitrail.scoring.probing.suite import probe_suite, read_suite


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(["probe", *map(str, arguments), "--device", "cpu", "--workers", "0"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_it_prints_one_table(tiny_folder: Path, coloured: Path, capsys) -> None:
    code, out, _ = run(capsys, tiny_folder, coloured, "--method", "ridge", "knn", "--shots", 1, 5, "all")
    assert code == 0
    assert f"{tiny_folder} on {coloured}: 3 classes, 36 pictures to learn from, 18 (val) to be judged on" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["shots", "1", "5", "all"] in lines
    assert [line[0] for line in lines if line and line[0] in ("ridge", "k-NN")] == ["ridge", "k-NN"]


def test_json_is_one_object_and_nothing_else(tiny_folder: Path, coloured: Path, capsys) -> None:
    code, out, err = run(capsys, tiny_folder, coloured, "--json", "--method", "linear", "--shots", "all", "--seeds", 2)
    assert (code, err) == (0, "")
    said = json.loads(out, parse_constant=pytest.fail)
    assert [one["method"] for one in said["figures"]] == ["lbfgs", "sgd"]
    assert len(said["figures"][1]["accuracies"]) == 2
    assert said["held_out"] == 7


def test_out_is_a_folder_with_the_figures_and_a_plot(tiny_folder: Path, coloured: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "probe"
    arguments = (tiny_folder, coloured, "--method", "ridge", "--shots", 1, "all", "--seeds", 2, "--out", out)
    assert run(capsys, *arguments)[0] == 0
    assert {path.name for path in out.iterdir()} == {"probe.json", "probe.csv", "probe.png"}
    with open(out / "probe.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    said = json.loads((out / "probe.json").read_text())
    assert [row["shots"] for row in rows] == ["1", "1", "all"]
    assert [float(row["accuracy"]) for row in rows[:2]] == said["figures"][0]["accuracies"]
    assert Image.open(out / "probe.png").size[0] > 500
    assert run(capsys, *arguments)[0] == 1
    assert run(capsys, *arguments, "--overwrite")[0] == 0
    (out / "mine.txt").write_text("kept")
    assert run(capsys, *arguments, "--overwrite")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--shots", "20"], 1, "fewer than 20 shots"),
        (["--shots", "few"], 1, "numbers from 1 up, or all"),
        (["--shots", "0"], 1, "numbers from 1 up"),
        (["--method", "svm"], 2, "svm"),
        (["--l2", "big"], 1, "--l2"),
        (["--l2", "-1"], 1, "above 0"),
        (["--split", "test"], 1, "no split 'test'"),
        (["--suite", "vtab"], 1, "either DATA or --suite"),
        (["--blocks", "2"], 1, "several blocks"),
        (["--batch-size", "0"], 1, "--batch-size"),
    ],
)
def test_what_goes_wrong_is_one_line(tiny_folder: Path, coloured: Path, capsys, arguments, code: int, says) -> None:
    found, out, err = run(capsys, tiny_folder, coloured, *arguments)
    assert (found, out) == (code, "")
    assert says in err
    assert err.count("\n") == 1


def test_help_has_an_example(capsys) -> None:
    assert main(["probe", "--help"]) == 0
    assert "Example: vitrail probe my-model/ photos/" in capsys.readouterr().out


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Two groups of two sets; one set is not there."""
    for seed, name in enumerate(("one", "two", "three")):
        counts = {f"{split}/{colour}": 6 for split in ("train", "val") for colour in COLOURS}
        make_folder(tmp_path / name, counts, seed)
    tasks = "".join(
        f'[[task]]\nname = "{name}"\ngroup = "{group}"\ndata = "{data}"\n'
        for name, group, data in (
            ("One", "near", "one"),
            ("Two", "near", "two"),
            ("Three", "far", "three"),
            ("Lost", "far", "nowhere"),
        )
    )
    (tmp_path / "mine.toml").write_text('name = "Mine"\nmethod = ["ridge", "knn"]\nshots = ["all"]\n' + tasks)
    return tmp_path / "mine.toml"


def test_a_suite_has_a_row_for_each_set_and_goes_on_past_one_that_is_lost(tiny_folder, suite: Path, capsys) -> None:
    code, out, err = run(capsys, tiny_folder, "--suite", suite, "--out", suite.parent / "out")
    assert code == 1
    assert "1 of 4 data sets could not be probed" in err
    rows = {line.split("  ")[0].strip() or line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["Lost"][1:] == ["error", "error"]
    assert "Lost: nowhere is not there" in out
    said = json.loads((suite.parent / "out" / "probe.json").read_text())
    assert [task["name"] for task in said["tasks"]] == ["One", "Two", "Three", "Lost"]
    accuracy = [task["report"]["figures"][0]["accuracy"] for task in said["tasks"][:3]]
    means = {one["group"]: one["accuracy"] for one in said["means"] if one["method"] == "ridge"}
    assert means["near"] == pytest.approx(sum(accuracy[:2]) / 2)
    assert means["far"] == pytest.approx(accuracy[2])
    assert means[None] == pytest.approx(sum(accuracy) / 3)
    assert rows["near"][1] == f"{100 * means['near']:.1f}"
    assert rows["mean of 3 of 4"][-2] == f"{100 * means[None]:.1f}"


def test_flags_go_before_what_a_suite_says(tiny, suite: Path) -> None:
    report = probe_suite(tiny, suite, method="ridge", shots=[1], workers=0, seeds=1, examples=None)
    assert report.columns == [("ridge", 1)]
    assert len(report.failed) == 1
    assert report.results[0].report.model == repr(tiny)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = 3 4", "cannot be read"),
        ('name = "x"', "no [[task]]"),
        ('speed = 1\n[[task]]\nname = "a"\ndata = "digits"', "'speed'"),
        ('[[task]]\nname = "a"\ndata = "digits"\nweight = 2', "'weight'"),
        ('[[task]]\nname = "a"', "no data"),
        ('[[task]]\nname = "a"\ndata = "digits"\n[[task]]\nname = "a"\ndata = "mnist"', "one name"),
    ],
)
def test_a_suite_that_says_something_else_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "suite.toml").write_text(text)
    with pytest.raises(vitrail.VitrailError) as caught:
        read_suite(tmp_path / "suite.toml")
    assert says in str(caught.value)


def test_a_suite_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(vitrail.VitrailError, match="one of vtab"):
        read_suite("nowhere")


def test_vtab_has_its_nineteen_tasks_in_three_groups() -> None:
    vtab = read_suite("vtab")
    groups = [task.group for task in vtab.tasks]
    counts = {group: groups.count(group) for group in dict.fromkeys(groups)}
    assert counts == {"natural": 7, "specialised": 4, "structured": 8}
    assert all(task.data in KNOWN or task.data.startswith("hf:clip-benchmark/wds_") for task in vtab.tasks)
    assert all(task.settings["examples"] == 1000 and task.settings["split"] == "test" for task in vtab.tasks)
