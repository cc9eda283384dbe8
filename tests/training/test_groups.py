"""Parameter groups: who learns how fast and is decayed how much, beside timm's own rules."""

from typing import Any

import pytest
import torch
from torch import nn

from vitrail.errors import ConfigError
from vitrail.model import ResNet, ResNetConfig, ViT, ViTConfig
from vitrail.training.groups import parameter_groups
from vitrail.training.recipe import Group, Optimiser

TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5}


def settings(model: nn.Module, optimiser: Optimiser) -> dict[str, dict[str, Any]]:
    """Each parameter's group, by its name."""
    found = {}
    for group in parameter_groups(model, optimiser):
        assert len(group["names"]) == len(group["params"])
        for name, parameter in zip(group["names"], group["params"], strict=True):
            assert parameter is model.get_parameter(name)
            assert name not in found
            found[name] = group
    return found


@pytest.mark.parametrize("decay", [1.0, 0.75, 0.65])
@pytest.mark.parametrize("extra", [{}, {"class_token": True, "reg_tokens": 2, "init_values": 1e-4, "qk_norm": True}])
def test_rates_and_decays_are_those_of_timm(decay: float, extra: dict[str, Any]) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed: uv run --all-extras pytest")
    from timm.optim import param_groups_layer_decay

    peer = timm.models.VisionTransformer(**TINY, **extra)
    theirs = {}
    names = {parameter: name for name, parameter in peer.named_parameters()}
    for group in param_groups_layer_decay(peer, 0.05, peer.no_weight_decay(), layer_decay=decay):
        for parameter in group["params"]:
            theirs[names[parameter]] = (group["lr_scale"], group["weight_decay"])
    ours_of = {"reg_tokens": "registers", "init_values": "layer_scale"}
    model = ViT(ViTConfig(**TINY, **{ours_of.get(key, key): value for key, value in extra.items()}))
    ours = settings(model, Optimiser(layer_decay=decay))
    assert ours.keys() == theirs.keys()
    for name, (scale, weight_decay) in theirs.items():
        if not name.startswith("norm."):  # timm counts the last norm to the last block; BEiT and MAE to the head
            assert ours[name]["lr_scale"] == pytest.approx(scale, rel=1e-12), name
        assert ours[name]["weight_decay"] == weight_decay, name


def test_layers_count_as_in_beit_and_mae() -> None:
    model = ViT(ViTConfig(**TINY, distilled=True, registers=2, pre_norm=True))
    found = settings(model, Optimiser(layer_decay=0.5, lr=8.0))
    scales = {name: group["lr_scale"] for name, group in found.items()}
    for name in ("patch_embed.proj.weight", "cls_token", "dist_token", "reg_token", "pos_embed", "norm_pre.weight"):
        assert scales[name] == 0.5**4
    for block in range(3):
        assert scales[f"blocks.{block}.attn.qkv.weight"] == 0.5 ** (3 - block)
    for name in ("norm.weight", "head.weight", "head.bias", "head_dist.weight"):
        assert scales[name] == 1
    assert found["cls_token"]["base_lr"] == 8
    assert found["cls_token"]["lr"] == 0.5


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "learned_2d", "layer_scale": 0.1, "relative_bias": True, "qk_norm": True, "registers": 3},
        {"pool": "map", "norm": "rms", "distilled": False, "mlp": "swiglu", "pre_logits": 16},
        {"distilled": True, "pre_norm": True},
    ],
)
def test_only_matrices_and_filters_are_decayed(changes: dict[str, Any]) -> None:
    found = settings(ViT(ViTConfig(**TINY, **changes)), Optimiser())
    for name, group in found.items():
        is_map = name.endswith(".weight") and "norm" not in name
        assert group["weight_decay"] == (0.05 if is_map else 0.0), name


def test_without_layer_decay_there_are_two_groups() -> None:
    groups = parameter_groups(ViT(ViTConfig(**TINY)), Optimiser())
    assert sorted(group["weight_decay"] for group in groups) == [0, 0.05]
    assert all(group["lr"] == 1e-3 and group["lr_scale"] == 1 for group in groups)


def test_the_last_rule_that_matches_holds() -> None:
    rules = (
        Group("*", frozen=True),
        Group("head.*", lr=10.0),
        Group("blocks.[12].*", lr=0.5, weight_decay=0.2),
        Group("blocks.2.mlp.*"),
        Group("blocks.1.norm1.weight", frozen=True),
    )
    model = ViT(ViTConfig(**TINY))
    found = settings(model, Optimiser(groups=rules, layer_decay=0.5, lr=1.0))
    assert {name.split(".")[0] for name in found} == {"head", "blocks"}
    assert "blocks.0.attn.qkv.weight" not in found
    assert "blocks.1.norm1.weight" not in found
    assert found["head.weight"]["lr"] == 10
    assert (found["blocks.1.attn.qkv.bias"]["lr"], found["blocks.1.attn.qkv.bias"]["weight_decay"]) == (0.125, 0.2)
    assert (found["blocks.2.mlp.fc1.weight"]["lr"], found["blocks.2.mlp.fc1.weight"]["weight_decay"]) == (0.5, 0.05)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (name in found)


def test_a_pattern_that_matches_nothing_names_what_is_near() -> None:
    with pytest.raises(ConfigError, match=r"'haed\.\*'.*head\.weight"):
        parameter_groups(ViT(ViTConfig(**TINY)), Optimiser(groups=(Group("haed.*"),)))


def test_nothing_left_to_train_is_an_error() -> None:
    with pytest.raises(ConfigError, match="every parameter is frozen"):
        parameter_groups(ViT(ViTConfig(**TINY)), Optimiser(groups=(Group("*", frozen=True),)))


def test_muon_has_the_matrices_of_the_blocks() -> None:
    model = ViT(ViTConfig(**TINY, mlp="swiglu", relative_bias=True, pool="map"))
    found = settings(model, Optimiser(name="muon", lr=1e-3, muon_lr=0.02, layer_decay=0.5))
    matrices = {name: group["parts"] for name, group in found.items() if group["kind"] == "matrix"}
    parts = {"attn.qkv": 3, "attn.proj": 1, "mlp.fc1": 2, "mlp.fc2": 1}
    assert matrices == {f"blocks.{i}.{key}.weight": n for i in range(3) for key, n in parts.items()}
    assert found["blocks.2.attn.qkv.weight"]["lr"] == 0.01
    assert found["head.weight"]["lr"] == 1e-3
    whole = parameter_groups(model, Optimiser(name="muon"), split=False)
    assert {group["parts"] for group in whole} == {1}


def test_a_residual_network_has_groups_but_no_layer_decay_and_no_muon() -> None:
    model = ResNet(ResNetConfig(img_size=(32, 32), layers=(1, 1), num_classes=3))
    names = {name for group in parameter_groups(model, Optimiser()) for name in group["names"]}
    assert names == {name for name, _ in model.named_parameters()}
    for wrong in (Optimiser(layer_decay=0.5), Optimiser(name="muon")):
        with pytest.raises(ConfigError, match="Vision Transformer"):
            parameter_groups(model, wrong)


def test_groups_go_into_an_optimiser_of_torch() -> None:
    groups = parameter_groups(ViT(ViTConfig(**TINY)), Optimiser(layer_decay=0.5))
    made = torch.optim.AdamW(groups, lr=1.0)
    assert [group["lr"] for group in made.param_groups] == [group["lr"] for group in groups]
