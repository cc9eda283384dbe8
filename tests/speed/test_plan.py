"""`vitrail plan`: what it says, on which inputs, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.speed.hardware import find_device
from vitrail.speed.plan import SETS


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(["plan", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_plan_adds_up() -> None:
    made = vitrail.plan("vit_b16", batch_size=1024, gpus=8, kind="h100", epochs=90, price=2.0)
    assert made.setup.local == 128
    assert made.steps == -(-90 * SETS["imagenet"] // 1024)
    assert made.hours == pytest.approx(made.steps * made.step.seconds / 3600)
    assert made.cost == pytest.approx(made.hours * 8 * 2.0)
    assert made.pictures_per_s == pytest.approx(1024 / made.step.seconds)
    content = made.to_json()
    parts = ("parameters", "gradients", "optimiser", "ema", "activations", "working")
    assert sum(content["memory"][part] for part in parts) == content["memory"]["peak"]
    assert content["model"]["parameters"] == 86_567_656
    json.dumps(content)


def test_a_recipe_says_what_is_not_given() -> None:
    made = vitrail.plan(recipe="pretrain-i21k", pictures="imagenet21k", gpus=8)
    assert made.model == "vit_b16"
    assert (made.setup.batch, made.setup.accumulate, made.epochs) == (4096, 4, 90)
    assert made.setup.config.pre_logits == 768
    assert vitrail.plan(recipe="pretrain-i21k", batch_size=512, epochs=1).setup.batch == 512


def test_what_a_recipe_has_that_is_not_counted_is_said(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[distillation]\nteacher = "vit_b16"\n\n[optimiser]\nsam = 0.1\n')
    words = " ".join(vitrail.plan(recipe=tmp_path / "mine.toml").advice)
    assert "the teacher" in words
    assert "sharpness-aware" in words


def test_advice_for_what_does_not_fit_is_true() -> None:
    made = vitrail.plan("vit_h14", batch_size=1024, gpus=4, kind="a100-40")
    assert not made.fits
    words = " ".join(made.advice)
    assert "--accumulate 4 fits" in words
    assert "--shard fits" in words
    assert vitrail.plan("vit_h14", batch_size=1024, gpus=4, kind="a100-40", accumulate=4).fits
    assert not vitrail.plan("vit_h14", batch_size=1024, gpus=4, kind="a100-40", accumulate=2).fits
    assert vitrail.plan("vit_h14", batch_size=1024, gpus=4, kind="a100-40", shard=True).fits
    assert f"--batch-size {made.largest} is the largest" in words
    assert vitrail.plan("vit_h14", batch_size=made.largest, gpus=4, kind="a100-40").fits


def test_where_no_batch_fits_more_devices_are_named() -> None:
    made = vitrail.plan("vit_bigg14", batch_size=64, kind="t4")
    assert made.largest == 0
    (line,) = [line for line in made.advice if "--gpus" in line]
    count = int(line.split()[1])
    assert vitrail.plan("vit_bigg14", batch_size=64, kind="t4", gpus=count, shard=True).fits
    assert not vitrail.plan("vit_bigg14", batch_size=64, kind="t4", gpus=count // 2, shard=True).fits


def test_a_device_without_bfloat16_trains_in_float16() -> None:
    assert vitrail.plan("vit_s16", kind="t4").setup.precision == "fp16"


def test_only_a_gpu_with_enough_to_do_has_kernels_of_our_own() -> None:
    made = vitrail.plan("vit_b16", batch_size=256)
    assert made.setup.kernels
    assert not vitrail.plan("vit_b16", batch_size=2).setup.kernels
    slow = vitrail.plan("vit_b16", batch_size=256, kind="cpu", precision="bf16")
    assert not slow.setup.kernels
    assert slow.memory.peak > 1.2 * made.memory.peak


def test_flags_stand_in_place_of_the_table() -> None:
    assert not vitrail.plan("vit_b16", memory=12).fits
    slow, fast = (vitrail.plan("vit_l16", gpus=16, batch_size=64, kind="h100", network=n) for n in (0.5, 100))
    assert slow.step.exchange > 50 * fast.step.exchange


def test_any_model_can_be_planned(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = vitrail.create("vit_ti16", img_size=32, patch_size=8, embed_dim=64, depth=1, num_heads=1, num_classes=3)
    folder = vitrail.Classifier(net).save(tmp_path / "model")
    made = vitrail.plan(str(folder), batch_size=8)
    assert made.setup.config == net.config
    assert vitrail.plan(net.config, img_size=64, batch_size=8).setup.config.img_size == (64, 64)
    assert vitrail.plan("r50", batch_size=8).memory.peak > 0


def test_real_steps_are_measured(monkeypatch) -> None:
    monkeypatch.setattr("vitrail.speed.measuring.BUDGET", 0.05)
    config = vitrail.ViTConfig(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2, num_classes=3)
    made = vitrail.plan(config, batch_size=64, accumulate=2, ema=True, measure=True, device="cpu", pictures=640)
    assert made.setup.precision == "fp32"  # as training would have it here
    measured = made.measured
    assert measured is not None
    assert measured.batches == (4, 8)
    assert measured.tflops > 0
    assert made.step.seconds >= 2 * measured.seconds[1]  # 32 pictures twice take longer than 8 twice
    assert made.cost is None  # nobody said what this machine costs


def test_the_command_prints_a_table_or_one_object(capsys) -> None:
    code, out, err = run(capsys, "--model", "vit_l16", "--gpus", 8, "--kind", "h100", "--batch-size", 4096)
    assert (code, err) == (0, "")
    assert "activations" in out
    assert "pictures/s" in out
    assert "dollars" in out
    code, out, err = run(capsys, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["fits"] is True


def test_help_has_an_example(capsys) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "Example: vitrail plan --model" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--model", "vit_x16"], 1, "no model named"),
        (["--kind", "h300"], 1, "did you mean 'h200'"),
        (["--pictures", "many"], 1, "no number of pictures"),
        (["--gpus", "0"], 1, "--gpus must be at least 1"),
        (["--epochs", "0"], 1, "--epochs must be above 0"),
        (["--batch-size", "4", "--gpus", "8"], 1, "cannot be spread"),
        (["--recipe", "nothing"], 1, "recipe"),
        (["--recipe", "mae"], 1, "learns without labels (mae)"),
        (["--measure", "--kind", "h100"], 1, "leave --kind out"),
        (["--device", "t4"], 1, "is --kind"),
        (["--measure", "--shard"], 1, "cannot be measured"),
        (["--model", "r50", "--shard"], 1, "ResNet"),
        (["--img-size", "225"], 1, "nearest size"),
        (["--precision", "fp7"], 2, "fp7"),
        (["--price", "-1"], 1, "--price"),
        (["--memory", "0"], 1, "--memory"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], code: int, words: str, capsys) -> None:
    found, out, err = run(capsys, *arguments)
    assert (found, out) == (code, "")
    assert err.count("\n") == 1
    assert words in err


def test_a_plan_does_not_wait_for_torch() -> None:
    code = "import sys, vitrail; vitrail.plan('vit_b16'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_devices_are_found_however_they_are_written() -> None:
    assert find_device("NVIDIA H200").name == "h200"
    assert find_device("A100").name == "a100-80"
    assert find_device("A100_40GB").name == "a100-40"
    with pytest.raises(VitrailError, match="choose from h200"):
        find_device("abacus")


def test_eight_bits_are_planned_as_what_they_take_at_most() -> None:
    assert vitrail.plan("vit_b16", precision="fp8").memory == vitrail.plan("vit_b16", precision="fast").memory
