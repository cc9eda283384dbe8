"""Every configuration that is accepted builds, runs, is counted exactly and survives JSON; every other is refused."""

import dataclasses
import json
import math
from collections import Counter
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from vitrail.errors import ConfigError
from vitrail.model import ResNetConfig, ViTConfig, create
from vitrail.model.walk import flops, parameters, tokens, walk

QUIET = {"deadline": None, "database": None, "derandomize": True}
QUIET["suppress_health_check"] = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
RATES = st.sampled_from([0.0, 0.1, 0.5])


def often(usual: Any, others: st.SearchStrategy) -> st.SearchStrategy:
    """The usual value half of the time: many options at once are rarely a model."""
    return st.one_of(st.just(usual), others)


def literals(name: str) -> st.SearchStrategy:
    """Any of the words that a field allows."""
    return st.sampled_from(get_args(get_type_hints(ViTConfig)[name]))


@st.composite
def resnets(draw: st.DrawFn, **fixed: Any) -> dict[str, Any]:
    """Fields of a ResNet small enough to run at once; some combinations are none."""
    args = {
        "img_size": (draw(st.integers(9, 40)), draw(st.integers(9, 40))),
        "in_chans": draw(st.integers(1, 4)),
        "num_classes": draw(st.integers(0, 5)),
        "layers": draw(st.lists(st.integers(1, 2), max_size=3)),
        "width": draw(st.sampled_from([4, 8, 12])),
        "groups": draw(st.sampled_from([1, 2, 4, 8])),
        "small_stem": draw(st.booleans()),
        "preact": draw(st.booleans()),
        "padding": draw(st.sampled_from(["symmetric", "same"])),
        "norm_eps": draw(st.sampled_from([1e-5, 1e-6])),
        "weight_eps": draw(st.sampled_from([1e-8, 1e-5])),
        "weight_eps_on": draw(st.sampled_from(["variance", "deviation"])),
        "zero_head": draw(st.booleans()),
    }
    return args | fixed


@st.composite
def fronts(draw: st.DrawFn) -> dict[str, Any]:
    """Pictures, and what cuts them into patches."""
    chans = draw(st.integers(1, 4))
    front = draw(st.sampled_from(["patches", "patches", "stride", "conv_stem", "backbone"]))
    patch = (draw(st.sampled_from([2, 3, 4])), draw(st.sampled_from([2, 3, 4])))
    grid = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    stride, conv_stem, backbone, shrunk = None, (), None, 1
    if front == "stride":
        stride = (draw(st.integers(1, patch[0])), draw(st.integers(1, patch[1])))
    elif front == "conv_stem":
        conv_stem = draw(st.lists(st.integers(1, 6), min_size=1, max_size=2))
        shrunk = 2 ** len(conv_stem)
    elif front == "backbone":
        backbone = draw(resnets(in_chans=chans, groups=draw(st.sampled_from([1, 2, 4]))))
        if not backbone["layers"]:
            backbone["preact"] = False
        shrunk = (1 if backbone["small_stem"] else 4) * 2 ** max(len(backbone["layers"]) - 1, 0)
    step = stride or patch
    return {
        "img_size": tuple(shrunk * (p + (n - 1) * s) for p, n, s in zip(patch, grid, step, strict=True)),
        "patch_size": patch,
        "stride": stride,
        "in_chans": chans,
        "conv_stem": conv_stem,
        "backbone": backbone,
    }


