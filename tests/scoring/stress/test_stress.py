"""`vitrail.stress`: figures that `evaluate` has too, the same for any batch, kept on the disk, of several models."""

import csv
import json
import statistics

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.data.opening import open_source
from vitrail.errors import DataError, VitrailError
from vitrail.scoring.stress.baseline import ALEXNET, Baseline, read_baseline
from vitrail.scoring.stress.corruptions import CORRUPTIONS
from vitrail.scoring.stress.plan import TESTS, Trial, chosen_tests, shuffle_grids
from vitrail.scoring.stress.record import Record
from vitrail.scoring.stress.subject import Outcome, limited
from vitrail.scoring.stress.ways import Ways

QUICK = {"only": ["occlusion", "shuffle"], "seeds": 2, "workers": 0}


@pytest.fixture(scope="module")
def whole(vit, resnet, coloured, tmp_path_factory):
    """Everything, of both models."""
    out = tmp_path_factory.mktemp("whole") / "stress"
    models = {"vit": vit, "resnet": resnet}
    return vitrail.stress(models, coloured, seeds=2, steps=2, batch_size=32, workers=0, out=out), out


def test_pictures_as_they_are_have_exactly_the_accuracy_of_evaluate(vit, resnet, coloured) -> None:
    report = vitrail.stress({"vit": vit, "resnet": resnet}, coloured, only="scale", batch_size=8, workers=0)
    for name, model in (("vit", vit), ("resnet", resnet)):
        scores = vitrail.evaluate(model, coloured, batch_size=8, workers=0).scores  # the last batch is not full
        assert report.model(name).clean.accuracy == scores.top1
        assert report.model(name).clean.loss == scores.loss
        assert report.model(name).clean.pictures == scores.pictures == 21


def test_every_test_has_its_curves_and_levels(whole) -> None:
    report, _ = whole
    assert report.tests == tuple(TESTS)
    curves = {(c.test, c.series) for c in report.model("vit").curves}
    wanted = {("corruptions", name) for name in CORRUPTIONS} | {("occlusion", "blanked"), ("occlusion", "removed")}
    wanted |= {("salient", "most"), ("salient", "least")}
    wanted |= {(test, "") for test in ("shuffle", "style", "patch", "rotation", "scale")}
    assert curves == wanted
    assert {(c.test, c.series) for c in report.model("resnet").curves} == wanted - {("occlusion", "removed")}
    assert "resnet has no sequence" in report.notes[0]
    levels = [point.level for point in report.model("vit").curve("occlusion", "removed").points]
    assert levels == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert [point.level for point in report.model("vit").curve("shuffle").points] == [2, 4, 8]
    assert len(report.model("vit").curve("shuffle").at(2).outcomes) == 2
    assert len(report.model("vit").curve("salient", "most").at(0.5).outcomes) == 1


def test_mean_and_spread_are_over_the_seeds(whole) -> None:
    point = whole[0].model("vit").curve("occlusion", "blanked").at(0.5)
    assert point.mean == statistics.fmean(one.right / 21 for one in point.outcomes)
    assert point.spread == statistics.stdev(point.accuracies)
    assert whole[0].model("vit").curve("scale").at(0.5).spread is None


def test_the_adversarial_patch_raises_the_loss(whole) -> None:
    for one in whole[0].models:
        losses = [one.clean.loss, *(point.loss for point in one.curve("patch").points)]
        assert losses[0] <= losses[1] < losses[-1]


