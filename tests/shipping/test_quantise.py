"""Int8: near the model, better where it matters, and refused where it loses too much."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from tests.shipping.conftest import classifier_of
from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.shipping import export_build
from vitrail.shipping.export_graph import program
from vitrail.shipping.quantise_layers import layer_errors, nodes_of, sensitive_layers

onnx = pytest.importorskip("onnx", reason="onnx is not installed: uv run --all-extras pytest")
pytest.importorskip("nncf", reason="nncf is not installed: uv run --all-extras pytest")


def kinds(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_a_layer_with_a_wild_channel_is_found_and_kept_in_float() -> None:
    model = classifier_of("plain").model
    with torch.no_grad():  # the same function: a channel a thousand times larger, and weights as much smaller
        model.blocks[1].norm2.weight[3] *= 1000
        model.blocks[1].norm2.bias[3] *= 1000
        model.blocks[1].mlp.fc1.weight[:, 3] /= 1000
    values = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = model(values)
    errors = layer_errors(model, values)
    assert torch.equal(model(values), before)
    worst = max(errors, key=lambda name: errors[name])
    assert worst == "blocks.1.mlp.fc1"
    assert sensitive_layers(errors, 0.5 * errors[worst])[0] == worst
    assert sensitive_layers(errors, 2 * sum(errors.values())) == []
    graph = program(model, torch.zeros(2, 3, 32, 32))
    assert len(nodes_of(graph, [worst])) == 1
    assert nodes_of(graph, []) == []


@pytest.mark.parametrize("format", ["onnx", "openvino"])
@pytest.mark.parametrize("calibration", ["static", pytest.param("dynamic", marks=pytest.mark.slow)])
def test_int8_keeps_the_accuracy_on_data(format: str, calibration: str, plain, labelled, tmp_path: Path) -> None:
    path = tmp_path / ("x.onnx" if format == "onnx" else "x.xml")
    options = {"precision": "int8", "calibration": calibration, "data": labelled, "max_drop": 10.0}
    report = vitrail.export(plain, path, format=format, **options)
    assert report.accuracy is not None
    assert report.accuracy.float_top1 == 1.0  # the labels are the model's own answers
    assert report.accuracy.top1 == report.accuracy.agreement > 0.9
    assert 1e-4 < report.check.relative < 0.3
    assert "points, same class" in report.text()
    if format == "onnx":
        made = kinds(path)
        assert ("QuantizeLinear" if calibration == "static" else "DynamicQuantizeLinear") in made
        about = {prop.key: prop.value for prop in onnx.load(path).metadata_props}
        assert json.loads(about["vitrail"])["precision"] == "int8"


def test_a_layer_that_is_kept_is_in_float_in_the_file(plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vitrail.export(plain, tmp_path / "all.onnx", precision="int8")
    monkeypatch.setattr(export_build, "sensitive_layers", lambda errors: ["blocks.0.mlp.fc2", "blocks.1.attn.qkv"])
    report = vitrail.export(plain, tmp_path / "some.onnx", precision="int8")
    assert report.in_float == ("blocks.0.mlp.fc2", "blocks.1.attn.qkv")
    fewer = kinds(tmp_path / "all.onnx").count("MatMulInteger") - kinds(tmp_path / "some.onnx").count("MatMulInteger")
    assert fewer == 1 + 3  # queries, keys and values are three


def test_more_loss_than_was_allowed_leaves_nothing(plain, labelled, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    with pytest.raises(VitrailError, match="more than --max-drop -100: nothing is written"):
        vitrail.export(plain, out / "x.onnx", precision="int8", data=labelled, max_drop=-100)
    assert os.listdir(out) == []


def test_the_command_prints_and_stores_the_report(plain, labelled, tmp_path: Path, capsys) -> None:
    plain.save(tmp_path / "model")
    out = tmp_path / "x.pt2"
    command = ["export", str(tmp_path / "model"), "--format", "torch", "--data", str(labelled), "--max-drop", "0"]
    assert main([*command, "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "x.pt2.json").read_text())
    assert printed["accuracy"]["pictures"] == 120
    assert main([*command, "--out", str(out)]) == 1
    assert "already there" in capsys.readouterr().err
    assert main([*command, "--fp16", "--int8", "--out", str(out)]) == 1
    assert "exclude each other" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("format", "suffix"), [("onnx", ".onnx"), ("openvino", ".xml")])
def test_int8_of_deit_tiny_loses_at_most_half_a_point(
    format, suffix, deit_tiny, imagenet_sample, tmp_path: Path
) -> None:
    options = {"precision": "int8", "data": imagenet_sample, "max_drop": 0.5}
    report = vitrail.export(deit_tiny, tmp_path / f"x{suffix}", format=format, **options)
    assert report.accuracy is not None
    assert report.accuracy.pictures == 1000
    assert report.accuracy.float_top1 == pytest.approx(0.692, abs=0.003)
    assert report.accuracy.agreement > 0.94


@pytest.mark.slow
@pytest.mark.parametrize(("format", "suffix"), [("onnx", ".onnx"), ("openvino", ".xml"), ("torch", ".pt2")])
@pytest.mark.parametrize("inside", [False, True])
def test_deit_tiny_is_the_same_model_in_every_format(
    format, suffix, inside, deit_tiny, imagenet_sample, tmp_path
) -> None:
    report = vitrail.export(
        deit_tiny, tmp_path / f"x{suffix}", format=format, with_preprocessing=inside, data=imagenet_sample
    )
    assert report.check.pictures >= 100
    assert report.check.agreement == 1
    assert report.check.largest < (2e-4 if inside else 1e-4)
    assert report.pillow is None or report.pillow.agreement > 0.9


@pytest.mark.slow
def test_a_compiled_package_is_the_same_model(plain, tmp_path: Path) -> None:
    report = vitrail.export(plain, tmp_path / "x.pt2", format="torch", compiled=True)
    assert report.check.largest < 1e-4
    assert np.isfinite(report.check.relative)
