"""`vitrail.probe`: who learns from what, what is chosen where, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests.scoring.probing.making import COLOURS, make_folder
from vitrail.data.opening import open_source
from vitrail.data.samples import Names, Samples
from vitrail.scoring.features import Extractor
from vitrail.scoring.probing.methods import METHODS, make_methods
from vitrail.scoring.probing.problem import gather
from vitrail.scoring.probing.runs import Runs
from vitrail.scoring.probing.sides import Draws, make_sides

QUICK = {"workers": 0, "seeds": 2}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch) -> None:
    monkeypatch.setattr("vitrail.scoring.probing.sgd._LEAST", 40)
    monkeypatch.setattr("vitrail.scoring.probing.sgd._EPOCHS", 5)


def test_every_method_with_every_number_of_shots(tiny, coloured: Path) -> None:
    report = vitrail.probe(tiny, coloured, **QUICK)
    assert [(one.method, one.shots) for one in report.figures] == [
        (name, shots) for name in METHODS for shots in (1, 5, "all")
    ]
    assert (report.learnt, report.judged, report.held, report.classes) == (36, 18, 7, 3)
    assert report.notes == ("10, 25 shots left out: class 'green' has 9 pictures to draw from",)
    for name in METHODS:  # colours are easy
        assert report.figure(name).mean > 0.8
        assert len(report.figure(name, 5).accuracies) == 2
    assert report.figure("ridge").chosen == (1024.0,)
    assert report.figure("ridge").spread is None
    assert "± over 2 seeds" in report.text()
    json.dumps(report.to_json(), allow_nan=False)
    assert vitrail.probe(tiny, coloured, **QUICK).kept


def test_figures_are_the_same_again_and_without_the_cache(tiny, coloured: Path) -> None:
    runs = [vitrail.probe(tiny, coloured, cache=cache, **QUICK) for cache in (True, True, False)]
    accuracies = [[one.accuracies for one in report.figures] for report in runs]
    assert accuracies[0] == accuracies[1] == accuracies[2]


def test_what_is_reported_has_no_part_in_the_choice(tiny, coloured: Path, monkeypatch) -> None:
    """With other labels on the judged side, the same settings are chosen."""
    source = open_source(coloured)
    first = vitrail.probe(tiny, source, l2="sweep", **QUICK)
    judged = source.said("val").rows
    source.samples.labels[judged] = (source.samples.labels[judged] + 1) % 3
    other = vitrail.probe(tiny, source, l2="sweep", **QUICK)
    assert [one.chosen for one in first.figures] == [one.chosen for one in other.figures]
    assert first.figure("ridge").mean > 0.8 > 0.3 > other.figure("ridge").mean


def test_held_out_pictures_and_shots_do_not_meet(tiny, coloured: Path) -> None:
    source = open_source(coloured)
    sides = make_sides(source, None, None).with_held_out(source.samples)
    problem = gather(source, sides, Extractor(tiny), progress=None, workers=0)
    methods = make_methods(METHODS, torch.device("cpu"), l2=1024.0, ks=(1, 5), temperature=0.07)
    runs = Runs(problem, methods, 2, None)
    held = set(np.flatnonzero(problem.held).tolist())
    for method in methods[1:]:
        for seed in range(3):
            assert not held & set(runs.places(method, 5, seed).tolist())
    assert {int(place) for seed in range(9) for place in runs.places(methods[0], 5, seed)} & held  # ridge needs none


@pytest.mark.parametrize(
    ("said", "asked", "learnt", "judged"),
    [
        (("train", "val", "test"), None, 9, 6),  # val judges; test stays untouched
        (("train", "val", "test"), "test", 15, 12),
        (("train", "test"), None, 9, 12),
        (("",), None, 26, 7),  # of 33
    ],
)
def test_sides_are_what_the_data_says(tmp_path: Path, said, asked, learnt: int, judged: int) -> None:
    sizes = {"train": 3, "val": 2, "test": 4, "": 11}
    counts = {f"{split}/{name}".strip("/"): sizes[split] for split in said for name in COLOURS}
    sides = make_sides(open_source(make_folder(tmp_path / "data", counts)), asked, None)
    assert (len(sides.learn), len(sides.judged)) == (learnt, judged)
    assert not set(sides.learn) & set(sides.judged)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=12, max_size=60), st.integers(0, 99), st.randoms())
def test_shots_are_a_function_of_names_and_seed(labels: list[int], seed: int, random) -> None:
    names = [f"{number:03d}.jpg" for number in range(len(labels))]
    samples = _samples(names, labels)
    draws = Draws(samples, np.arange(len(labels)))
    shots = draws.most
    drawn = draws.places(shots, seed)
    assert np.bincount(np.array(labels)[drawn]).tolist() == [
        shots if k in labels else 0 for k in range(max(labels) + 1)
    ]
    assert set(draws.places(max(1, shots - 1), seed)) <= set(drawn)
    order = list(range(len(labels)))
    random.shuffle(order)
    mixed = _samples([names[k] for k in order], [labels[k] for k in order])
    again = Draws(mixed, np.arange(len(labels))).places(shots, seed)
    assert {names[k] for k in drawn} == {names[order[k]] for k in again}


def _samples(names: list[str], labels: list[int]) -> Samples:
    splits = np.full(len(names), -1, np.int8)
    return Samples(Names.of(names), ("a", "b", "c", "d"), np.array(labels, np.int32), splits)


def test_few_shots_alone_compute_few_features_and_the_same_figures(tiny, tmp_path: Path) -> None:
    counts = {f"{split}/{name}": count for split, count in (("train", 40), ("val", 4)) for name in COLOURS}
    folder = make_folder(tmp_path / "data", counts)
    few = vitrail.probe(tiny, folder, shots=[1, 3], **QUICK)
    whole = vitrail.probe(tiny, folder, shots=[1, 3, "all"], **QUICK)
    assert few.learnt < whole.learnt == 120
    for method in METHODS:
        for shots in (1, 3):
            assert few.figure(method, shots).accuracies == whole.figure(method, shots).accuracies


def test_examples_limit_what_is_learnt_from(tiny, coloured: Path) -> None:
    report = vitrail.probe(tiny, coloured, examples=20, method="knn", shots=["all"], **QUICK)
    assert (report.learnt, report.judged) == (20, 18)


def test_a_class_that_was_not_learnt_is_wrong_and_shifts_nothing(tiny, tmp_path: Path) -> None:
    counts = {"train/blue": 8, "train/red": 8, "val/blue": 3, "val/green": 4, "val/red": 5}
    report = vitrail.probe(tiny, make_folder(tmp_path / "data", counts), method="ridge", shots=["all"], **QUICK)
    assert report.figure("ridge").mean == 8 / 12
    assert "'green' cannot be learnt" in report.text()


def test_unreadable_pictures_are_left_out_and_named(tiny, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data", {f"{s}/{c}": 7 for s in ("train", "val") for c in COLOURS})
    for name in ("train/red/03.png", "val/blue/00.png"):
        (folder / name).write_text("not a picture")
    report = vitrail.probe(tiny, folder, method=["ridge", "knn"], shots=[1, "all"], **QUICK)
    assert (report.learnt, report.judged) == (20, 20)
    assert sorted(bad.name for bad in report.skipped) == ["train/red/03.png", "val/blue/00.png"]
    assert report.figure("ridge").mean > 0.8


def fails(model: object, data: object, says: str, **options: object) -> None:
    with pytest.raises(vitrail.VitrailError) as caught:
        vitrail.probe(model, data, **({"workers": 0} | options))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_shots_than_pictures_are_refused_by_the_name_of_the_class(tiny, tmp_path: Path) -> None:
    counts = {"train/blue": 9, "train/red": 3, "val/blue": 2, "val/red": 2}
    folder = make_folder(tmp_path / "data", counts)
    fails(tiny, folder, "class 'red' has 3 pictures to learn from, fewer than 5 shots", shots=[1, 5], method="ridge")
    fails(tiny, folder, "choose --shots up to 3", shots=[5], method="ridge")
    fails(tiny, folder, "beside the 2 of all classes that are held out", shots=[3, "all"])


def test_data_that_no_probe_can_use_is_refused(tiny, coloured: Path, tmp_path: Path) -> None:
    fails(tiny, make_folder(tmp_path / "one", {"train/red": 4, "val/red": 2}), "one class")
    fails(
        tiny,
        make_folder(tmp_path / "bare", {"train/red": 1, "train/blue": 1, "val/red": 1}),
        "too few to hold some out",
    )
    (tmp_path / "flat").mkdir()
    for name in ("a.png", "b.png", "flat/a.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    fails(tiny, tmp_path / "flat", "has no labels")
    fails(tiny, coloured, "no split 'test'", split="test")
    (tmp_path / "several.csv").write_text("path,label,split\na.png,x|y,train\nb.png,x,val\n")
    fails(tiny, tmp_path / "several.csv", "several labels", separator="|")
    gone = make_folder(tmp_path / "gone", {"train/red": 2, "train/blue": 2, "val/red": 1})
    for path in gone.rglob("*.png"):
        path.write_text("not a picture")
    fails(tiny, gone, "none of the 4 pictures", method="ridge")


def test_settings_that_mean_nothing_are_refused(tiny, coloured: Path) -> None:
    for options in ({"shots": [0]}, {"shots": []}, {"seeds": 0}, {"examples": 0}, {"method": "magic"}, {"l2": 0.0}):
        fails(tiny, coloured, "", **options)
    for options in ({"l2": "swept"}, {"ks": [0]}, {"temperature": 0.0}, {"features": "head"}, {"img_size": 32}):
        fails(tiny, coloured, "", **options)


def test_features_that_are_not_numbers_are_refused(coloured: Path) -> None:
    torch.manual_seed(0)
    changes = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 0}
    broken = vitrail.Classifier(vitrail.create("vit_ti16", **changes))
    with torch.no_grad():
        broken.model.norm.bias[3] = float("nan")
    fails(broken, coloured, "the features of 36 pictures are not numbers, the first of 'train/blue/00.png'")


def test_real_features_give_scikit_learns_figures(deit_tiny: Path, imagenet_sample: Path, tmp_path: Path) -> None:
    """One picture of each of 20 classes to learn from, and its mirror image to be judged on."""
    from PIL import ImageOps
    from sklearn.linear_model import Ridge

    for number, path in enumerate(sorted(imagenet_sample.rglob("*.JPEG"))[::50]):
        for split in ("train", "val"):
            place = tmp_path / "data" / split / f"{number:02d}" / "one.png"
            place.parent.mkdir(parents=True)
            picture = Image.open(path).convert("RGB")
            (picture if split == "train" else ImageOps.mirror(picture)).save(place)
    model, source = vitrail.load(deit_tiny), open_source(tmp_path / "data")
    report = vitrail.probe(model, source, method="ridge", shots=[1], seeds=1, batch_size=20, workers=0)
    problem = gather(source, make_sides(source, None, None), Extractor(model), progress=None)
    x, q = (part.double().numpy() for part in (problem.learn, problem.judged))
    q, x = (np.pad((part - x.mean(0)) / (x.std(0) + 1e-5), ((0, 0), (0, 1)), constant_values=100) for part in (q, x))
    theirs = Ridge(alpha=1024, fit_intercept=False).fit(x, 2 * np.eye(20) - 1).predict(q).argmax(axis=1)
    assert report.figure("ridge", 1).mean == (theirs == np.arange(20)).mean() > 0.8