def test_the_folder_has_tables_a_plot_and_what_could_not_be_read(whole) -> None:
    report, out = whole
    assert {path.name for path in out.iterdir()} == {"stress.json", "stress.csv", "stress.png", "trials.jsonl"}
    said = json.loads((out / "stress.json").read_text(), parse_constant=pytest.fail)
    assert said == json.loads(json.dumps(report.to_json()))
    assert [one["name"].endswith("bad.png") for one in said["models"][0]["skipped"]] == [True]
    with open(out / "stress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len((out / "trials.jsonl").read_text().splitlines())
    assert Image.open(out / "stress.png").size[0] > 1000
    text = report.text()
    assert "Random patches dropped (panes of a 4 × 4 grid)" in text
    assert "eps 1" in text


def test_figures_do_not_depend_on_the_batch_or_on_the_other_pictures(vit, coloured) -> None:
    reports = [vitrail.stress(vit, coloured, **QUICK, batch_size=size) for size in (4, 64)]
    first, second = (one.models[0].curves for one in reports)
    assert first == second or all(
        abs(a.mean - b.mean) <= 1 / 21
        for x, y in zip(first, second, strict=True)
        for a, b in zip(x.points, y.points, strict=True)
    )  # sums of another order may differ in the last bits, and an answer with them


def test_a_larger_number_of_pictures_has_all_of_a_smaller_one(coloured) -> None:
    subset = open_source(coloured).said("val")
    few, more = (set(limited(subset, count).rows.tolist()) for count in (5, 11))
    assert (len(few), len(more)) == (5, 11)
    assert few < more
    assert len(limited(subset, 1000)) == len(subset)


def test_the_same_call_goes_on_where_it_was_killed(vit, coloured, tmp_path, monkeypatch) -> None:
    wanted = vitrail.stress(vit, coloured, **QUICK)
    out, ran = tmp_path / "out", []
    real = Ways.run

    def counted(self, trial, done):
        if len(ran) == 7:
            raise KeyboardInterrupt
        ran.append(trial)
        return real(self, trial, done)

    monkeypatch.setattr(Ways, "run", counted)
    with pytest.raises(KeyboardInterrupt):
        vitrail.stress(vit, coloured, **QUICK, out=out)
    assert [path.name for path in out.iterdir()] == ["trials.jsonl"]  # results are whole or absent
    with open(out / "trials.jsonl", "a") as file:
        file.write('{"trial": {"test": "shuf')  # the line that was being written
    monkeypatch.setattr(Ways, "run", lambda self, trial, done: (ran.append(trial), real(self, trial, done))[1])
    assert vitrail.stress(vit, coloured, **QUICK, out=out).models == wanted.models
    assert (
        len([trial for trial in ran if trial.test != "clean"]) == len(set(ran)) - 1
    )  # each once; the clean one names what is bad
    ran.clear()
    assert vitrail.stress(vit, coloured, **QUICK, out=out).models == wanted.models
    assert {trial.test for trial in ran} <= {"clean"}


def test_trials_of_other_weights_other_pictures_or_another_attack_are_not_taken(
    vit, coloured, tmp_path, monkeypatch
) -> None:
    how = {"only": "patch", "seeds": 1, "workers": 0, "steps": 1, "out": tmp_path / "out"}
    vitrail.stress(vit, coloured, **how)
    ran = []
    real = Ways.run
    monkeypatch.setattr(Ways, "run", lambda self, trial, done: (ran.append(trial), real(self, trial, done))[1])

    def repeated(model, **changes) -> int:
        ran.clear()
        vitrail.stress(model, coloured, **{**how, **changes})
        return sum(trial.test == "patch" for trial in ran)

    assert repeated(vit) == 0
    assert repeated(vit, eps=0.5) == 4
    assert repeated(vit, pictures=5) == 4
    other = vitrail.Classifier(vitrail.create("vit_ti16", **_config(vit)), classes=vit.classes)
    other.model.load_state_dict(vit.model.state_dict())
    assert repeated(other) == 0  # equal weights
    with torch.no_grad():
        other.model.head.bias.add_(1)
    assert repeated(other) == 4
    assert repeated(vit, overwrite=True) == 4


def _config(classifier) -> dict:
    return {key: value for key, value in classifier.model.config.to_json().items() if key not in ("backbone",)}


def test_a_record_reads_what_is_whole_and_nothing_else(tmp_path) -> None:
    path, trial = tmp_path / "trials.jsonl", Trial("shuffle", "", 4, 1)
    Record(path).add("mark", trial, {"eps": 1.0}, Outcome(3, 4, float("nan")))
    path.write_text(path.read_text() + "nonsense\n[1]\n{}\n" + path.read_text()[:30])
    record = Record(path)
    assert record.get("mark", trial, {"eps": 1.0}).right == 3
    assert record.get("mark", trial, {}) is None
    assert record.get("other", trial, {"eps": 1.0}) is None
    record.add("mark", trial._replace(seed=2), {}, Outcome(1, 4, 0.5))
    assert Record(path).get("mark", trial._replace(seed=2), {}) == Outcome(1, 4, 0.5)


def test_mce_is_the_mean_of_errors_over_those_of_the_baseline(whole, tmp_path) -> None:
    report, _ = whole
    assert report.baseline.name == "vit"  # the first of several
    assert report.baseline.mce(report.model("vit").corruption_errors) == pytest.approx(1)
    errors = report.model("resnet").corruption_errors
    first = report.model("vit").corruption_errors
    assert report.baseline.mce(errors) == pytest.approx(np.mean([errors[name] / first[name] for name in CORRUPTIONS]))
    path = tmp_path / "errors.json"
    path.write_text(json.dumps({name: [0.1, 0.2, 0.3, 0.4, 0.5] for name in CORRUPTIONS}))
    assert read_baseline(path).errors["fog"] == pytest.approx(0.3)
    assert Baseline("AlexNet", ALEXNET).mce(ALEXNET) == pytest.approx(1)
    assert np.mean(list(ALEXNET.values())) == pytest.approx(0.7889, abs=1e-3)  # as published: 78.9%


@pytest.mark.parametrize("text", ["[]", "{", '{"fog": 0.1}', json.dumps(dict.fromkeys(CORRUPTIONS, 50))])
def test_a_baseline_that_is_none_is_refused_in_one_line(text: str, tmp_path) -> None:
    path = tmp_path / "errors.json"
    path.write_text(text)
    with pytest.raises(VitrailError, match=r"errors\.json"):
        read_baseline(path)


def test_panes_that_can_be_shuffled_divide_both_sides() -> None:
    assert shuffle_grids((224, 224)) == [2, 4, 7, 8, 14]
    assert shuffle_grids((32, 32)) == [2, 4, 8]
    assert shuffle_grids((28, 14)) == [2, 7, 14]
    assert shuffle_grids((17, 17)) == []


def test_bad_input_is_refused_in_one_line(vit, coloured, tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    cases = [
        ({"only": "rain"}, "there is no test 'rain'"),
        ({"eps": 2.0}, "eps=2 must be above 0 and at most 1"),
        ({"pictures": 0}, "at least 1"),
        ({"grid": 99}, "must be from 1 to 16"),
        ({"baseline": "resnet", "only": "corruptions"}, "neither alexnet"),
        ({"out": tmp_path / "mine"}, "holds more than an earlier stress"),
    ]
    for how, words in cases:
        with pytest.raises(VitrailError, match=words):
            vitrail.stress(vit, coloured, workers=0, **how)
    with pytest.raises(VitrailError, match="not there"):
        vitrail.stress(vit, tmp_path / "absent", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(VitrailError, match="no model"):
        vitrail.stress([], coloured)
    with pytest.raises(VitrailError, match="given twice"):
        vitrail.stress(["a", "a"], coloured)
    other = vitrail.Classifier(vit.model, classes=["x", "y", "z"])
    with pytest.raises(DataError, match="knows no class"):
        vitrail.stress(other, coloured, ignore_unknown=True, workers=0)
    assert chosen_tests("shuffle, occlusion") == ("occlusion", "shuffle")


KINDS = {
    "registers, distilled": {"registers": 2, "distilled": True},
    "mean, RoPE": {"class_token": False, "pool": "mean", "positions": "none", "rope": True, "norm": "rms"},
    "not square": {"img_size": (16, 32)},
    "stem of convolutions": {"conv_stem": (8, 8), "patch_size": 2},
    "patches that overlap": {"patch_size": 8, "stride": 4},
    "attention pooling": {"class_token": False, "pool": "map"},
    "grey": {"in_chans": 1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_can_be_stressed(kind: str, coloured) -> None:
    torch.manual_seed(0)
    small = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
    model = vitrail.Classifier(
        vitrail.create("vit_ti16", zero_head=False, **{**small, **KINDS[kind]}), classes=["blue", "green", "red"]
    )
    only = [test for test in TESTS if test != "corruptions"]
    report = vitrail.stress(model, coloured, only=only, seeds=1, steps=1, pictures=6, workers=0)
    assert report.models[0].grid == model.model.config.grid == report.grid
    assert {curve.test for curve in report.models[0].curves} == set(only)


def test_pictures_of_classes_that_one_model_does_not_know_are_left_out_for_all(vit, coloured) -> None:
    torch.manual_seed(0)
    small = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 2}
    other = vitrail.Classifier(vitrail.create("vit_ti16", **small), classes=["green", "blue"])
    with pytest.raises(DataError, match="red"):
        vitrail.stress({"vit": vit, "other": other}, coloured, only="scale", workers=0)
    how = {"only": "scale", "workers": 0, "ignore_unknown": True}
    report = vitrail.stress({"vit": vit, "other": other}, coloured, pictures=10, **how)
    assert (report.pictures, report.available) == (10, 14)
    assert [one.clean.pictures for one in report.models] == [10, 10]
    assert report.notes == ("of classes that other does not know, left out: 8 pictures of 'red'",)


def test_a_source_that_cannot_tell_whether_it_changed_begins_anew_and_says_so(
    vit, coloured, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("vitrail.scoring.stress.stress.mark_of", lambda *_: None)
    report = vitrail.stress(vit, coloured, only="scale", workers=0, out=tmp_path / "out")
    assert "begins anew" in report.notes[-1]
    assert not (tmp_path / "out" / "trials.jsonl").exists()