@st.composite
def vits(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a ViT small enough to run at once, drawn among all options; some combinations are none."""
    depth = draw(st.integers(1, 3))
    heads, head_dim = draw(st.sampled_from([1, 2, 3, 4])), draw(often(None, st.sampled_from([4, 5, 8])))
    pool, class_token = draw(literals("pool")), draw(often(True, st.booleans()))
    final_norm = draw(often("tokens", literals("final_norm")))
    distilled = class_token and pool == "token" and draw(st.booleans())
    plain_head = pool != "map" and final_norm != "pooled" and not distilled
    mlp = draw(often("plain", literals("mlp")))
    return {
        **draw(fronts()),
        "patch_bias": draw(st.booleans()),
        "patch_norm": draw(literals("patch_norm")),
        "dynamic_img_size": draw(st.booleans()),
        "class_token": class_token,
        "registers": draw(often(0, st.integers(1, 3))),
        "distilled": distilled,
        "positions": draw(literals("positions")),
        "prefix_positions": draw(literals("prefix_positions")),
        "rope": draw(st.booleans()) if head_dim != 5 else False,
        "rope_theta": draw(st.sampled_from([100, 100.0, 10_000.0])),
        "relative_bias": draw(st.booleans()),
        "embed_dim": heads * draw(st.sampled_from([4, 8, 12])),
        "depth": depth,
        "num_heads": heads,
        "head_dim": head_dim,
        "mlp_ratio": draw(st.sampled_from([2.0, 4, 8 / 3] if mlp == "plain" else [2.0, 4])),
        "mlp": mlp,
        "act": draw(literals("act")),
        "norm": draw(literals("norm")),
        "norm_eps": draw(st.sampled_from([1e-5, 1e-6])),
        "qkv_bias": draw(st.booleans()),
        "qk_norm": draw(st.booleans()),
        "attn_scale": draw(often(None, st.sampled_from([0.1, 1]))),
        "layer_scale": draw(often(None, st.sampled_from([1e-5, 1]))),
        "pre_norm": draw(st.booleans()),
        "pool": pool,
        "final_norm": final_norm,
        "levels": draw(often([], st.lists(st.integers(0, depth - 1), unique=True))) if plain_head else [],
        "pre_logits": None if distilled else draw(often(None, st.integers(1, 9))),
        "num_classes": draw(st.integers(0, 5)),
        "dropout": draw(RATES),
        "attn_dropout": draw(RATES),
        "embed_dropout": draw(RATES),
        "head_dropout": draw(RATES),
        "drop_path": draw(st.one_of(RATES, st.lists(RATES, min_size=depth, max_size=depth))),
        "patch_drop": draw(RATES),
        "init": draw(literals("init")),
        "zero_head": draw(st.booleans()),
        "head_bias": draw(st.sampled_from([0.0, -10, "prior"])),
    }


def accepted(kind: type, args: dict[str, Any]) -> Any:
    """The configuration; what is refused is not drawn."""
    try:
        return kind(**args)
    except ConfigError:
        assume(False)


def check(config: ViTConfig | ResNetConfig, width: int) -> None:
    """What every accepted configuration must do."""
    plain = json.loads(json.dumps(config.to_json(), allow_nan=False))
    again = type(config).from_json(plain)
    assert again == config
    assert hash(again) == hash(config)
    assert config.replace() == config

    model = create(config).eval()
    with torch.no_grad():
        out = model(torch.randn(2, config.in_chans, *config.img_size))
    assert out.shape == (2, config.num_classes or width)
    assert out.isfinite().all()
    assert parameters(config) == sum(p.numel() for p in model.parameters())

    model, picture = model.to("meta"), torch.empty(1, config.in_chans, *config.img_size, device="meta")
    model.requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        features = model.forward_features(picture)
        model.forward_head(features)
    assert flops(config) == counter.get_total_flops()
    assert walk(config)[-1].shape == (config.num_classes or width,)
    if isinstance(config, ViTConfig):
        assert tokens(config) == features.shape[1]


@settings(max_examples=150, **QUIET)
@given(vits())
def test_every_accepted_vit_runs_is_counted_exactly_and_survives_json(args: dict[str, Any]) -> None:
    config = accepted(ViTConfig, args)
    joined = max(len(args["levels"]), 1) * (2 if args["pool"] == "token_mean" else 1)
    check(config, args["pre_logits"] or args["embed_dim"] * joined)


@settings(max_examples=50, **QUIET)
@given(resnets())
def test_every_accepted_resnet_runs_is_counted_exactly_and_survives_json(args: dict[str, Any]) -> None:
    config = accepted(ResNetConfig, args)
    check(config, args["width"] * (2 ** (len(args["layers"]) + 1) if args["layers"] else 1))


def test_the_drawn_configurations_are_mostly_accepted_and_have_every_option() -> None:
    """Without this, the tests above could pass by drawing little."""
    drawn: Counter[str] = Counter()
    seen: dict[str, set[Any]] = {field.name: set() for field in dataclasses.fields(ViTConfig)}

    @settings(max_examples=400, **QUIET)
    @given(vits())
    def draw(args: dict[str, Any]) -> None:
        drawn["all"] += 1
        try:
            config = ViTConfig(**args)
        except ConfigError:
            drawn["refused"] += 1
            return
        for name, values in seen.items():
            values.add(getattr(config, name))

    draw()
    assert drawn["all"] >= 300
    assert drawn["refused"] < drawn["all"] / 2, drawn
    for name, hint in get_type_hints(ViTConfig).items():
        if get_origin(hint) is Literal:
            assert seen[name] == set(get_args(hint)), name
        elif hint is bool:
            assert seen[name] == {True, False}, name
        else:
            assert len(seen[name]) > 1, name
    assert any(config and not config.layers for config in seen["backbone"])
    assert any(h != w for h, w in seen["img_size"])
    assert any(isinstance(rate, tuple) for rate in seen["drop_path"])


@settings(max_examples=300, **QUIET)
@given(fronts(), st.integers(1, 70), st.integers(1, 70))
def test_the_size_that_is_proposed_for_one_that_does_not_fit_fits(
    args: dict[str, Any], height: int, width: int
) -> None:
    accepted(ViTConfig, args)
    try:
        ViTConfig(**args | {"img_size": (height, width)})
    except ConfigError as error:
        proposed = tuple(int(n) for n in str(error).rsplit(" is ", 1)[1].split(" x "))
        assert ViTConfig(**args | {"img_size": proposed}).img_size == proposed
        if not args["conv_stem"] and not args["backbone"]:
            for asked, given_, patch, step in zip(
                (height, width), proposed, args["patch_size"], args["stride"] or args["patch_size"], strict=True
            ):
                assert abs(asked - given_) == min(abs(asked - n) for n in range(patch, 2 * asked + 10, step))


def test_numbers_lists_and_pairs_are_one_configuration_however_they_are_written() -> None:
    assert ViTConfig(img_size=384) == ViTConfig(img_size=(384, 384)) == ViTConfig(img_size=[384, 384])
    assert ViTConfig(stride=16) == ViTConfig()
    assert ViTConfig(head_dim=64) == ViTConfig()
    assert ViTConfig(drop_path=[0] * 12) == ViTConfig(drop_path=(0.0,) * 12)
    assert ViTConfig(rope_theta=100).rope_theta == 100.0
    assert math.prod(ViTConfig(img_size=(224, 448)).grid) == 14 * 28
    nested = ViTConfig(patch_size=1, backbone={"layers": [1, 1], "preact": False})
    assert nested == ViTConfig(patch_size=1, backbone=ResNetConfig(layers=(1, 1), preact=False))
