"""Engines: the same logits and features whatever computes, and what `auto` takes."""

from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests.shipping.conftest import KINDS, classifier_of
from vitrail.errors import VitrailError
from vitrail.model.merging import merged
from vitrail.scoring.features import headless
from vitrail.shipping import engines, engines_kept
from vitrail.shipping.engines import FEW, TorchEngine, choose, open_engine
from vitrail.shipping.export_fast import fast_graph
from vitrail.shipping.quantise import stand_ins

pytest.importorskip("openvino", reason="openvino is not installed: uv run --all-extras pytest")
pytest.importorskip("nncf", reason="nncf is not installed: uv run --all-extras pytest")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def wanted(classifier: vitrail.Classifier, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values = torch.from_numpy(classifier.preprocessing.normalise(pixels))
    with torch.no_grad():
        logits = classifier.model(values).numpy()
        with headless(classifier.model):
            return logits, classifier.model(values).numpy()


@pytest.mark.parametrize("kind", [*KINDS, "resnet"])
def test_torch_gives_what_the_model_and_its_head_read(kind: str) -> None:
    classifier = classifier_of(kind)
    pixels = stand_ins(classifier.preprocessing, 3)
    logits, features = wanted(classifier, pixels)
    with choose(classifier, "torch") as engine:
        np.testing.assert_allclose(engine.run(pixels), logits, atol=1e-5)
        np.testing.assert_allclose(engine.features(pixels), features, atol=1e-5)
    assert torch.equal(torch.from_numpy(wanted(classifier, pixels)[0]), torch.from_numpy(logits))  # it is as it was


@pytest.mark.parametrize("kind", [*KINDS, "resnet"])
def test_the_quick_graph_is_the_same_function(kind: str) -> None:
    classifier = classifier_of(kind)
    pixels = stand_ins(classifier.preprocessing, 3)
    with torch.no_grad():
        made = fast_graph(classifier.model, classifier.preprocessing)(torch.from_numpy(pixels))
    for one, other in zip(made, wanted(classifier, pixels), strict=True):
        np.testing.assert_allclose(one.numpy(), other, atol=1e-5)


@pytest.mark.parametrize(("name", "bound"), [("onnx", 1e-4), ("openvino", 1e-4), ("int8", 0.2)])
def test_every_engine_is_near_the_model_and_is_made_once(name: str, bound: float, plain, monkeypatch) -> None:
    pixels = stand_ins(plain.preprocessing, 5)
    logits, features = wanted(plain, pixels)
    with choose(plain, name) as engine:
        assert engine.name == name
        assert (engine.classes, engine.preprocessing) == (plain.classes, plain.preprocessing)
        for some in (pixels, pixels[:1]):
            made = engine.both(some)
            assert np.abs(made[0] - logits[: len(some)]).max() <= bound * np.abs(logits).max()
            assert np.abs(made[1] - features[: len(some)]).max() <= bound * np.abs(features).max()
        first = engine.run(pixels)
    monkeypatch.setattr(engines_kept, "_make", lambda *args: pytest.fail("it is made a second time"))
    with choose(plain, name) as engine:
        np.testing.assert_array_equal(engine.run(pixels), first)


def test_auto_takes_the_quickest_for_many_pictures_and_torch_for_a_few(plain, monkeypatch) -> None:
    monkeypatch.setattr(engines_kept, "kept_engine", lambda classifier, kind: kind)
    assert choose(plain, "auto", pictures=FEW - 1).name == "torch"
    assert choose(plain, "auto", pictures=FEW) == "merged"
    assert choose(plain, "auto") == "merged"
    assert choose(plain, "auto", features=True) == "int8"
    monkeypatch.setattr(engines_kept, "int8_is_quick", lambda classifier: False)
    assert choose(plain, "auto").name == "torch"


@pytest.mark.parametrize(("kind", "name"), [("plain", "int8"), ("deep", "merged")])
def test_where_int8_is_too_far_from_the_model_the_engine_stays_in_float(kind: str, name: str, monkeypatch) -> None:
    monkeypatch.setattr(engines_kept, "FARTHEST", 0.0)
    classifier = classifier_of(kind)
    with choose(classifier, name) as engine:
        assert engine.name == "openvino"
        assert "float32" in engine.detail
        pixels = stand_ins(classifier.preprocessing, 2)
        np.testing.assert_allclose(engine.run(pixels), wanted(classifier, pixels)[0], atol=1e-4)


def test_merged_tokens_give_what_they_give_in_torch(monkeypatch) -> None:
    monkeypatch.setattr(engines_kept, "FARTHEST", 1.0)  # fresh weights keep nothing where tokens are merged
    classifier = classifier_of("deep")
    pixels = stand_ins(classifier.preprocessing, 5)
    with torch.no_grad():
        logits = merged(classifier.model)(torch.from_numpy(classifier.preprocessing.normalise(pixels))).numpy()
    with choose(classifier, "merged") as engine:
        assert (engine.name, "int8 and merged tokens" in engine.detail) == ("merged", True)
        for some in (pixels, pixels[:1]):
            assert np.abs(engine.run(some) - logits[: len(some)]).max() <= 0.3 * np.abs(logits).max()


def test_exact_is_openvino_on_a_cpu_where_it_is_installed_and_torch_elsewhere(plain, monkeypatch) -> None:
    monkeypatch.setattr(engines_kept, "kept_engine", lambda classifier, kind: kind)
    assert choose(plain, "exact") == "openvino"
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    assert choose(plain, "exact").name == "torch"
    monkeypatch.undo()
    plain.model.to(torch.bfloat16)
    assert choose(plain, "exact").name == "torch"


def test_where_merging_is_too_far_from_the_model_int8_is_left(monkeypatch) -> None:
    moves = iter([engines_kept.FARTHEST + 0.01, engines_kept.FARTHEST])
    monkeypatch.setattr(engines_kept, "_moves", lambda *args: next(moves))
    with choose(classifier_of("deep"), "merged") as engine:
        assert (engine.name, "merged" in engine.detail) == ("int8", False)


def test_a_model_whose_tokens_cannot_be_merged_has_int8() -> None:
    with choose(classifier_of("registers, mean"), "merged") as engine:
        assert engine.name == "int8"


def test_a_file_is_an_engine_if_it_is_of_the_same_model(plain, tmp_path: Path) -> None:
    vitrail.export(plain, tmp_path / "x.pt2", format="torch", features=True)
    pixels = stand_ins(plain.preprocessing, 2)
    with choose(plain, tmp_path / "x.pt2") as engine, TorchEngine(plain) as reference:
        for one, other in zip(engine.both(pixels), reference.both(pixels), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    other = vitrail.Classifier(plain.model, classes=list("abcde"))
    with pytest.raises(VitrailError, match="was exported from another model"):
        choose(other, tmp_path / "x.pt2")
    assert open_engine(tmp_path / "x.pt2").classes == plain.classes


@pytest.mark.parametrize("name", ["broken.onnx", "broken.xml", "broken.pt2", "broken.txt", "absent.onnx"])
def test_what_is_no_engine_is_said_in_one_line(name: str, plain, tmp_path: Path) -> None:
    if name.startswith("broken"):
        (tmp_path / name).write_text("no model")
    with pytest.raises(VitrailError) as caught:
        choose(plain, tmp_path / name)
    assert "\n" not in str(caught.value)


def test_pixels_of_another_shape_are_refused(plain) -> None:
    with choose(plain, "torch") as engine, pytest.raises(VitrailError, match=r"takes uint8 of \(n, 32, 32, 3\)"):
        engine.run(np.zeros((1, 3, 32, 32), np.uint8))


def test_features_that_an_exported_file_does_not_give_are_refused(plain, tmp_path: Path) -> None:
    vitrail.export(plain, tmp_path / "x.onnx")
    size = (2, *plain.preprocessing.size, 3)
    with open_engine(tmp_path / "x.onnx") as engine, pytest.raises(VitrailError, match="--features"):
        engine.features(np.zeros(size, np.uint8))
