"""`vitrail bench`: the same weights and pictures for all, each in its own process, outputs compared."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitrail
from vitrail.cli import main
from vitrail.errors import VitrailError, WeightsError
from vitrail.model.walk import flops
from vitrail.model.zoo import configure
from vitrail.speed.bench import _Arena
from vitrail.speed.bench_plot import write_plot
from vitrail.speed.bench_process import Contender, ContenderError
from vitrail.speed.bench_results import Bench, Measurement
from vitrail.speed.bench_worker import Worker
from vitrail.speed.contenders import build
from vitrail.speed.peers import LOSS_TOLERANCE, Case, Row, chosen_peers

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 5}


def made(**changes) -> tuple[vitrail.ViTConfig, dict[str, torch.Tensor]]:
    config = configure("vit_ti16", **{**TINY, **changes}, zero_head=False)
    torch.manual_seed(3)
    model = vitrail.create(config)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor), alpha=0.1)
    return config, model.state_dict()


@pytest.mark.parametrize("peer", ["timm", "torchvision", "transformers"])
def test_peers_hold_the_same_weights_and_give_the_same_logits(peer: str) -> None:
    pytest.importorskip(peer)
    config, state = made()
    ours, _ = build("vitrail", config, state)
    theirs, twin = build(peer, config, state)
    assert twin is None
    pictures = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(pictures), ours.eval()(pictures), atol=1e-5, rtol=1e-4)


def test_an_architecture_of_its_own_is_compared_by_its_own_weights() -> None:
    pytest.importorskip("vit_pytorch")
    config, state = made()
    theirs, twin = build("vit-pytorch", config, state)
    assert twin is not None
    pictures = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(pictures), twin.eval()(pictures), atol=1e-5, rtol=1e-4)
    with pytest.raises(WeightsError, match="vit-pytorch's ViT cannot hold LayerScale"):
        build("vit-pytorch", *made(layer_scale=0.1))


def measured(folder: Path, model: vitrail.ViTConfig, state: dict[str, torch.Tensor], **how) -> Bench:
    net = vitrail.create(model)
    net.load_state_dict(state)
    saved = vitrail.Classifier(net).save(folder / "model")
    short = {"batch_sizes": [2], "device": "cpu", "rounds": 2, "seconds": 0.02, "out": folder / "out"}
    return vitrail.bench(str(saved), **short, **how)


def check(one: Measurement, contenders: tuple[str, ...]) -> None:
    assert one.ceiling > 1e9
    times = 3 if one.case.mode == "train" else 1
    for row in one.rows:
        if row.contender in contenders:
            assert row.same
            assert row.difference < 1e-4
            assert row.low <= row.pictures_per_s <= row.high
            assert row.of_ceiling == pytest.approx(row.pictures_per_s * times * one.flop / one.ceiling)


def test_contenders_are_measured_in_turns_and_agree_and_the_folder_has_it_all(tmp_path: Path) -> None:
    found = measured(tmp_path, *made(), peers=["torchvision"], modes=["infer"])
    (one,) = found.measurements
    assert [row.contender for row in one.rows] == ["vitrail", "torchvision"]
    check(one, ("vitrail", "torchvision"))
    assert one.flop == flops(made()[0])
    content = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert content == json.loads(json.dumps(found.to_json()))
    assert {"torch", "torchvision"} <= content["versions"].keys()
    with Image.open(tmp_path / "out" / "bench.png") as picture:
        assert picture.width > 800
    text = [" ".join(line) for line in found.table()]
    assert any("torchvision, eager" in line and "%" in line for line in text)


@pytest.mark.slow
def test_training_agrees_and_what_a_peer_cannot_hold_is_said(tmp_path: Path) -> None:
    found = measured(tmp_path, *made(layer_scale=0.1))
    assert [one.case.mode for one in found.measurements] == ["infer", "train"]
    for one in found.measurements:
        check(one, ("vitrail", "timm"))
        errors = {row.contender: row.error for row in one.rows if row.error}
        assert errors["torchvision"] == "torchvision's VisionTransformer cannot hold LayerScale"
        assert errors.keys() == {"torchvision", "transformers", "vit-pytorch"}


@pytest.mark.slow
def test_a_compiled_model_trains_as_the_eager_one(tmp_path: Path) -> None:
    beside: dict[str, Any] = {"peers": ["timm"], "peer_ways": ["eager"]}
    found = measured(tmp_path, *made(), ways=["eager", "compiled"], precisions=["fp32", "bf16"], **beside)
    assert len(found.measurements) == 4
    for one in found.measurements:
        ways = [(row.contender, row.way) for row in one.rows]
        assert ways == [("vitrail", "eager"), ("vitrail", "compiled"), ("timm", "eager")]
    assert all(row.same for one in found.measurements for row in one.rows)


def arena() -> _Arena:
    one = _Arena(Path(), configure("vit_ti16", **TINY), "cpu", 1, 0.1, lambda line: None)
    one.wanted = torch.tensor([[1.0, -1.0, 2.0], [0.5, 0.0, -2.0]])
    return one


def test_other_outputs_are_marked() -> None:
    near, far = arena().wanted + 1e-4, arena().wanted.clone()
    far[0, 1] += 0.5
    case = Case("x", "infer", 2, "fp32")
    for logits, is_same in ((near, True), (far, False)):
        facts = {("timm", "eager"): {"logits": logits.tolist()}}
        away, same, _ = arena()._compared(case, facts, ("timm", "eager"))
        assert same is is_same
        assert away == pytest.approx(float((logits - arena().wanted).abs().max() / arena().wanted.std()))
    facts = {("vitrail", "eager"): {"loss": 2.0}, ("timm", "eager"): {"loss": 2.1}}
    away, same, _ = arena()._compared(Case("x", "train", 2, "bf16"), facts, ("timm", "eager"))
    assert (away, same) == (pytest.approx(0.05), False)
    row = Row("timm", "eager", 10.0, 9.0, 11.0, 0.1, None, 0.5, False)
    table = Bench({}, (Measurement(case, 1e12, 10**9, (row,)),)).table()
    assert "OTHER OUTPUTS" in table[-1][-1]


def test_a_worker_computes_in_every_precision_and_trains(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("vitrail.model.fp8_training.FEWEST", 1)
    config, state = made()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"kind": "vit", "config": config.to_json()}))
    worker, judge = Worker(), arena()
    asked = {"do": "prepare", "folder": str(tmp_path), "contender": "vitrail", "way": "eager", "device": "cpu"}
    whole = worker.answer({**asked, "mode": "infer", "precision": "fp32", "batch": 6})
    judge.wanted = torch.tensor(whole["logits"])
    assert len(whole["logits"]) == 4
    for precision in ("bf16", "fp16", "fast", "fp8"):
        found = worker.answer({**asked, "mode": "infer", "precision": precision, "batch": 6})
        facts = {("timm", "eager"): found}
        away, same, _ = judge._compared(Case("x", "infer", 6, precision), facts, ("timm", "eager"))
        assert same
        assert away > 0
    losses = [
        worker.answer({**asked, "mode": "train", "precision": precision, "batch": 6})["loss"]
        for precision in ("fp32", "bf16", "fast", "fp8")
    ]
    for precision, loss in zip(("bf16", "fast", "fp8"), losses[1:], strict=True):
        assert loss == pytest.approx(losses[0], rel=LOSS_TOLERANCE[precision])
    assert len(set(losses)) == 4
    assert worker.answer({"do": "turn", "seconds": 0.01})["runs"] >= 1
    with pytest.raises(FileNotFoundError):
        worker.answer({**asked, "folder": str(tmp_path / "no"), "mode": "infer", "precision": "fp32", "batch": 1})


def test_a_process_that_fails_says_so_and_none_is_left_behind() -> None:
    with Contender("vitrail", "eager") as one:
        with pytest.raises(ContenderError, match="TypeError"):
            one.ask("prepare", folder="/nowhere")
        assert one.ask("forget") == {}  # it lives on
        process = one._process
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with pytest.raises(ContenderError, match="its process ended"):
            one.ask("forget")
        assert one._process is None  # the next request begins a fresh one


def test_a_plot_of_many_cases_is_drawn(tmp_path: Path) -> None:
    measurements = []
    for mode in ("infer", "train"):
        for batch in (1, 128):
            rows = [Row("vitrail", "compiled", 90.0 * batch, 80.0 * batch, 95.0 * batch, 0.5, None, 0.0, True)]
            rows += [Row("timm", "eager", 50.0 * batch, 49.0 * batch, 52.0 * batch, 0.3, None, 0.9, False)]
            rows += [Row("torchvision", "eager", error="no")]
            measurements.append(
                Measurement(
                    Case("/somewhere/a/long/way/to/vit_of_a_long_name", mode, batch, "bf16"), 7e14, 10**10, tuple(rows)
                )
            )
    write_plot(Bench({"hardware": "a GPU"}, tuple(measurements)), tmp_path / "bench.png")
    assert (tmp_path / "bench.png").stat().st_size > 10_000


def test_help_has_an_example(capsys) -> None:
    assert main(["bench", "--help"]) == 0
    assert "Example: vitrail bench" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["vit_x16"], 1, "no model named"),
        (["--batch-sizes", "0"], 1, "--batch-sizes must be at least 1"),
        (["--rounds", "0"], 1, "--rounds must be at least 1"),
        (["--seconds", "0"], 1, "--seconds must be above 0"),
        (["--peers", "keras"], 1, "choose from timm"),
        (["--ways", "graphs", "--device", "cpu"], 1, "--ways graphs: CUDA graphs need a GPU"),
        (["--peer-ways", "eager", "tuned", "--device", "cpu"], 1, "--peer-ways tuned: CUDA graphs need a GPU"),
        (["--peers", "timm", "none"], 1, "--peers none stands alone"),
        (["--precisions", "fp4"], 2, "fp4"),
        (["--device", "abacus"], 1, "cannot be used"),
        (["dinov2_s14"], 1, "has no head"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], code: int, words: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = main(["bench", *arguments])
    captured = capsys.readouterr()
    assert (found, captured.out) == (code, "")
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_where_nothing_could_be_measured_no_plot_is_promised(capsys, tmp_path) -> None:
    arguments = ["vit_ti16", "--modes", "train", "--precisions", "fp16", "--batch-sizes", "1", "--peers", "none"]
    assert main(["bench", *arguments, "--rounds=1", "--seconds=0.01", "--device=cpu", f"--out={tmp_path / 'b'}"]) == 1
    printed = capsys.readouterr().out
    assert "training in fp16 needs a GPU" in printed
    assert "nothing could be measured" in printed
    assert not (tmp_path / "b" / "bench.png").exists()


def test_peers_that_are_not_installed_are_left_out_or_named(monkeypatch) -> None:
    monkeypatch.setattr("vitrail.speed.peers.find_spec", lambda name: object() if name == "timm" else None)
    assert chosen_peers(None) == ["timm"]
    with pytest.raises(VitrailError, match="pip install torchvision"):
        chosen_peers(["torchvision"])
    assert chosen_peers(["none"]) == []
