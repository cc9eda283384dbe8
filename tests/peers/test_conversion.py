"""`vitrail convert` on real weights, and what comes out in the hands of the other libraries' own loaders."""

import json
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.cli import main


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    return torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def wanted(deit_tiny: Path, pictures: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return vitrail.load(deit_tiny).model(pictures)


def convert(source: Path, target: Path, *arguments: str) -> int:
    return main(["convert", str(source), str(target), *arguments])


@torch.no_grad()
def test_real_weights_in_transformers_own_hands(deit_tiny, pictures, wanted, tmp_path: Path, capsys) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    assert convert(deit_tiny, tmp_path / "hf", "--to", "transformers") == 0
    assert "5,717,416 parameters, 1,000 classes" in capsys.readouterr().out
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "hf").eval()
    assert type(model).__name__ == "ViTForImageClassification"
    torch.testing.assert_close(model(pictures).logits, wanted, atol=1e-4, rtol=1e-5)
    assert model.config.id2label[0] == "tench"
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf")
    assert list(processor.image_mean) == [0.485, 0.456, 0.406]
    again = vitrail.load(tmp_path / "hf")
    assert torch.equal(again.model(pictures), wanted)
    assert again.classes[0] == "tench"
    assert again.preprocessing.describe() == vitrail.load(deit_tiny).preprocessing.describe()


@torch.no_grad()
def test_real_weights_in_torchvisions_own_hands(deit_tiny, pictures, wanted, tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    assert convert(deit_tiny, tmp_path / "tv.pth", "--to", "torchvision") == 0
    peer = models.VisionTransformer(224, 16, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768).eval()
    peer.load_state_dict(torch.load(tmp_path / "tv.pth", weights_only=True))
    torch.testing.assert_close(peer(pictures), wanted, atol=1e-4, rtol=1e-5)
    assert torch.equal(vitrail.load(tmp_path / "tv.pth").model(pictures), wanted)


@torch.no_grad()
def test_real_weights_in_timms_own_hands(deit_tiny, pictures, wanted, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed")
    assert convert(deit_tiny, tmp_path / "timm", "--to", "timm") == 0
    model = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    torch.testing.assert_close(model(pictures), wanted, atol=1e-4, rtol=1e-5)
    assert convert(deit_tiny, tmp_path / "timm.pth", "--to", "timm") == 0
    model = timm.create_model("deit_tiny_patch16_224", checkpoint_path=str(tmp_path / "timm.pth")).eval()
    torch.testing.assert_close(model(pictures), wanted, atol=1e-4, rtol=1e-5)


@torch.no_grad()
def test_a_whole_round_through_every_format_keeps_every_bit(deit_tiny, tmp_path: Path) -> None:
    """timm, transformers, torchvision, Google, vitrail: the tensors that come out are those that went in."""
    steps = [("transformers", "hf"), ("torchvision", "tv.pth"), ("google", "g.npz"), ("vitrail", "v")]
    source = deit_tiny
    for to, name in steps:
        extra = ["--act", "gelu_tanh"] if to == "google" else []
        assert convert(source, tmp_path / name, "--to", to, *extra) == 0
        source = tmp_path / name
    before, after = vitrail.load(deit_tiny).model.state_dict(), vitrail.load(source).model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("target", "arguments", "words"),
    [
        ("g.npz", ["--to", "google"], "cannot hold.*act|act.*gelu|GELU"),
        ("g", ["--to", "google"], "google is a file: name it g.npz"),
        ("tv", ["--to", "torchvision"], "torchvision is a file: name it tv.pth"),
        ("tv.pth", ["--to", "torchvision", "--norm-eps", "1e-5"], "cannot hold"),
        ("x", ["--to", "timm", "--norm-eps", "1e-12"], "timm has no architecture with norm_eps=1e-12"),
        ("there", ["--to", "timm"], "already there"),
    ],
)
def test_what_cannot_be_held_is_said_in_one_line_and_nothing_is_written(
    deit_tiny, tmp_path: Path, capsys, target: str, arguments: list[str], words: str
) -> None:
    import re

    (tmp_path / "there").mkdir()
    assert convert(deit_tiny, tmp_path / target, *arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    assert re.search(words, line), line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


def test_the_preprocessing_can_be_overridden(deit_tiny, tmp_path: Path, capsys) -> None:
    extra = ["--fit", "squash", "--crop-pct", "1", "--mean", "0.5", "0.5", "0.4", "--interpolation", "bilinear"]
    assert convert(deit_tiny, tmp_path / "v", "--to", "vitrail", *extra) == 0
    found = vitrail.load(tmp_path / "v").preprocessing
    assert (found.fit, found.crop_pct, found.interpolation) == ("squash", 1.0, "bilinear")
    assert (found.mean, found.std) == ((0.5, 0.5, 0.4), (0.229, 0.224, 0.225))
    assert "resize to 224 x 224 (bilinear)" in capsys.readouterr().err
    assert convert(deit_tiny, tmp_path / "w", "--to", "vitrail", "--fit", "squeeze") == 1
    assert "choose from crop, squash, pad" in capsys.readouterr().err


def test_convert_reports_as_json(deit_tiny, tmp_path: Path, capsys) -> None:
    assert (
        convert(deit_tiny, tmp_path / "v", "--to", "vitrail", "--num-classes", "10", "--img-size", "384", "--json") == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["config"]["num_classes"] == 10
    assert report["config"]["img_size"] == [384, 384]
    assert vitrail.load(tmp_path / "v").preprocessing.size == (384, 384)
