"""The commands as a user types them: what is printed, where, and the exit code."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    changes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 1, "num_classes": 3}
    net = vitrail.create("vit_ti16", zero_head=False, **changes)
    return vitrail.Classifier(net, classes=["rose", "tulip", "daisy"]).save(tmp_path_factory.mktemp("m") / "model")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in ("a.jpg", "b.PNG", "more/c.webp"):
        Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(folder / name)
    (folder / "notes.txt").write_text("not a picture, and not one by its name")
    return folder


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_answers_in_under_six_tenths_of_a_second() -> None:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "vitrail", "--help"], capture_output=True, text=True, check=True)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.6
    for word in ("models", "predict", "--version", "Example"):
        assert word in done.stdout


@pytest.mark.parametrize("command", ["models", "predict"])
def test_every_command_has_help_with_an_example(command: str, capsys) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"Example: vitrail {command}" in out


def test_models_lists_the_zoo_and_says_what_a_gflop_is(capsys) -> None:
    code, out, _ = run(capsys, "models")
    assert code == 0
    assert f"{len(vitrail.models())} models. GFLOP is 2 x multiply-accumulate" in out
    (line,) = [line for line in out.splitlines() if line.startswith("vit_b16 ")]
    assert line.split() == ["vit_b16", "ViT-B/16", "224", "x", "224", "197", "86,567,656", "35.1"]


def test_a_model_is_walked_through_shape_by_shape(capsys) -> None:
    code, out, _ = run(capsys, "models", "vit_base_patch16_224")
    assert code == 0
    places = [out.index(shape) for shape in ("(224, 224, 3)", "(14, 14, 768)", "(197, 768)", "(768)", "(1000)")]
    assert places == sorted(places)
    assert "86,567,656 parameters, 35.13 GFLOP" in out


def test_json_is_one_object_and_nothing_else(capsys, model: Path, photos: Path) -> None:
    for arguments in (["models", "deit*"], ["models", "ViT-B/16"], ["predict", model, photos]):
        code, out, err = run(capsys, *arguments, "--json")
        assert code == 0
        assert err == ""
        assert isinstance(json.loads(out), dict)


def test_predict_reads_files_and_folders_in_order(capsys, model: Path, photos: Path) -> None:
    code, out, err = run(capsys, "predict", model, photos, photos / "a.jpg", "--top", 2, "--batch-size", 2)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        str(photos / name) for name in ("a.jpg", "b.PNG", "more/c.webp", "a.jpg")
    ]
    assert lines[0] == lines[3]
    wanted = vitrail.load(model).predict(photos / "a.jpg", top=2)[0]
    assert lines[0].split(": ", 1)[1] == ", ".join(f"{label} {score:.1%}" for label, score in wanted.top)


def test_predict_sees_a_large_photograph_as_the_classifier_does(capsys, model: Path, tmp_path: Path) -> None:
    waves = np.add.outer(np.arange(605), np.arange(803)) % 256
    Image.fromarray(waves.astype(np.uint8)).save(tmp_path / "large.jpg")
    _, out, _ = run(capsys, "predict", model, tmp_path / "large.jpg", "--json")
    wanted = vitrail.load(model).predict(tmp_path / "large.jpg")[0]
    assert json.loads(out)["predictions"][0]["score"] == pytest.approx(wanted.score, abs=1e-6)


def test_a_broken_picture_is_skipped_named_and_counted(capsys, model: Path, photos: Path) -> None:
    (photos / "broken.jpg").write_bytes((photos / "a.jpg").read_bytes()[:300])
    code, out, err = run(capsys, "predict", model, photos)
    assert code == 0
    assert len(out.splitlines()) == 3
    assert "skipped:" in err
    assert "broken.jpg" in err
    assert "3 predicted, 1 skipped" in err
    code, out, _ = run(capsys, "predict", model, photos, "--json")
    assert [line["path"] for line in json.loads(out)["skipped"]] == [str(photos / "broken.jpg")]


def failures(model: Path, photos: Path) -> list[tuple[list[object], int, str]]:
    return [
        (["predict", model, photos / "absent.jpg"], 1, "there is no .*absent.jpg: check the path"),
        (["predict", photos / "absent", photos], 1, "give a model folder or a checkpoint file"),
        (["predict", "vit_b16", photos], 1, "name of an architecture, which has no weights"),
        (["predict", model, photos / "notes.txt"], 1, "none of 1 files could be read as a picture"),
        (["predict", model, model], 1, "there are no pictures in"),
        (["predict", model, photos, "--device", "cuda:77"], 1, "the device 'cuda:77' cannot be used here"),
        (["predict", model, photos, "--img-size", 33], 1, "nearest size that fits is 32 x 32"),
        (["predict", model, photos, "--top", 0], 1, "must be at least 1"),
        (["models", "vit_b17"], 1, "did you mean 'vit_b16'"),
        (["models", "zzz*"], 1, "no model matches"),
        (["predict", model, photos, "--out", photos / "notes.txt" / "a.csv"], 1, "notes.txt cannot be read or written"),
        (["plan", "--epochs", "nan"], 1, "must be above 0, not nan"),
        (["plan", "--price", "inf"], 1, "must be a number and not negative"),
        (["bench", "--seconds", "nan", "--peers", "none"], 1, "must be above 0, not nan"),
        (["modles"], 2, "models"),
        (["predict"], 2, "MODEL"),
        (["predict", model, photos, "--topp", 3], 2, "--topp"),
        (["predict", model, photos, "--top", "many"], 2, "many"),
    ]


@pytest.mark.parametrize("case", range(18))
def test_bad_input_gets_one_line_and_the_right_code(case: int, capsys, model: Path, photos: Path) -> None:
    import re

    arguments, wanted, words = failures(model, photos)[case]
    code, out, err = run(capsys, *arguments)
    assert code == wanted
    assert out == ""
    last = err.strip().splitlines()[-1]
    assert last.startswith("vitrail: ")
    assert re.search(words, last), last
    assert "Traceback" not in err
    assert "skipped" in err or len(err.strip().splitlines()) == 1


def test_a_traceback_needs_debug(model: Path) -> None:
    with pytest.raises(vitrail.VitrailError):
        main(["predict", str(model), "absent.jpg", "--debug"])


def test_a_closed_pipe_is_no_failure() -> None:
    command = f"{sys.executable} -m vitrail models | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("name")
