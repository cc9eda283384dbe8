"""The model as a whole: what depends on order, what the head reads, its names, its types, and how it travels."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import ConfigError
from vitrail.model import ViT, ViTConfig, vit

Build, Pictures = Callable[..., ViT], Callable[..., Tensor]
POOLS: dict[str, dict[str, Any]] = {
    "token": {},
    "mean": {"pool": "mean", "class_token": False},
    "map": {"pool": "map", "class_token": False},
    "token and mean": {"pool": "token_mean", "registers": 2},
    "pooled norm": {"pool": "mean", "final_norm": "pooled"},
    "no norm": {"final_norm": "none"},
    "distilled": {"distilled": True},
    "pre_logits": {"pre_logits": 6},
    "levels": {"levels": (0, 1), "pool": "mean"},
    "rms, swiglu": {"norm": "rms", "mlp": "swiglu", "layer_scale": 0.5, "pre_norm": True},
    "backbone": {"patch_size": 1, "backbone": {"layers": [1, 1], "width": 8, "groups": 4, "preact": False}},
}


def shuffled(pictures: Tensor, patch: int, seed: int = 3) -> Tensor:
    """The same patches in another order."""
    columns = pictures.shape[-1] // patch
    patches = F.unfold(pictures, patch, stride=patch)
    patches = patches[..., torch.randperm(patches.shape[-1], generator=torch.Generator().manual_seed(seed))]
    return F.fold(patches, (patch * (patches.shape[-1] // columns), patch * columns), patch, stride=patch)


@pytest.mark.parametrize("kind", ["token", "mean", "map", "distilled"])
@torch.no_grad()
def test_without_positions_the_order_of_patches_does_not_matter(kind: str, build: Build, pictures: Pictures) -> None:
    model = build(positions="none", **POOLS[kind])
    x = pictures(model)
    assert not torch.equal(shuffled(x, 8), x)
    torch.testing.assert_close(model(shuffled(x, 8)), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "where",
    [{"positions": p} for p in ("learned", "learned_2d", "sincos_1d", "sincos_2d")]
    + [{"positions": "none", "rope": True}, {"positions": "none", "relative_bias": True}],
    ids=str,
)
@torch.no_grad()
def test_with_positions_of_any_kind_the_order_of_patches_matters(where: dict, build: Build, pictures: Pictures) -> None:
    model = build(**where)
    x = pictures(model)
    assert (model(shuffled(x, 8)) - model(x)).abs().max() > 0.01


@pytest.mark.parametrize("kind", POOLS)
@torch.no_grad()
def test_the_logits_are_the_head_of_the_features(kind: str, build: Build, pictures: Pictures) -> None:
    model = build(**POOLS[kind])
    x = pictures(model, batch=3)
    logits, features = model(x), model.forward_features(x)
    assert features.shape[:2] == (3, model.config.num_prefix + model.config.num_patches)
    assert logits.std() > 0.05
    torch.testing.assert_close(logits, model.forward_head(features), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[1:2], model(x[1:2]), atol=1e-5, rtol=1e-5)  # no picture touches another


@pytest.mark.parametrize("kind", POOLS)
def test_a_step_by_the_short_way_has_the_same_gradients(kind: str, build: Build, pictures: Pictures) -> None:
    model = build(**POOLS[kind])
    x = pictures(model)
    parameters = list(model.parameters())
    short = torch.autograd.grad(model(x).square().sum(), parameters, allow_unused=True)
    long = torch.autograd.grad(
        model.forward_head(model.forward_features(x)).square().sum(), parameters, allow_unused=True
    )
    for (name, _), a, b in zip(model.named_parameters(), short, long, strict=True):
        assert a is not None, f"{name} has no gradient"
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@torch.no_grad()
def test_overlapping_patches_are_a_strided_convolution(build: Build, pictures: Pictures) -> None:
    model = build(patch_size=(8, 6), stride=(4, 2), img_size=(24, 20), patch_norm="after")
    x = pictures(model)
    proj, norm = model.patch_embed.proj, model.patch_embed.norm
    wanted = F.conv2d(x, proj.weight, proj.bias, stride=(4, 2)).flatten(2).transpose(1, 2)
    tokens, grid = model.patch_embed(x)
    assert grid == model.config.grid == (5, 8)
    torch.testing.assert_close(tokens, F.layer_norm(wanted, (32,), norm.weight, norm.bias, 1e-6))


@pytest.mark.parametrize("final_norm", ["tokens", "pooled", "none"])
@torch.no_grad()
def test_the_final_norm_comes_before_pooling_or_after_it_or_not_at_all(final_norm, build, pictures) -> None:
    model = build(pool="mean", final_norm=final_norm, registers=1)
    x = pictures(model)
    tokens = model.forward_intermediates(x, [-1]).tokens[1]
    norm = {"tokens": model.norm, "pooled": model.fc_norm, "none": torch.nn.Identity()}[final_norm]
    pooled = norm(tokens)[:, 2:].mean(1) if final_norm != "pooled" else norm(tokens[:, 2:].mean(1))
    torch.testing.assert_close(model(x), F.linear(pooled, model.head.weight, model.head.bias), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_levels_join_the_normed_tokens_of_the_chosen_blocks(build: Build, pictures: Pictures) -> None:
    model = build(depth=3, levels=(2, 0))
    x = pictures(model)
    tokens = model.forward_intermediates(x, "all").tokens
    joined = torch.cat([model.norm(tokens[2])[:, 0], model.norm(tokens[0])[:, 0]], dim=-1)
    torch.testing.assert_close(model(x), F.linear(joined, model.head.weight, model.head.bias), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_distilled_model_answers_with_the_mean_of_its_two_heads(build: Build, pictures: Pictures) -> None:
    model = build(distilled=True)
    x = pictures(model)
    first, second = model.forward_heads(model.forward_features(x))
    assert (first - second).abs().max() > 0.1
    torch.testing.assert_close(model(x), (first + second) / 2, atol=1e-5, rtol=1e-5)
    with pytest.raises(ConfigError, match="distilled=True"):
        build().forward_heads(model.forward_features(x))


@torch.no_grad()
def test_without_classes_the_model_gives_features(build: Build, pictures: Pictures) -> None:
    for kind, width in (("token", 32), ("token and mean", 64), ("levels", 64), ("distilled", 32), ("pre_logits", 6)):
        model = build(num_classes=0, **POOLS[kind])
        assert model(pictures(model)).shape == (2, width), kind
        assert kind == "pre_logits" or model.config.pooled_dim == width
    features = model(pictures(model))  # of the tanh layer
    assert 0.1 < features.abs().max() < 1


def test_a_picture_of_the_wrong_shape_is_named_with_the_right_one(build: Build) -> None:
    model = build(img_size=(32, 48))
    with pytest.raises(ConfigError, match=r"32 x 48.*not 40 x 24.*set_image_size.*dynamic_img_size"):
        model(torch.zeros(1, 3, 40, 24))
    for shape in ((3, 32, 48), (32, 48), (48,), (1, 1, 3, 32, 48)):
        with pytest.raises(ConfigError, match=rf"batch, channels, height, width.*{re.escape(str(shape))}"):
            model(torch.zeros(shape))


@pytest.mark.parametrize(
    "front",
    [{}, {"stride": 4}, {"patch_size": 4, "conv_stem": (4,)}, POOLS["backbone"]],
    ids=["plain", "stride", "stem", "hybrid"],
)
def test_a_picture_with_the_wrong_channels_is_named_with_the_right_ones(front: dict, build: Build) -> None:
    with pytest.raises(ConfigError, match=r"reads 3 channels.*has 1"):
        build(**front)(torch.zeros(1, 1, 32, 32))


@pytest.mark.parametrize("zero_head", [True, False])
@torch.no_grad()
def test_a_new_head_changes_the_head_alone(zero_head: bool, build: Build, pictures: Pictures) -> None:
    model = build(distilled=True, zero_head=zero_head, head_bias="prior").bfloat16()
    before = {k: v.clone() for k, v in model.state_dict().items() if not k.startswith("head")}
    model.reset_head(9)
    assert model.config.num_classes == 9
    assert all(torch.equal(model.state_dict()[k], v) for k, v in before.items())
    assert model(pictures(model).bfloat16()).shape == (2, 9)
    for head in (model.head, model.head_dist):
        assert head.weight.dtype == torch.bfloat16
        assert bool(head.weight.any()) is not zero_head
        torch.testing.assert_close(head.bias, torch.full((9,), -2.1972).bfloat16())  # -log 9
    ViT(model.config).load_state_dict(model.state_dict())
    model.reset_head(0)
    assert model(pictures(model).bfloat16()).shape == (2, 32)
    ViT(model.config).load_state_dict(model.state_dict())


@pytest.mark.parametrize("kind", ["token", "levels", "rms, swiglu"])
def test_gradient_checkpointing_changes_no_bit_of_a_gradient(kind: str, build: Build, pictures: Pictures) -> None:
    model = build(**POOLS[kind], dropout=0.2, attn_dropout=0.2, drop_path=0.5).train()
    gradients = []
    for model.gradient_checkpointing in (False, True):
        torch.manual_seed(5)
        model.zero_grad()
        model(pictures(model)).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("kind", [*POOLS, "rope", "relative bias"])
@torch.no_grad()
def test_a_model_in_bfloat16_is_near_the_one_in_float32(kind: str, build: Build, pictures: Pictures) -> None:
    args = {"rope": {"rope": True}, "relative bias": {"relative_bias": True, "positions": "sincos_2d"}}
    model = build(**{**POOLS, **args}[kind])
    x = pictures(model)
    wanted = model(x)
    out = model.bfloat16()(x.bfloat16())
    assert out.dtype == torch.bfloat16
    assert (out.float() - wanted).abs().max() < 0.1


@pytest.mark.parametrize("where", [{}, {"rope": True, "positions": "none", "pool": "mean"}], ids=["learned", "rope"])
def test_an_exported_program_takes_any_number_of_pictures(where: dict, build: Build, pictures: Pictures) -> None:
    model = build(**where)
    program = torch.export.export(model, (pictures(model),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for batch in (1, 3, 5):
        x = pictures(model, batch)
        torch.testing.assert_close(program.module()(x), model(x), atol=1e-5, rtol=1e-5)


def test_parameters_of_the_default_model_have_timms_names() -> None:
    with torch.device("meta"):
        names = list(ViT(ViTConfig(depth=1)).state_dict())
    block = [
        f"blocks.0.{part}.{kind}"
        for part in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        for kind in ("weight", "bias")
    ]
    wanted = ["cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias", *block]
    assert sorted(names) == sorted([*wanted, "norm.weight", "norm.bias", "head.weight", "head.bias"])


def test_pictures_on_another_gpu_are_encoded_with_that_as_the_current_one(
    build: Build, pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our kernels start on that. Here is none: where pictures are said to be elsewhere, it is changed once."""
    current = ["elsewhere"]

    @contextmanager
    def device(_: torch.device) -> Iterator[None]:
        current.append("here")
        yield
        current.pop()

    model = build()
    x = pictures(model)
    wanted = model(x)
    encoded = []
    model.blocks[0].register_forward_pre_hook(lambda *_: encoded.append(current[-1]))
    monkeypatch.setattr(vit, "is_elsewhere", lambda x: current[-1] == "elsewhere")
    monkeypatch.setattr(torch.cuda, "device", device)
    assert torch.equal(model(x), wanted)
    assert encoded == ["here"]
    assert current == ["elsewhere"]
