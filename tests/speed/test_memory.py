"""The planner's closed forms of memory: against what autograd saves, torch's own state, and a GPU's allocator."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitrail
from tests.speed.saved import saved_by_kernels, saved_bytes
from vitrail.errors import VitrailError
from vitrail.model.walk import parameters
from vitrail.model.zoo import configure
from vitrail.speed.activations import has_kernels, kept, kept_once
from vitrail.speed.memory import Setup, largest_part, memory_of, part_parameters
from vitrail.training.groups import parameter_groups
from vitrail.training.optimisers import make_optimiser, named_state
from vitrail.training.recipe import Optimiser

SMALL = {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 3, "num_heads": 3, "num_classes": 11}
HYBRID = vitrail.ResNetConfig(
    layers=(2, 2), preact=False, padding="same", num_classes=0, width=32, img_size=64
)  # fmt: skip
KINDS = {
    "plain": {},
    "deep and narrow": {"embed_dim": 32, "num_heads": 2, "depth": 9},
    "wide": {"embed_dim": 256, "num_heads": 4, "depth": 2},
    "mean": {"pool": "mean", "class_token": False},
    "attention pool": {"pool": "map"},
    "two levels": {"levels": (1, 2)},
    "LayerScale, drop-path": {"layer_scale": 0.1, "drop_path": 0.1},
    "rope": {"rope": True},
    "norm of queries and keys": {"qk_norm": True},
    "SwiGLU": {"mlp": "swiglu"},
    "quick GELU": {"act": "quick_gelu"},
    "ReLU": {"act": "relu"},
    "hidden layer before the head": {"pre_logits": 96},
    "norm before the blocks": {"pre_norm": True},
    "registers": {"registers": 4},
    "normed patches": {"patch_norm": "both"},
}
IN_FULL = {
    "convolutional stem": {"conv_stem": (16, 32), "patch_size": 4},
    "hybrid": {"backbone": HYBRID, "patch_size": 1},
}


SHORT = {"img_size": 32}  # 17 tokens: one kernel does all of attention
EVERY = {"pool": "mean", "class_token": False, "final_norm": "pooled"}  # token is computed by the last block too
BY_KERNELS = {
    "plain": {},
    "every token": EVERY,
    "rope": {"rope": True},
    "short": SHORT,
    "short, normed and turned": {**SHORT, **EVERY, "norm": "rms", "qk_norm": True, "rope": True},
    "SwiGLU": {**SHORT, "mlp": "swiglu"},
    "tanh form of GELU": {**SHORT, "act": "gelu_tanh"},
    "LayerScale": {**SHORT, "layer_scale": 0.1},
}


def predicted(config, batch: int, precision: str) -> int:
    rooms = kept(config, precision, kernels=False)
    return batch * sum(room.saved for room in rooms) + kept_once(config, parameters(config), precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_residual"])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_activations_are_what_autograd_saves(kind: str, precision: str) -> None:
    config = vitrail.ViTConfig(**{**SMALL, **KINDS[kind]})
    assert predicted(config, 6, precision) == pytest.approx(saved_bytes(config, 6, precision), rel=0.05)


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
def test_our_kernels_save_what_is_predicted() -> None:
    """For each picture more, to 1%: copies of the weights, which these small models have most of, drop out."""
    kinds = [(kind, precision) for kind in BY_KERNELS for precision in ("bf16", "bf16_residual")]
    options = {kind: {**SMALL, **changes} for kind, changes in BY_KERNELS.items()}
    found = saved_by_kernels([(options[kind], batch, precision) for kind, precision in kinds for batch in (1, 2)])
    for (kind, precision), one, two in zip(kinds, found[::2], found[1::2], strict=True):
        config = vitrail.ViTConfig(**options[kind])
        saved = sum(room.saved for room in kept(config, precision, kernels=True))
        assert saved == pytest.approx(two - one, rel=0.01), (kind, precision)


def test_the_planner_knows_where_our_kernels_compute() -> None:
    assert has_kernels(configure("vit_b16"), 256)
    assert not has_kernels(configure("vit_b16"), 2)
    config = configure("vit_b16")
    assert kept(config, "fp32", kernels=True) == kept(config, "fp32", kernels=False)


@pytest.mark.parametrize("kind", IN_FULL)
def test_saved_activations_of_convolutions(kind: str) -> None:
    config = vitrail.ViTConfig(**{**SMALL, **IN_FULL[kind]})
    assert predicted(config, 6, "fp32") == pytest.approx(saved_bytes(config, 6, "fp32"), rel=0.05)


@pytest.mark.parametrize("changes", [{}, {"preact": False, "padding": "same"}, {"small_stem": True, "img_size": 32}])
def test_saved_maps_of_a_resnet(changes: dict) -> None:
    config = vitrail.ResNetConfig(**{"img_size": 64, "layers": (2, 2), "num_classes": 11, "width": 32, **changes})
    assert predicted(config, 4, "fp32") == pytest.approx(saved_bytes(config, 4, "fp32"), rel=0.05)


def test_the_paper_s_models_at_their_own_size() -> None:
    for name in ("vit_ti16", "deit_s16", "deit3_s16"):
        config = configure(name)
        assert predicted(config, 1, "bf16") == pytest.approx(saved_bytes(config, 1, "bf16"), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "precision"), [("plain", "bf16"), ("mean", "fp32"), ("dropout", "bf16")])
def test_a_compiled_model_saves_about_as_much(kind: str, precision: str) -> None:
    torch.compiler.reset()
    changes = {"dropout": 0.1} if kind == "dropout" else KINDS[kind]
    config = vitrail.ViTConfig(**{**SMALL, **changes})
    found = saved_bytes(config, 6, precision, compiled=True)
    assert predicted(config, 6, precision) == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_residual"])
def test_what_is_computed_again_is_not_saved(precision: str) -> None:
    config = vitrail.ViTConfig(**SMALL)
    rooms = kept(config, precision, kernels=False)
    saved = 6 * sum(room.entrance if room.name == "block" else room.saved for room in rooms)
    assert saved == pytest.approx(saved_bytes(config, 6, precision, checkpointing=True), rel=0.05)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "lion", "muon"])
def test_the_state_of_an_optimiser_is_torch_s(name: str) -> None:
    config = configure("vit_ti16", depth=4, num_classes=10)
    model = vitrail.create(config)
    settings = Optimiser(name=name)
    state = named_state(make_optimiser(parameter_groups(model, settings), settings), model)
    real = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    assert memory_of(Setup(config, 1, optimiser=name)).optimiser == pytest.approx(real, rel=0.03)


@pytest.mark.parametrize("name", ["vit_ti16", "vit_b16_in21k", "r50_vit_b16", "r50", "dinov2_s14_reg"])
def test_the_parts_have_all_parameters(name: str) -> None:
    config = configure(name)
    assert sum(part_parameters(config)) == parameters(config)
    assert len(part_parameters(config)) == len(kept(config, "bf16", kernels=True))


def test_the_peak_on_a_gpu_is_within_two_percent() -> None:
    """`benchmarks/model_speed_h200.jsonl`: what the allocator of an H200 had beyond weights and pictures, before there
    were kernels of our own."""
    lines = (Path(__file__).parents[2] / "benchmarks/model_speed_h200.jsonl").read_text().splitlines()[1:]
    rows = [row for row in map(json.loads, lines) if row["mode"] == "train"]
    assert {row["model"] for row in rows} == {"ti16", "s16", "b16", "l16"}
    for row in rows:
        memory = memory_of(Setup(configure(f"vit_{row['model']}"), row["batch"], kernels=False))
        pictures = row["batch"] * 3 * 224 * 224 * 5
        extra = (memory.peak - memory.parameters - pictures) / 2**30
        assert extra == pytest.approx(row["extra_memory_gib"]["vitrail"], rel=0.02)


@pytest.mark.parametrize(
    ("model", "batch", "precision", "kernels", "gib"),
    [
        # compiled steps of the loop of training on an H200, AdamW, no average, 2026-11-16: pictures as bytes too
        ("vit_b16", 256, "bf16_residual", True, 11.97),
        ("vit_b16", 256, "bf16_residual", False, 14.74),
        ("vit_b16", 256, "bf16", False, 16.45),
        # `vitrail bench` there, the same day: pictures as numbers alone, which is 0.04 or 0.07 GiB less
        ("vit_b16", 256, "bf16_residual", True, 11.94 + 0.04),
        ("vit_s16", 512, "bf16_residual", True, 11.30 + 0.07),
        ("vit_ti16", 512, "bf16_residual", True, 5.82 + 0.07),  # when it had kernels: now it is too little work
    ],
)
def test_the_peak_of_a_step_with_and_without_our_kernels(model, batch, precision, kernels, gib) -> None:
    setup = Setup(configure(model), batch, precision=precision, kernels=kernels)
    assert memory_of(setup).peak / 2**30 == pytest.approx(gib, rel=0.02)


setups = st.builds(
    Setup,
    config=st.sampled_from([configure(name) for name in ("vit_ti16", "vit_b16_384", "vit_h14", "deit_s16_distilled")]),
    batch=st.integers(32, 4096),
    devices=st.integers(2, 16),
    accumulate=st.sampled_from([1, 2]),
    precision=st.sampled_from(["fp32", "bf16", "bf16_residual", "fp16"]),
    optimiser=st.sampled_from(["adamw", "sgd", "muon"]),
    ema=st.booleans(),
    kernels=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(setups, st.integers(2, 8), st.booleans())
def test_more_devices_never_need_more_memory_each(setup: Setup, times: int, shard: bool) -> None:
    setup = replace(setup, shard=shard, checkpointing=shard, batch=setup.batch * times)
    more = replace(setup, devices=setup.devices * times)
    assert memory_of(more).peak <= memory_of(setup).peak


@settings(max_examples=60, deadline=None)
@given(setups, st.integers(1, 100))
def test_more_pictures_never_need_less(setup: Setup, more: int) -> None:
    assert memory_of(replace(setup, batch=setup.batch + more)).peak >= memory_of(setup).peak


@settings(max_examples=40, deadline=None)
@given(setups)
def test_sharding_and_computing_again_save_memory(setup: Setup) -> None:
    plain = memory_of(replace(setup, checkpointing=True))
    spread = memory_of(replace(setup, checkpointing=True, shard=True))
    assert spread.parameters == pytest.approx(plain.parameters / setup.devices, abs=1)
    assert spread.optimiser == pytest.approx(plain.optimiser / setup.devices, abs=1)
    assert plain.activations <= memory_of(setup).activations


@settings(max_examples=40, deadline=None)
@given(setups, st.floats(1, 150))
def test_the_largest_batch_fits_and_one_more_does_not(setup: Setup, gib: float) -> None:
    room = gib * 2**30
    part = largest_part(setup, room)
    assert part == 0 or memory_of(setup.with_part(part)).peak <= room
    assert memory_of(setup.with_part(part + 1)).peak > room


def test_what_cannot_be_is_refused_in_one_line() -> None:
    config = configure("vit_ti16")
    for changes, words in (
        ({"batch": 0}, "--batch-size must be at least 1"),
        ({"batch": 4, "devices": 8}, "larger --batch-size"),
        ({"batch": 4, "devices": 2, "accumulate": 4}, "2 devices x 4 parts"),
    ):
        with pytest.raises(VitrailError, match=words):
            Setup(config, **changes)
    with pytest.raises(VitrailError, match="ResNet has no blocks"):
        Setup(configure("r50"), 8, checkpointing=True)
