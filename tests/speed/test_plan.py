"""`vitrail plan`: what it says, on which inputs, and what it refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.model.devices import NARROW
from vitrail.model.zoo import configure
from vitrail.speed import auto_batch, precisions
from vitrail.speed.hardware import find_device
from vitrail.speed.plan import SETS
from vitrail.training.batch_size import PART, STEPS
from vitrail.training.feeding import total_steps
from vitrail.training.precision import choose_precision
from vitrail.training.recipe_files import read_recipe


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(["plan", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_plan_adds_up() -> None:
    made = vitrail.plan("vit_b16", batch_size=1024, gpus=8, kind="h100", epochs=90, price=2.0)
    assert made.setup.local == 128
    assert made.steps == 90 * (SETS["imagenet"] // 1024)  # whole batches of each epoch
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
    assert "frozen" not in words
    (tmp_path / "mine.toml").write_text('[[optimiser.groups]]\nmatch = "blocks.*"\nfrozen = true\n')
    assert any(line.startswith("not counted: frozen") for line in vitrail.plan(recipe=tmp_path / "mine.toml").advice)


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


NARROWER = {"embed_dim": 96, "num_heads": 3}


@pytest.mark.parametrize("name", ["auto", "fast", "fp32"])
@pytest.mark.parametrize("kind", ["h200", "t4", "cpu"])
def test_the_numbers_are_those_that_training_chooses_on_such_a_device(kind: str, name: str, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: kind != "t4")
    monkeypatch.setattr("vitrail.model.devices.cpu_multiplies_bf16", lambda: True)
    monkeypatch.setattr("vitrail.training.precision.cpu_multiplies_bf16", lambda: True)
    there = torch.device("cpu" if kind == "cpu" else "cuda")
    narrow, limit = configure("vit_ti16", **NARROWER), configure("vit_ti16", embed_dim=128, num_heads=2)
    for config in (configure("vit_b16"), limit, narrow, configure("r50")):
        made = vitrail.plan(config, precision=name, kind=kind)
        assert made.setup.precision == made.to_json()["setup"]["precision"] == choose_precision(name, there, config)


def test_a_device_without_bfloat16_is_told_how_it_would_be_faster() -> None:
    made, half = (vitrail.plan("vit_b16", batch_size=64, kind="t4", precision=name) for name in (None, "fp16"))
    assert made.setup.precision == "fp32"
    (line,) = [line for line in made.advice if line.startswith("--precision fp16: ")]
    assert f"{half.pictures_per_s / made.pictures_per_s:.1f} times the pictures a second" in line
    assert not any("--precision" in line for line in half.advice)
    chosen = vitrail.plan("vit_b16", batch_size=64, kind="t4", precision="fp32")
    assert not any("--precision" in line for line in chosen.advice)  # it was asked for
    big = vitrail.plan("vit_b16", batch_size=128, kind="t4")
    assert not big.fits
    assert "--precision fp16 fits" in big.advice
    assert vitrail.plan("vit_b16", batch_size=128, kind="t4", precision="fp16").fits


def test_other_numbers_than_those_that_were_asked_for_are_said(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('precision = "bf16"\n')
    for how in ({"precision": "bf16"}, {"precision": "bf16_residual"}, {"recipe": tmp_path / "mine.toml"}):
        made = vitrail.plan("vit_s16", kind="t4", batch_size=8, **how)
        assert made.setup.precision == "fp16"
        assert any("planned in fp16, not bf16" in line for line in made.advice)
    assert not any("planned in" in line for line in vitrail.plan("vit_s16", precision="bf16").advice)


def test_a_batch_that_training_finds_by_itself_is_the_largest_power_of_two_that_fits(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('model = "vit_b16"\nbatch_size = "auto"\naccumulate = 2\n')
    for gpus in (1, 4):
        made = vitrail.plan(recipe=tmp_path / "mine.toml", kind="a100-40", gpus=gpus)
        assert made.fits
        part = made.setup.part
        assert part & (part - 1) == 0
        assert made.setup.batch == 2 * gpus * part <= made.largest
        twice = vitrail.plan(recipe=tmp_path / "mine.toml", kind="a100-40", gpus=gpus, batch_size=2 * made.setup.batch)
        assert twice.memory.peak > PART * twice.device.memory * 2**30
        assert f"batch_size auto: planned with {made.setup.batch:,}, which" in made.advice[-1]
        assert not any("batch_size auto" in line for line in twice.advice)
    few = vitrail.plan(recipe=tmp_path / "mine.toml", pictures=16 * 1000)
    assert few.setup.batch == 512  # so that an epoch keeps 16 steps
    assert vitrail.plan(recipe=tmp_path / "mine.toml", pictures=100).setup.batch == 64
    assert vitrail.plan(recipe=tmp_path / "mine.toml", kind="cpu").setup.batch == 256
    assert (auto_batch.PART, auto_batch.STEPS) == (PART, STEPS)
    assert precisions.NARROW == NARROW


def test_small_pictures_are_hardly_imagenet_s_and_the_plan_says_whose_number_it_took() -> None:
    (line,) = [line for line in vitrail.plan(recipe="cifar10-94").advice if "ImageNet's" in line]
    assert "1,281,167" in line
    assert "--pictures" in line
    given = vitrail.plan(recipe="cifar10-94", pictures="cifar10")
    assert not any("ImageNet's" in line for line in (*given.advice, *vitrail.plan("vit_b16").advice))


def test_the_head_names_the_model_as_it_was_given_and_as_training_does(capsys) -> None:
    _, out, _ = run(capsys, "--model", "resnetv2_50x1_bit", "--batch-size", 8)
    assert out.startswith("resnetv2_50x1_bit at 224 x 224")
    _, out, _ = run(capsys, "--recipe", "cifar10-94", "--json")
    assert (json.loads(out)["model"]["name"], json.loads(out)["model"]["changed"]) == ("vit_ti16", True)
    _, out, _ = run(capsys, "--recipe", "cifar10-94")
    assert out.startswith("vit_ti16, changed, at 48 x 48")
    _, out, _ = run(capsys, "--model", "vit_b16")
    assert out.startswith("vit_b16 at 224 x 224")


def test_slow_and_few_are_told_in_words_that_fit(capsys) -> None:
    _, out, _ = run(capsys, "--model", "vit_l16", "--kind", "cpu", "--batch-size", 64, "--epochs", 1, "--pictures", 64)
    assert "1 epoch of 64 pictures: 1 step, " in out
    rate, step = re.search(r"([\d.]+) pictures/s, ([\d.]+) minutes a step", out).groups()
    assert float(rate) * float(step) * 60 == pytest.approx(64, rel=0.1)
    _, out, _ = run(capsys, "--model", "vit_b16", "--kind", "cpu", "--batch-size", 1, "--epochs", 2, "--pictures", 2)
    assert "batch 1: 1 picture on each device" in out
    assert "2 epochs of 2 pictures: 4 steps, " in out
    assert " ms a step" in out


def test_epochs_that_are_given_hold_in_place_of_a_recipe_s_steps(capsys, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("steps = 7\nbatch_size = 10\n")
    for flags, words in (
        ([], "0.7 epochs of 100 pictures: 7 steps"),
        (["--epochs", 3], "3 epochs of 100 pictures: 30 "),
    ):
        _, out, _ = run(capsys, "--recipe", tmp_path / "mine.toml", "--pictures", 100, *flags)
        assert words in out


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
        (["--img-size", "0"], 1, "img_size=0 must be a positive whole number"),
        (["--kind", "cpu", "--precision", "fp16"], 1, "fp16 needs a GPU"),
        (["--precision", "fp7"], 2, "fp7"),
        (["--price", "-1"], 1, "--price"),
        (["--memory", "0"], 1, "--memory"),
        (["--pictures", "100"], 1, "smaller --batch-size"),
        (["--model", "r50", "--precision", "fp8"], 1, "is for Vision Transformers"),
        (["--model", "r50", "--optimiser", "muon"], 1, "muon needs"),
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


def test_eight_bits_take_a_device_that_multiplies_them() -> None:
    eight, fast = (vitrail.plan("vit_b16", precision=name, kind="l4") for name in ("fp8", "fast"))
    assert eight.memory == fast.memory  # at most
    assert eight.pictures_per_s > 1.1 * fast.pictures_per_s
    with pytest.raises(VitrailError, match="no eight-bit products: use --precision fast"):
        vitrail.plan("vit_b16", precision="fp8", kind="a100")


STAGES = """
model = "vit_ti16"
epochs = 3
batch_size = 100
img_size = 64
[[stages]]
until = 0.75
img_size = 32
[[stages]]
until = 0.5
img_size = 48
[[stages]]
until = 0.9
augmentation = {mixup = 0.0}
"""


def test_the_stages_of_a_recipe_are_counted_as_training_takes_them(tmp_path: Path) -> None:
    (tmp_path / "grows.toml").write_text(STAGES)
    made = vitrail.plan(recipe=tmp_path / "grows.toml", pictures=1234)
    recipe = read_recipe(tmp_path / "grows.toml", {})
    assert made.steps == total_steps(recipe, 1234) == 36
    assert [(stage.setup.config.img_size[0], stage.steps) for stage in made.stages] == [(48, 18), (32, 9), (64, 9)]
    (tmp_path / "stays.toml").write_text(STAGES.partition("[[stages]]")[0])
    alone = {size: vitrail.plan(recipe=tmp_path / "stays.toml", img_size=size, pictures=1234) for size in (32, 48, 64)}
    seconds = {size: one.step.seconds for size, one in alone.items()}
    assert 3600 * made.hours == pytest.approx(18 * seconds[48] + 9 * seconds[32] + 9 * seconds[64])
    assert made.memory == alone[64].memory  # the fullest
    assert sum(stage["steps"] for stage in made.to_json()["stages"]) == 36


def test_a_recipe_that_counts_its_steps_is_planned_with_those() -> None:
    assert vitrail.plan(recipe="finetune-paper").steps == 10_000
    assert vitrail.plan(recipe="finetune-paper", epochs=2).steps == 2 * (SETS["imagenet"] // 512)


def test_recorded_steps_are_planned_where_training_records_them() -> None:
    small = vitrail.plan("vit_ti16", batch_size=128, compile=True, record=True)
    assert small.setup.recorded
    assert small.pictures_per_s > 1.2 * vitrail.plan("vit_ti16", batch_size=128, compile=True).pictures_per_s
    for elsewhere in ({"gpus": 2}, {"accumulate": 2}, {"kind": "cpu"}):
        made = vitrail.plan("vit_ti16", batch_size=128, record=True, **elsewhere)
        assert not made.setup.recorded
        assert "not recorded: that takes one GPU" in made.advice[-1]
    assert vitrail.plan(recipe="cifar10-94").setup.recorded
    assert not vitrail.plan(recipe="cifar10-94", record=False).setup.recorded


def test_where_the_cpu_is_waited_for_the_plan_says_so_and_what_helps() -> None:
    made = vitrail.plan("vit_ti16", batch_size=64)
    waits, compiled, recorded = made.advice
    assert made.step.waits_for_cpu
    assert "waits for the CPU" in waits
    for line, flags in ((compiled, {"compile": True}), (recorded, {"compile": True, "record": True})):
        other = vitrail.plan("vit_ti16", batch_size=64, **flags)
        assert f"{other.pictures_per_s / made.pictures_per_s:.1f} times the pictures a second" in line
    made, compiled = (vitrail.plan("vit_l16", batch_size=256, compile=way) for way in (False, True))
    gain = compiled.pictures_per_s / made.pictures_per_s - 1
    assert made.advice == (f"--compile: {gain:.0%} more pictures a second",)
    assert not any("CPU" in line for line in vitrail.plan("vit_h14", batch_size=64).advice)
    assert not any("CPU" in line for line in vitrail.plan("vit_ti16", batch_size=2, kind="cpu").advice)
