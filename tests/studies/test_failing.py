"""Runs that fail: told once, in the words of the study file, and not tried again with other seeds in vain."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.studies.making import write_study
from vitrail.cli import main
from vitrail.errors import NO_MEMORY, ConfigError, DataError, ShortMemoryError, VitrailError
from vitrail.studies import study as studying
from vitrail.studies.plan import read_plan
from vitrail.studies.side_by_side import Task
from vitrail.studies.work import Work
from vitrail.studies.workplace import Failure
from vitrail.training.loop import Trainer
from vitrail.training.start import configured

pytestmark = pytest.mark.usefixtures("no_reports")

WIDTHS = """
data = "data"
recipe = "base.toml"
seeds = [0, 1, 2]
choose = "optimiser.lr"
vary.optimiser.lr = [1e-3, 1e-2]
[rows.narrow]
architecture.embed_dim = 16
[rows.wide]
batch_size = 6
"""


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Trainer], None]], list[Path]]:
    """Calls something before each first step, and gives the runs in which it did."""

    def install(before: Callable[[Trainer], None]) -> list[Path]:
        tried: list[Path] = []
        original = Trainer.train_step

        def step(trainer: Trainer, *rest: Any) -> None:
            if trainer.progress.step == 0:
                tried.append(trainer.checkpoints.folder.parent)
                before(trainer)
            original(trainer, *rest)

        monkeypatch.setattr(Trainer, "train_step", step)
        return tried

    return install


def ask_for_an_exabyte(trainer: Trainer) -> None:
    if trainer.recipe.batch_size == 6:
        torch.empty(2**60, dtype=torch.uint8)


def test_what_has_no_room_is_tried_once_and_told_once(
    tmp_path: Path, breaking: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tried, file, out = breaking(ask_for_an_exabyte), write_study(tmp_path, WIDTHS), tmp_path / "out"
    assert main(["study", str(file), "--out", str(out), "--device", "cpu", "--json"]) == 1
    said = capsys.readouterr()
    assert len(tried) == 6 + 1
    found = json.loads(said.out)
    assert [row["row"] for row in found["rows"]] == ["narrow"]
    assert len(found["failed"]) == 6
    words = "there is not enough memory: take smaller batches (rows.wide.batch_size), smaller pictures or a smaller"
    progress, last = (line for line in said.err.splitlines() if "fail" in line)
    assert f"wide-lr-0.001/seed-0: failed: {words}" in progress
    assert progress.endswith("; not tried: 5 more, of other seeds or learning rates")
    assert last.startswith(f"vitrail: {out}/runs/wide-lr-0.001/seed-0 and 5 more failed: {words}")
    assert "--" not in said.err


def test_room_that_one_of_its_kind_had_another_may_have(tmp_path: Path, breaking: Any) -> None:
    def later(trainer: Trainer) -> None:
        if trainer.recipe.seed and trainer.recipe.batch_size == 6:
            ask_for_an_exabyte(trainer)

    tried = breaking(later)
    result = vitrail.study(write_study(tmp_path, WIDTHS), out=tmp_path / "out", device="cpu")
    assert len(tried) == 12
    assert [row.n for row in result.rows] == [3, 1]


def test_a_loss_that_is_not_finite_says_nothing_of_other_seeds(tmp_path: Path, breaking: Any) -> None:
    def diverge(trainer: Trainer) -> None:
        if trainer.recipe.seed < 2:
            raise VitrailError("not finite: lower the learning rate, or use --precision fp32")

    tried, lines = breaking(diverge), []
    text = WIDTHS.replace("seeds = [0, 1, 2]", "seeds = [0, 1, 2]\nsettings.precision = 'bf16'")
    result = vitrail.study(write_study(tmp_path, text), out=tmp_path / "out", device="cpu", say=lines.append)
    assert len(tried) == 12
    assert [row.n for row in result.rows] == [1, 1]
    assert (
        sum('failed: not finite: lower the learning rate, or use settings.precision = "fp32"' in x for x in lines) == 8
    )


@pytest.mark.parametrize(
    ("kind", "calls", "hint"),
    [(ConfigError, 1, ""), (DataError, 1, ""), (ShortMemoryError, 3, ", or fewer --jobs"), (VitrailError, 3, "")],
)
def test_beside_others_want_of_memory_says_nothing_of_those_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], calls: int, hint: str
) -> None:
    """They had a part of it. What is wrong by itself is wrong for all."""
    tried: list[Path] = []

    def fail(tasks: Iterator[tuple[int, Task]], *place: Any) -> None:
        for number, task in tasks:
            tried.append(task.folder)
            place[-1](number, Failure("it is so", kind))

    monkeypatch.setattr(studying, "train_side_by_side", fail)
    text = 'data = "data"\nrecipe = "base.toml"\nseeds = [0, 1, 2]'
    with pytest.raises(VitrailError, match=f"no run of .*study.toml came to an end: it is so{hint}$"):
        vitrail.study(write_study(tmp_path, text), out=tmp_path / "out", device="cpu", jobs=2)
    assert len(tried) == calls


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ("settings.batch_size = 200", "settings.batch_size = "),
        ("[rows.a]\n[rows.b]\nbatch_size = 200", "row 'b': .*: rows.b.batch_size = "),
        ("vary.batch_size = [4, 200]", "row 'batch_size 200': .*: vary.batch_size = "),
    ],
)
def test_a_batch_that_is_too_large_is_refused_before_anything_is_trained(tmp_path: Path, rows: str, place: str) -> None:
    text = f'data = "data"\nrecipe = "base.toml"\n{rows}'
    file, out = write_study(tmp_path, text, **{"data.val_fraction": 0.0}), tmp_path / "out"
    with pytest.raises(ConfigError, match=rf"study.toml: .*{place}60 works$"):  # two classes of 30
        vitrail.study(file, out=out, device="cpu")
    assert not out.exists()
    file.write_text(re.sub("200", "60", text))
    assert vitrail.study(file, out=out, device="cpu").failed == {}


def test_pictures_of_one_class_are_no_fault_of_a_row(tmp_path: Path) -> None:
    file = write_study(tmp_path, 'data = "data"\nrecipe = "base.toml"\n[rows.a]\n[rows.b]\nepochs = 2')
    for part in ("train", "test"):
        for picture in (tmp_path / "data" / part / "kind 1").iterdir():
            picture.unlink()
        (tmp_path / "data" / part / "kind 1").rmdir()
    with pytest.raises(DataError, match=r"^\S*data has only one class, 'kind 0'"):
        vitrail.study(file, out=tmp_path / "out", device="cpu")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (NO_MEMORY.partition(",")[0], "there is not enough memory: take smaller batches (rows.a.batch_size)"),
        (
            "choose a larger --accumulate, a smaller --batch-size or",
            "choose a larger vary.accumulate, a smaller rows.a.b",
        ),
        ("--batch-size 60 works (batch_size, in a recipe)", "rows.a.batch_size = 60 works"),
        ("use --precision fp32", 'use settings.precision = "fp32"'),
        ("leave it out, --no-whiten", "leave it out, settings.whiten = false"),
        ("go on with --resume runs/x, or choose another --out", "go on with --resume runs/x, or choose another --out"),
    ],
)
def test_flags_are_told_as_the_keys_of_the_file(tmp_path: Path, said: str, told: str) -> None:
    file = write_study(tmp_path, 'recipe = "base.toml"\nvary.accumulate = [1]\nrows.a.batch_size = 4')
    (row,) = read_plan(file).rows
    (choice,) = row.choices
    work = Work(row, choice, 0, tmp_path, configured(choice.recipe, ["a", "b"]))
    assert work.in_the_file(said).startswith(told)
    for key, value in re.findall(r"settings\.(\w+) = (\S+)", told):  # and the file takes it so
        file.write_text(f'recipe = "base.toml"\nsettings.{key} = {value}')
        assert getattr(read_plan(file).rows[0].choices[0].recipe, key) == json.loads(value)
