"""Exported files are the same model in their own runtimes, and there whole or not at all."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests.shipping.conftest import KINDS, classifier_of
from vitrail.errors import VitrailError
from vitrail.shipping import export_build, verify
from vitrail.shipping.engines_kept import metadata
from vitrail.shipping.export_pictures import FromPictures
from vitrail.shipping.export_triton import write_triton

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: uv run --all-extras pytest")
openvino = pytest.importorskip("openvino", reason="openvino is not installed: uv run --all-extras pytest")

SUFFIX = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2"}
QUICK = ("distilled", "hybrid", "registers, mean", "not square")


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


def _quick_or_slow(kind: str) -> object:
    return kind if kind in QUICK else slow(kind)


def call(path: Path, given: np.ndarray, output: int = 0) -> np.ndarray:
    """What the runtime itself makes of a file, with nothing of ours between."""
    if path.suffix == ".onnx":
        session = ort.InferenceSession(str(path))
        return session.run(None, {session.get_inputs()[0].name: given})[output]
    if path.suffix == ".xml":
        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        return openvino.Core().compile_model(str(path), "CPU", settings)([given])[output]
    made = torch.export.load(path).module()(torch.from_numpy(given))
    return (made[output] if isinstance(made, tuple) else made).detach().numpy()


def assert_same(path: Path, classifier: vitrail.Classifier) -> None:
    height, width = classifier.preprocessing.size
    for batch in (1, 3):
        given = np.random.default_rng(batch).standard_normal((batch, 3, height, width)).astype(np.float32)
        with torch.no_grad():
            wanted = classifier.model(torch.from_numpy(given)).numpy()
        assert wanted.std() > 0.01
        np.testing.assert_allclose(call(path, given), wanted, atol=1e-4)


@pytest.mark.parametrize("kind", [_quick_or_slow(kind) for kind in (*KINDS, "resnet")])
def test_onnx_has_the_logits_of_pytorch_for_every_kind_of_model(kind: str, tmp_path: Path) -> None:
    report = vitrail.export(classifier_of(kind), tmp_path / "x.onnx")
    assert_same(tmp_path / "x.onnx", classifier_of(kind))
    assert report.check.pictures >= 100
    assert report.check.agreement == 1
    assert json.loads((tmp_path / "x.onnx.json").read_text())["check"]["largest"] < 1e-4


@pytest.mark.parametrize(("format", "kind"), [("openvino", "registers, mean"), ("torch", "not square")])
def test_openvino_and_torch_have_the_logits_of_pytorch(kind: str, format: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{SUFFIX[format]}"
    vitrail.export(classifier_of(kind), path, format=format)
    assert_same(path, classifier_of(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "resnet"])
@pytest.mark.parametrize("format", ["openvino", "torch"])
def test_every_format_has_the_logits_of_pytorch_for_every_kind_of_model(kind: str, format: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{SUFFIX[format]}"
    vitrail.export(classifier_of(kind), path, format=format, features=True)
    assert_same(path, classifier_of(kind))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plain model in ONNX, with its features, and what is beside it."""
    path = tmp_path_factory.mktemp("exported") / "x.onnx"
    vitrail.export(classifier_of("plain"), path, features=True)
    return path


def test_classes_and_preprocessing_are_in_the_file(plain, exported: Path) -> None:
    assert_same(exported, plain)
    session = ort.InferenceSession(str(exported))
    about = json.loads(session.get_modelmeta().custom_metadata_map["vitrail"])
    assert about["classes"] == plain.classes
    assert vitrail.Preprocessing.from_json(about["preprocessing"]) == plain.preprocessing
    assert [output.name for output in session.get_outputs()] == ["logits", "features"]
    given = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    with torch.no_grad():
        tokens = plain.model.forward_features(torch.from_numpy(given))
    np.testing.assert_allclose(call(exported, given, 1), plain.model.pool(tokens).numpy(), atol=1e-4)


