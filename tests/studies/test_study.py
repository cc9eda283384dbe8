"""Studies: every run once, however often they were stopped; what is chosen, by validation; one table, one plot."""

import csv
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitrail
from tests.studies.making import BASE, make_data, write_study
from tests.studies.test_plan import STUDIES
from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.model.walk import flops, parameters
from vitrail.studies import study as studying
from vitrail.studies import workplace
from vitrail.studies.plan import read_plan
from vitrail.studies.results import training_flops
from vitrail.training import locks
from vitrail.training.locks import FolderLock
from vitrail.training.loop import Trainer
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_files import make_recipe
from vitrail.training.run import Run
from vitrail.training.start import configured

pytestmark = pytest.mark.usefixtures("no_reports")

WIDTHS = """
title = "Two widths"
data = "data"
recipe = "base.toml"
seeds = [0, 1]
[rows.narrow]
architecture.embed_dim = 16
[rows.wide]
"""


def test_a_study_is_ordinary_runs_a_table_and_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = write_study(tmp_path, WIDTHS), tmp_path / "out"
    assert main(["study", str(file), "--out", str(out), "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "4 runs to train, 64 pictures" in said.err
    head, narrow, wide, last = said.out.splitlines()
    assert head.split("  ")[0] == "row"
    assert "test accuracy" in head
    assert narrow.startswith("narrow ")
    assert wide.startswith("wide ")
    assert "study.png" in last
    saved = json.loads((out / "study.json").read_text())
    with (out / "study.csv").open() as table:
        rows = list(csv.DictReader(table))
    for name, row, line in zip(("narrow", "wide"), saved["rows"], rows, strict=True):
        runs = [Run.open(out / "runs" / name / f"seed-{seed}") for seed in (0, 1)]
        assert all(run.is_complete for run in runs)
        # the test part, judged anew by the command that judges any model
        scores = [vitrail.evaluate(run.best, tmp_path / "data", split="test").scores.top1 for run in runs]
        assert row["score"] == pytest.approx(statistics.fmean(scores))
        assert row["spread"] == pytest.approx(statistics.stdev(scores))
        model = runs[0].best.model
        assert row["parameters"] == int(line["parameters"]) == sum(p.numel() for p in model.parameters())
        assert row["training_flops"] == 3 * flops(model.config) * 4 * 4
        assert (row["row"], row["n"], line["n"], line["row"]) == (name, 2, "2", name)
        assert float(line["accuracy"]) == row["score"]
    assert saved["measure"] == "accuracy on test"
    assert Image.open(out / "study.png").size[0] > 600


def test_a_second_call_trains_nothing_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = write_study(tmp_path, WIDTHS.replace("[0, 1]", "[0]")), tmp_path / "out"
    first = vitrail.study(file, out=out)

    def refuse(*rest: Any, **more: Any) -> None:
        raise AssertionError("nothing is left to do")

    monkeypatch.setattr(Trainer, "train_step", refuse)
    monkeypatch.setattr(workplace, "evaluate", refuse)
    lines: list[str] = []
    assert vitrail.study(file, out=out, say=lines.append).to_json() == first.to_json()
    assert lines[0] == "all 2 runs are complete"


def test_a_study_that_was_stopped_goes_on_and_comes_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_study(tmp_path, WIDTHS)
    whole = vitrail.study(file, out=tmp_path / "whole")
    original, steps = Trainer.train_step, []

    def stop_at(trainer: Trainer, *rest: Any) -> None:
        if len(steps) == 6:  # in the middle of the second run
            raise KeyboardInterrupt
        steps.append(1)
        original(trainer, *rest)

    monkeypatch.setattr(Trainer, "train_step", stop_at)
    with pytest.raises(KeyboardInterrupt):
        vitrail.study(file, out=tmp_path / "parts")
    monkeypatch.setattr(Trainer, "train_step", original)
    lines: list[str] = []
    parts = vitrail.study(file, out=tmp_path / "parts", say=lines.append)
    assert "3 runs to train" in lines[0]
    for one, other in zip(whole.rows, parts.rows, strict=True):
        assert one.score == other.score
        for run in one.runs:
            weights = [(tmp_path / name / run.folder / "last" / "model.safetensors") for name in ("whole", "parts")]
            assert weights[0].read_bytes() == weights[1].read_bytes()


def test_runs_whose_settings_changed_are_refused_or_trained_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = write_study(tmp_path, WIDTHS.replace("[0, 1]", "[0]")), tmp_path / "out"
    assert main(["study", str(file), "--out", str(out)]) == 0
    kept = (out / "runs" / "wide" / "seed-0" / "run.json").read_bytes()
    file.write_text(file.read_text().replace("embed_dim = 16", "embed_dim = 48"))
    capsys.readouterr()
    assert main(["study", str(file), "--out", str(out)]) == 1
    words = capsys.readouterr().err
    assert words.count("\n") == 1
    assert "seed-0 was trained with other settings (architecture.embed_dim was 16, now 48): --again trains" in words
    assert main(["study", str(file), "--out", str(out), "--again"]) == 0
    assert Run.open(out / "runs" / "narrow" / "seed-0").recipe.architecture["embed_dim"] == 48
    assert (out / "runs" / "wide" / "seed-0" / "run.json").read_bytes() == kept


def test_each_run_says_how_many_threads_it_had(tmp_path: Path) -> None:
    out = tmp_path / "out"
    vitrail.study(write_study(tmp_path, WIDTHS.replace("[0, 1]", "[0]")), out=out, device="cpu")
    rows = json.loads((out / "study.json").read_text())["rows"]
    assert [run["threads"] for row in rows for run in row["runs"]] == [torch.get_num_threads()] * 2


def test_two_studies_in_one_folder_are_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = write_study(tmp_path, WIDTHS), tmp_path / "out"
    out.mkdir()
    other = FolderLock(out)
    monkeypatch.setattr(locks, "_PATIENCE", 0.0)
    with pytest.raises(VitrailError, match=r"another process is writing .*, stop it, or choose another --out"):
        vitrail.study(file, out=out)
    other.release()


def test_validation_chooses_and_the_test_part_sees_what_was_chosen_alone(tmp_path: Path) -> None:
    text = """
        data = "data"
        recipe = "base.toml"
        choose = "optimiser.lr"
        [vary]
        optimiser.lr = [1e-300, 3e-3]
        [plot]
        x = "optimiser.lr"
        log = true
        """
    out = tmp_path / "out"
    (row,) = vitrail.study(write_study(tmp_path, text, steps=8), out=out).rows
    vals = {one.value: one.val for one in row.tried}
    assert row.chosen == max(vals, key=vals.__getitem__) == 3e-3
    (run,) = row.runs
    assert run.folder == "runs/lr-0.003/seed-0"
    assert run.val == vals[3e-3]
    tested = {
        place.parent.parent.name: "test" in json.loads(place.read_text()) for place in out.glob("runs/*/*/run.json")
    }
    assert tested == {"lr-1e-300": False, "lr-0.003": True}


def test_a_run_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = Trainer.train_step

    def fail(trainer: Trainer, *rest: Any) -> None:
        if trainer.recipe.seed == 1:
            raise VitrailError("the loss was not finite")
        original(trainer, *rest)

    monkeypatch.setattr(Trainer, "train_step", fail)
    file = write_study(tmp_path, WIDTHS.replace("[rows.wide]\n", ""))
    assert main(["study", str(file), "--out", str(tmp_path / "out"), "--json"]) == 1
    said = capsys.readouterr()
    assert "narrow/seed-1 failed: the loss was not finite" in said.err
    found = json.loads(said.out)
    assert [row["n"] for row in found["rows"]] == [1]
    assert len(found["failed"]) == 1


def test_what_cannot_be_built_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    file = write_study(tmp_path, WIDTHS + "architecture.num_heads = 5")
    with pytest.raises(VitrailError, match=r"study.toml: rows.wide.architecture.num_heads: embed_dim=32 is no"):
        vitrail.study(file, out=tmp_path / "out")
    stages = WIDTHS + "[[settings.stages]]\nuntil = 0.5\nimg_size = 17"
    with pytest.raises(VitrailError, match=r"study.toml: settings.stages: stages: img_size=.17, 17. is not "):
        vitrail.study(write_study(tmp_path, stages), out=tmp_path / "out")
    text = WIDTHS.partition("[rows")[0] + 'choose = "ema"\nvary.ema = [0.0, 0.5]\nsettings.data.val_fraction = 0'
    with pytest.raises(VitrailError, match="val_fraction = 0 leaves no validation part to choose by"):
        vitrail.study(write_study(tmp_path, text), out=tmp_path / "out")
    with pytest.raises(VitrailError, match="data: it is missing"):
        vitrail.study(write_study(tmp_path, WIDTHS.replace('data = "data"', "")), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_smaller_pictures_in_the_first_stages_are_counted_as_such() -> None:
    recipe = make_recipe({}, BASE | {"img_size": 16, "stages": [{"until": 0.5, "img_size": 8}]})
    config = configured(recipe, ["a", "b"])
    small, large = flops(config.replace(img_size=8)), flops(config)
    assert training_flops(recipe, config, 10) == 3 * recipe.batch_size * (5 * small + 5 * large)


def test_patches_that_are_left_out_are_not_counted() -> None:
    stages = [{"until": 0.5, "patch_drop": 0.5}, {"until": 0.8, "patch_drop": 0.0}]
    recipe = make_recipe({}, BASE | {"img_size": 16, "stages": stages, "architecture.patch_drop": 0.25})
    config = configured(recipe, ["a", "b"])
    wanted = 3 * recipe.batch_size * flops(config) * (5 * 0.5 + 3 + 2 * 0.75)
    assert training_flops(recipe, config, 10) == pytest.approx(wanted)


def tiny(recipe: Recipe) -> Recipe:
    """What a study varies stays; what costs time shrinks."""
    data, schedule = dataclasses.replace(recipe.data, workers=0), dataclasses.replace(recipe.schedule, warmup_steps=0)
    architecture = {**recipe.architecture, "layers": (1, 1)} if "layers" in recipe.architecture else recipe.architecture
    if "depth" in architecture:
        architecture = {**architecture, "depth": 1}
    small = {"data": data, "schedule": schedule, "architecture": architecture, "eval_epochs": 100.0}
    return dataclasses.replace(recipe, steps=2, batch_size=4, **small)


@pytest.mark.parametrize(
    ("name", "rows"),
    [("data", (9, 12)), ("compute", (0, 5)), ("positions", (4, 5)), ("class_token", (0, 1))],
)
def test_the_studies_on_cifar10_run_on_pictures_of_that_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, rows: tuple[int, int]
) -> None:
    plan = read_plan(STUDIES / f"{name}.toml")
    some = []
    for row in (plan.rows[number] for number in rows):
        choices = [dataclasses.replace(one, recipes={0: tiny(one.recipes[0])}) for one in row.choices[:2]]
        some.append(dataclasses.replace(row, choices=tuple(choices)))
    small = dataclasses.replace(plan, rows=tuple(some), seeds=(0,))
    monkeypatch.setattr(studying, "read_plan", lambda file: small)
    result = vitrail.study("x.toml", out=tmp_path / "out", data=make_data(tmp_path / "data", size=32), device="cpu")
    assert [row.row for row in result.rows] == [row.name for row in some]
    for row, asked in zip(result.rows, some, strict=True):
        config = configured(asked.choices[0].recipes[0], ["kind 0", "kind 1"])
        assert row.parameters == parameters(config)
        assert 0 <= row.score <= 1
        with torch.inference_mode():  # saved and loaded again
            assert Run.open(tmp_path / "out" / row.runs[0].folder).best.model.config == config
    assert (tmp_path / "out" / "study.png").stat().st_size > 10_000
