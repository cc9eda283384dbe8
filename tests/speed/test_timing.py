"""Step times and exchange between devices: against closed forms, torch's FLOP counter, the paper's table, a GPU."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import vitrail
from vitrail.model.zoo import configure
from vitrail.speed.activations import has_kernels
from vitrail.speed.efficiency import Efficiency, Work, efficiency_of, fit, read_table, write_table
from vitrail.speed.hardware import DEVICES, GIB
from vitrail.speed.matrices import linear_flops, muon_flops
from vitrail.speed.memory import Setup, memory_of
from vitrail.speed.timing import Step, exchanged, pace, step_of, training_flops, work_of
from vitrail.training.groups import parameter_groups
from vitrail.training.optimisers import make_optimiser
from vitrail.training.recipe import Optimiser

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 3, "num_heads": 3, "num_classes": 11}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_arithmetic_is_what_torch_counts(checkpointing: bool) -> None:
    # mean pooling: every token goes through every block, as the count has it
    config = vitrail.ViTConfig(**SMALL, pool="mean", class_token=False)
    model = vitrail.create(config).train()
    model.gradient_checkpointing = checkpointing
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(2, 3, 64, 64)).sum().backward()
    counted = training_flops(Setup(config, 2, checkpointing=checkpointing)) * 2
    # torch counts neither the gradient of the pictures, which nobody needs, nor less for attention's backward pass,
    # which computes its weights again
    assert counter.get_total_flops() == pytest.approx(counted, rel=0.06)


def test_a_ring_sends_what_the_closed_form_says() -> None:
    config = configure("vit_b16")
    bytes_ = 4 * 86_567_656
    assert exchanged(Setup(config, 8)) == 0
    assert exchanged(Setup(config, 8, devices=2)) == bytes_  # half around, twice
    assert exchanged(Setup(config, 512, devices=512)) == pytest.approx(2 * bytes_, rel=0.01)
    spread = Setup(config, 8, devices=2, shard=True, checkpointing=True)
    assert exchanged(spread) == 1.5 * bytes_
    assert exchanged(replace(spread, accumulate=2)) == 3 * bytes_


def test_the_slowest_link_sets_the_pace() -> None:
    h100, config = DEVICES["h100"], configure("vit_b16")
    assert pace(Setup(config, 64, devices=8), h100, 50) == 450e9
    assert pace(Setup(config, 64, devices=16), h100, 50) == 50e9
    assert pace(Setup(config, 64, devices=16), h100, 900) == 450e9


def test_exchange_is_hidden_by_the_backward_pass_where_it_is_short() -> None:
    h100, config = DEVICES["h100"], configure("vit_b16")
    efficiency = efficiency_of("h100", False)
    many = step_of(Setup(config, 2048, devices=8), h100, efficiency, 50)
    assert many.waiting == pytest.approx(0.1 * many.exchange)
    few = step_of(Setup(config, 16, devices=16), h100, efficiency, 0.1)
    assert few.waiting == pytest.approx(few.exchange - 0.9 * 2 / 3 * few.compute)


@pytest.mark.parametrize(
    ("model", "pictures", "core_days"),
    [("vit_h14", 14 * 303e6, 2500), ("vit_l16", 14 * 303e6, 680), ("vit_l16", 90 * 14.2e6, 230)],
)
def test_the_paper_s_table_of_tpu_core_days(model: str, pictures: float, core_days: float) -> None:
    """Table 2: H/14 and L/16 on JFT for 14 epochs, L/16 on ImageNet-21k for 90, on TPUv3 cores."""
    core = DEVICES["tpuv3"]
    step = step_of(
        Setup(configure(model), 4096, devices=512, kernels=False), core, efficiency_of("tpuv3", True), core.network
    )
    predicted = step.seconds * 512 * pictures / 4096 / 86400
    assert 0.5 < predicted / core_days < 2


def measured() -> list[dict[str, Any]]:
    """Steps on one H200 of Ti, S, B, L and H."""
    rows: list[dict[str, Any]] = json.loads((BENCHMARKS / "plan_check.json").read_text())["rows"]
    assert {row["model"].partition(" at ")[0] for row in rows} == {"ti16", "s16", "b16", "l16", "h14"}
    return rows


def setup_of(row: dict[str, Any]) -> Setup:
    name, _, size = row["model"].partition(" at ")
    config = configure(f"vit_{name}", **({"img_size": int(size.split()[0])} if size else {}))
    recorded = row["way"] == "recorded"
    kernels = recorded or has_kernels(config, row["batch"])
    return Setup(config, row["batch"], precision=row["precision"], kernels=kernels, recorded=recorded)


def predicted_step(row: dict[str, Any]) -> Step:
    device = DEVICES["h200"]
    return step_of(setup_of(row), device, efficiency_of("h200", row["way"] != "eager"), device.network)


def test_compiled_and_recorded_steps_are_what_was_measured() -> None:
    rows = [row for row in measured() if row["way"] != "eager"]
    assert {row["way"] for row in rows} == {"compiled", "recorded"}
    assert {row["precision"] for row in rows} == {"bf16", "bf16_residual", "fp8"}
    for row in rows:
        assert 1e3 * predicted_step(row).seconds == pytest.approx(row["measured_ms"], rel=0.1), row


def test_eager_steps_are_what_was_measured_and_less_exact_where_the_cpu_is_waited_for() -> None:
    for row in measured():
        if row["way"] == "eager":
            step = predicted_step(row)
            near = 0.25 if step.waits_for_cpu else 0.15
            assert 1e3 * step.seconds == pytest.approx(row["measured_ms"], rel=near), row


def test_two_pictures_wait_for_the_cpu_and_large_models_do_not() -> None:
    """By what was measured: two pictures of B/16 take three quarters of the time of 128; H/14 is bound by its own."""
    waits = {(row["model"], row["batch"]): predicted_step(row).waits_for_cpu
             for row in measured() if row["way"] == "eager"}  # fmt: skip
    assert all(waits[small] for small in [("ti16", 2), ("ti16", 256), ("b16", 2)])
    assert not any(waits[large] for large in [("s16", 512), ("b16", 256), ("l16", 128), ("h14", 64)])
    assert not any(predicted_step(row).waits_for_cpu for row in measured() if row["way"] != "eager")


def test_starting_kernels_and_computing_are_the_sides_of_a_right_angle() -> None:
    one = Efficiency(products=2, narrow=0, carried=0, block_s=0.5)
    assert one.seconds(Work(flop=3, width=1, carried=0, blocks=16), 2, 1) == pytest.approx((3**2 + 8**2) ** 0.5)
    assert one.seconds(Work(flop=3, width=1, carried=0, blocks=0), 2, 1) == 3


@pytest.mark.parametrize("mlp", ["plain", "swiglu"])
def test_the_arithmetic_of_the_blocks_linear_maps_is_what_torch_counts(mlp: str) -> None:
    config = vitrail.ViTConfig(**SMALL, mlp=mlp, mlp_ratio=4)
    tokens = config.num_prefix + config.num_patches
    counted = 0
    for module in vitrail.create(config).blocks.modules():
        if isinstance(module, torch.nn.Linear):
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                module(torch.randn(tokens, module.in_features))
            counted += counter.get_total_flops()
    assert linear_flops(config) == counted


@pytest.mark.parametrize("mlp", ["plain", "swiglu"])
def test_the_arithmetic_of_muon_is_what_torch_counts(mlp: str) -> None:
    config = vitrail.ViTConfig(**SMALL, mlp=mlp, mlp_ratio=4)
    model, settings = vitrail.create(config), Optimiser(name="muon")
    optimiser = make_optimiser(parameter_groups(model, settings), settings)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    with FlopCounterMode(display=False) as counter:
        optimiser.step()
    assert muon_flops(config) == counter.get_total_flops()
    plain, muon = (work_of(Setup(config, 8, optimiser=name)) for name in ("adamw", "muon"))
    assert muon.flop - plain.flop == muon_flops(config)


def test_eight_bits_are_quicker_and_no_more_than_twice_as_quick() -> None:
    device, efficiency = DEVICES["h100"], efficiency_of("h100", True)
    for model in ("vit_ti16", "vit_b16", "vit_h14"):
        fast, eight = (
            step_of(Setup(configure(model), 64, precision=name), device, efficiency, 50).seconds
            for name in ("bf16_residual", "fp8")
        )
        assert fast / 2 < eight < fast


@pytest.mark.parametrize("recipe", ["cifar10-94", "cifar10-95", "cifar10-96"])
def test_recipes_whose_pictures_grow_take_about_as_long_as_they_took(recipe: str) -> None:
    """Steps and seconds of record.json: what is done to the pictures, on the same device, is not counted."""
    rows = json.loads((BENCHMARKS / "cifar10" / "record.json").read_text())["rows"]
    row = next(row for row in rows if row["recipe"] == recipe and not row["changes"])
    made = vitrail.plan(recipe=recipe, pictures="cifar10")
    assert made.steps == row["runs"][0]["steps"]
    assert 0.75 * row["seconds"] < 3600 * made.hours < row["seconds"]


def test_memory_is_what_was_measured() -> None:
    for row in measured():
        if row["batch"] > 2:
            assert memory_of(setup_of(row)).peak / GIB == pytest.approx(row["measured_gib"], rel=0.1), row["model"]


@settings(max_examples=40, deadline=None)
@given(
    products=st.floats(1.3, 4),
    narrow=st.floats(0, 2000),
    carried=st.floats(0, 10),
    noise=st.floats(0, 0.01),
)
def test_factors_are_found_again_from_the_times_they_make(products, narrow, carried, noise) -> None:
    truth = Efficiency(products, narrow, carried, 1e-4)
    works = [
        work_of(Setup(configure(f"vit_{name}"), batch))
        for name, batch in (("ti16", 512), ("s16", 256), ("s16", 512), ("b16", 128), ("l16", 64), ("h14", 32))
    ]
    draw = np.random.default_rng(0).uniform(-noise, noise, len(works))
    rows = [(work, truth.seconds(work, 1e15, 4e12) * (1 + d)) for work, d in zip(works, draw, strict=True)]
    start = Work(1.0, 192, 1.0, 12)  # nearly nothing to compute
    found = fit([*rows, (start, truth.seconds(start, 1e15, 4e12))], 1e15, 4e12)
    assert found is not None
    for work, seconds in rows:
        assert found.seconds(work, 1e15, 4e12) == pytest.approx(seconds, rel=0.01 + 2 * noise)


def test_a_table_that_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    one = Efficiency(2.0, 100.0, 3.0, 2.5e-4)
    write_table({"x": {"eager": one}}, {"x": "made up"}, path)
    write_table({"y": {"eager": one}}, {"y": "made up"}, path)
    table = json.loads(path.read_text())
    assert table["devices"]["x"] == {"eager": {"products": 2.0, "narrow": 100.0, "carried": 3.0, "block_s": 2.5e-4}}
    assert set(table["about"]) == {"x", "y"}


def test_every_device_of_the_table_has_factors_and_says_where_its_figures_are_from() -> None:
    for device in DEVICES.values():
        assert device.source
        assert efficiency_of(device.name, True).measured == (device.name in read_table()["devices"])


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["vit_ti16", "vit_b16", "vit_h14"]), st.sampled_from(sorted(DEVICES)), st.integers(0, 8))
def test_more_devices_are_never_slower_at_an_equal_batch_for_each(model: str, kind: str, power: int) -> None:
    device, devices = DEVICES[kind], 2**power

    def rate(count: int) -> float:
        setup = Setup(configure(model), 32 * count, devices=count)
        return setup.batch / step_of(setup, device, efficiency_of(kind, False), device.network).seconds

    assert rate(2 * devices) <= 2.0001 * rate(devices)  # nor more than twice as fast
    if 2 * devices <= device.per_machine:
        assert rate(2 * devices) >= rate(devices)