@pytest.mark.parametrize("format", ["torch", slow("onnx"), slow("openvino")])
def test_a_dynamic_size_is_what_the_model_gives_at_that_size(format: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = vitrail.ViT(vitrail.ViTConfig(**{**vars(classifier_of("plain").model.config), "dynamic_img_size": True}))
    torch.nn.init.normal_(model.pos_embed)
    torch.nn.init.normal_(model.head.weight)
    path = tmp_path / f"x{SUFFIX[format]}"
    vitrail.export(vitrail.Classifier(model.eval()), path, format=format, dynamic_size=True)
    for size in ((32, 32), (64, 24), (32, 48)):
        given = torch.randn(2, 3, *size)
        with torch.no_grad():
            np.testing.assert_allclose(call(path, given.numpy()), model(given).numpy(), atol=1e-4)


@hypothesis.given(
    height=st.integers(20, 90),
    width=st.integers(20, 90),
    fit=st.sampled_from(["crop", "squash", "pad"]),
    interpolation=st.sampled_from(["bicubic", "bilinear"]),
    size=st.sampled_from([(32, 32), (24, 40)]),
)
@hypothesis.example(height=48, width=41, fit="pad", interpolation="bicubic", size=(24, 40))  # between two widths
@hypothesis.example(height=69, width=90, fit="crop", interpolation="bilinear", size=(24, 40))  # between two heights
@hypothesis.settings(max_examples=40, deadline=None)
def test_the_preprocessing_of_a_graph_is_pillows_but_for_rounding(height, width, fit, interpolation, size) -> None:
    crop = 1.0 if fit == "pad" else 0.875
    preprocessing = vitrail.Preprocessing(size=size, fit=fit, interpolation=interpolation, crop_pct=crop)
    small = Image.fromarray(
        np.random.default_rng(height * width).integers(64, 192, (6, 6, 3), np.uint8)
    )  # nothing overshoots
    picture = np.array(small.resize((width, height), Image.Resampling.BICUBIC))
    made = FromPictures(torch.nn.Identity(), preprocessing)(torch.from_numpy(picture[None]))[0].numpy()
    assert np.abs(made - preprocessing(picture)).max() <= 2.1 / 127.5  # two roundings to whole grey levels


@pytest.mark.parametrize("interpolation", ["lanczos", "box", "hamming"])
def test_a_resize_that_no_graph_can_say_is_named(interpolation: str) -> None:
    with pytest.raises(VitrailError, match=f"resizes by {interpolation}, which no graph can say"):
        FromPictures(torch.nn.Identity(), vitrail.Preprocessing(interpolation=interpolation))


@pytest.mark.parametrize("format", ["torch", slow("onnx"), slow("openvino")])
def test_raw_pictures_of_any_size_go_into_a_graph_with_preprocessing(
    format: str, plain, labelled, tmp_path: Path
) -> None:
    path = tmp_path / f"x{SUFFIX[format]}"
    report = vitrail.export(plain, path, format=format, with_preprocessing=True)
    assert report.check.largest < 1e-4
    assert report.check.agreement == 1
    assert report.pillow is not None
    assert report.pillow.agreement > 0.9
    picture = np.random.default_rng(0).integers(0, 256, (1, 57, 91, 3), np.uint8)
    assert call(path, picture).shape == (1, 5)


@pytest.mark.parametrize(
    ("format", "precision"), [("openvino", "bfloat16"), slow("onnx", "float16"), slow("torch", "bfloat16")]
)
def test_16_bits_stay_near(format: str, precision: str, plain, tmp_path: Path) -> None:
    report = vitrail.export(plain, tmp_path / f"x{SUFFIX[format]}", format=format, precision=precision)
    assert 1e-5 < report.check.relative < 0.05


def bare(folder: Path) -> list[str]:
    """A Python that has NumPy, Pillow and ONNX Runtime, and nothing else that was installed."""
    site = Path(np.__file__).parents[1]
    folder.mkdir()
    for name in ("numpy", "numpy.libs", "PIL", "pillow.libs", "onnxruntime"):
        if (site / name).exists():
            (folder / name).symlink_to(site / name)
    start = f"import sys; sys.path.append({str(folder)!r}); import runpy; sys.argv = sys.argv[1:]"
    return [sys.executable, "-I", "-S", "-c", f"{start}; runpy.run_path(sys.argv[0], run_name='__main__')"]


def test_run_py_needs_no_vitrail_and_no_torch_and_says_the_same(plain, labelled, exported, tmp_path: Path) -> None:
    python = bare(tmp_path / "site")
    (tmp_path / "alone.py").write_text("import vitrail")
    assert (
        "No module named 'vitrail'"
        in subprocess.run([*python, "alone.py"], cwd=tmp_path, capture_output=True, text=True).stderr
    )
    pictures = [str(path) for path in sorted(labelled.rglob("*.png"))[:20]]
    command = [*python, str(exported.with_name("run.py")), "--json", "--top", "5", *pictures]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for line, wanted in zip(done.stdout.splitlines(), plain.predict(pictures, top=5), strict=True):
        found = json.loads(line)["top"]
        assert [one["label"] for one in found] == [label for label, _ in wanted.top]
        np.testing.assert_allclose([one["score"] for one in found], [score for _, score in wanted.top], atol=1e-5)


def test_run_py_says_in_a_line_what_it_cannot_read_and_answers_the_rest(labelled, exported, tmp_path: Path) -> None:
    (tmp_path / "words.jpg").write_text("a rose, in words")
    good = str(next(labelled.rglob("*.png")))
    command = [sys.executable, str(exported.with_name("run.py"))]
    done = subprocess.run([*command, "nothere.jpg", "words.jpg", good], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "nothere.jpg cannot be read: no such file or directory",
        "words.jpg cannot be read: cannot identify image file 'words.jpg'",
    ]
    assert done.stdout.startswith(good)
    done = subprocess.run([*command, "--model", "no.onnx", good], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("no.onnx cannot be opened: ")
    assert "Traceback" not in done.stderr


def test_run_py_reads_a_package_of_machine_code(plain, labelled, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("AOTInductor needs a compiler")
    vitrail.export(plain, tmp_path / "x.pt2", format="torch", compiled=True)
    picture = str(next(labelled.rglob("*.png")))
    command = [sys.executable, str(tmp_path / "run.py"), "--json", picture]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)["top"]
    [wanted] = plain.predict(picture)[0].top
    assert (found["label"], pytest.approx(found["score"], abs=1e-5)) == wanted


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_run_py_prepares_pictures_as_vitrail_does(fit: str, tmp_path: Path) -> None:
    from vitrail.shipping import run_template

    draw = np.random.default_rng(1)
    photograph = Image.fromarray(draw.integers(0, 256, (12, 18, 3), np.uint8)).resize(
        (700, 420), Image.Resampling.BICUBIC
    )
    exif = Image.Exif()
    for turn in (1, 3, 6, 8):  # JPEGs of several times the size are read smaller
        exif[0x0112] = turn
        photograph.save(tmp_path / "a.jpg", exif=exif)
        for size in ((32, 32), (30, 50), (300, 300)):
            preprocessing = vitrail.Preprocessing(size=size, fit=fit, crop_pct=0.9 if fit != "pad" else 1.0)
            about = {"preprocessing": preprocessing.to_json(), "takes": "values"}
            made = run_template.read(str(tmp_path / "a.jpg"), about)[0]
            np.testing.assert_array_equal(made, preprocessing(tmp_path / "a.jpg"))
    photograph.convert("RGBA").save(tmp_path / "b.png")
    Image.fromarray(draw.integers(0, 65536, (40, 40), np.uint16)).save(tmp_path / "c.png")
    for name in ("b.png", "c.png"):
        np.testing.assert_allclose(
            run_template.read(str(tmp_path / name), about)[0], preprocessing(tmp_path / name), atol=0.01
        )


@pytest.mark.parametrize("takes", ["values", "picture"])
def test_triton_reads_the_configuration(takes: str, plain, tmp_path: Path) -> None:
    config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="tritonclient is not installed")
    text_format = pytest.importorskip("google.protobuf.text_format")
    write_triton(tmp_path, metadata(plain, takes, ("logits", "features"), "float32"))
    config = text_format.Parse((tmp_path / "config.pbtxt").read_text(), config_pb2.ModelConfig())
    assert config.name == tmp_path.name
    assert config.input[0].data_type == (config_pb2.TYPE_FP32 if takes == "values" else config_pb2.TYPE_UINT8)
    assert list(config.input[0].dims) == ([3, 32, 32] if takes == "values" else [-1, -1, 3])
    assert config.output[0].label_filename == "labels.txt"
    assert config.dynamic_batching.max_queue_delay_microseconds > 0
    assert (tmp_path / "labels.txt").read_text().split() == plain.classes


@pytest.mark.slow
def test_a_triton_model_is_the_same_model(plain, tmp_path: Path) -> None:
    vitrail.export(plain, tmp_path / "models" / "insects", format="triton")
    file = tmp_path / "models" / "insects" / "1" / "model.onnx"
    assert_same(file, plain)
    assert ort.InferenceSession(str(file)).get_inputs()[0].name == "pixels"


def left(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_file_that_fails_its_check_leaves_nothing(plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "LARGEST", -1.0)
    with pytest.raises(VitrailError, match=r"differ from PyTorch's by .* it is not kept"):
        vitrail.export(plain, tmp_path / "x.pt2", format="torch")
    assert left(tmp_path) == []


def test_a_full_disk_leaves_nothing(plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(graph: object, about: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export_build, "write_pt2", full)
    with pytest.raises(VitrailError, match=r"x.pt2 is not written: .*No space left on device; make room") as caught:
        vitrail.export(plain, tmp_path / "x.pt2", format="torch")
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == []


def test_a_file_that_is_there_stays_unless_told(plain, tmp_path: Path) -> None:
    (tmp_path / "x.pt2").write_text("mine")
    with pytest.raises(VitrailError, match="is already there: choose another name, or say --overwrite"):
        vitrail.export(plain, tmp_path / "x.pt2", format="torch")
    assert (tmp_path / "x.pt2").read_text() == "mine"
    vitrail.export(plain, tmp_path / "x.pt2", format="torch", overwrite=True)
    assert_same(tmp_path / "x.pt2", plain)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "openvino"}, "ends in .xml"),
        ({"precision": "int8", "calibration": "static"}, "give --data"),
        ({"max_drop": 0.5}, "give --data"),
        ({"calibration": "static"}, "is for --int8"),
        ({"precision": "bfloat16"}, "no bfloat16"),
        ({"compiled": True}, "for the format torch"),
        ({"precision": "int8", "with_preprocessing": True}, "leave out one"),
        ({"dynamic_size": True, "with_preprocessing": True}, "leave out --dynamic-size"),
        ({"data": "nowhere-at-all"}, "not there"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_before_the_work(options: dict, words: str, plain, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=words) as caught:
        vitrail.export(plain, tmp_path / "x.onnx", **options)
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("relative, map", {"dynamic_size": True}, "relative biases"),
        ("hybrid", {"dynamic_size": True}, "hybrid"),
    ],
)
def test_a_layer_that_a_format_cannot_say_is_named(kind: str, options: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=words):
        vitrail.export(classifier_of(kind), tmp_path / "x.onnx", **options)
    assert left(tmp_path) == []


def test_an_operation_that_onnx_does_not_have_is_one_line(plain, tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x)

    plain.model.norm = Odd()
    with pytest.raises(VitrailError, match="a layer that ONNX") as caught:
        vitrail.export(plain, tmp_path / "x.onnx")
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == []
