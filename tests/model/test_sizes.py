"""Another picture size, another patch size: the model is fitted, runs, and stays a model that can be saved."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import ConfigError
from vitrail.model import ViT
from vitrail.model.positions import resample_patches, resize_positions

Build, Pictures = Callable[..., ViT], Callable[..., Tensor]
KINDS: dict[str, dict[str, Any]] = {
    "learned": {},
    "learned, registers without positions": {"registers": 2, "prefix_positions": "class"},
    "learned_2d": {"positions": "learned_2d", "distilled": True},
    "sincos_1d": {"positions": "sincos_1d"},
    "sincos_2d": {"positions": "sincos_2d", "pool": "map"},
    "none": {"positions": "none"},
    "rope": {"positions": "none", "rope": True},
    "rope and learned": {"rope": True, "class_token": False, "pool": "mean"},
    "relative bias": {"relative_bias": True, "registers": 1},
    "relative bias without prefix": {"relative_bias": True, "class_token": False, "pool": "mean"},
    "stem": {"conv_stem": (8,), "patch_size": 4, "positions": "learned"},
    "overlap": {"stride": 4},
}
SIZES = [(48, 48), (16, 64), (64, 16), (24, 40), (32, 32)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_model_set_to_another_size_runs_and_is_the_model_its_configuration_describes(
    kind, size, build, pictures
) -> None:
    model = build(**KINDS[kind])
    model.set_image_size(size)
    assert model.config.img_size == size
    logits = model(pictures(model))
    assert logits.isfinite().all()
    fresh = ViT(model.config).eval()
    fixed = {name: buffer.clone() for name, buffer in fresh.named_buffers()}
    assert all(torch.equal(buffer, model.get_buffer(name)) for name, buffer in fixed.items())
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(pictures(model)), logits)
    assert fresh.config.to_json() == model.config.to_json()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "bias" not in kind])
@torch.no_grad()
def test_a_dynamic_model_gives_at_any_size_what_it_gives_when_set_to_it(kind, size, build, pictures) -> None:
    dynamic, fitted = build(**KINDS[kind], dynamic_img_size=True), build(**KINDS[kind])
    fitted.set_image_size(size)
    x = pictures(fitted)
    torch.testing.assert_close(dynamic(x), fitted(x), atol=1e-6, rtol=1e-6)
    assert dynamic.config.img_size == (32, 32)


def test_a_dynamic_model_refuses_what_does_not_fit(build: Build) -> None:
    with pytest.raises(ConfigError, match="nearest size that fits is 40 x 32"):
        build(dynamic_img_size=True)(torch.zeros(1, 3, 42, 33))
    with pytest.raises(ConfigError, match=r"relative bias.*set_image_size"):
        build(dynamic_img_size=True, relative_bias=True)(torch.zeros(1, 3, 48, 48))


@torch.no_grad()
def test_a_size_that_does_not_fit_leaves_the_model_as_it_was(build: Build, pictures: Pictures) -> None:
    model = build()
    before, logits = model.config, model(pictures(model))
    for size, patch in ((33, None), (48, 7), (0, None)):
        with pytest.raises(ConfigError, match="img_size"):
            model.set_image_size(size, patch)
    assert model.config == before
    assert torch.equal(model(pictures(model)), logits)


@pytest.mark.parametrize("resampling", ["timm", "google", "torchvision", "dinov2"])
@torch.no_grad()
def test_positions_are_resized_in_the_way_that_is_asked_for(resampling: str, build: Build) -> None:
    model = build(registers=1, prefix_positions="class")
    table = model.pos_embed.clone()
    model.set_image_size((48, 24), resampling=resampling)
    assert torch.equal(model.pos_embed, resize_positions(table, (4, 4), (6, 3), 1, resampling))
    assert torch.equal(model.pos_embed[:, :1], table[:, :1])


@torch.no_grad()
def test_a_smooth_picture_looks_the_same_at_twice_the_size_with_patches_twice_as_large(build, pictures) -> None:
    """The projection on a resized patch gives what it gave on the patch (FlexiViT), so the logits stay."""
    model = build()
    x = pictures(model)
    logits, weight = model(x), model.patch_embed.proj.weight.clone()
    model.set_image_size(64, 16)
    assert model.config.grid == (4, 4)
    assert torch.equal(model.patch_embed.proj.weight, resample_patches(weight, (16, 16)))
    patches = F.unfold(x, 8, stride=8).transpose(1, 2).reshape(-1, 3, 8, 8)
    larger = F.interpolate(patches, size=(16, 16), mode="bicubic", antialias=True)
    larger = F.fold(larger.reshape(2, 16, -1).transpose(1, 2), (64, 64), 16, stride=16)
    torch.testing.assert_close(model(larger), logits, atol=1e-3, rtol=1e-3)
    ViT(model.config).load_state_dict(model.state_dict())


def test_patches_that_overlap_or_are_normed_keep_their_size(build: Build) -> None:
    for args in ({"stride": 4}, {"patch_norm": "before"}):
        with pytest.raises(ConfigError, match="patch size"):
            build(**args).set_image_size(64, 16)


def test_a_frozen_model_stays_frozen_and_keeps_its_type(build: Build) -> None:
    for kind in ("learned", "learned_2d", "relative bias"):
        model = build(**KINDS[kind]).bfloat16().requires_grad_(False)
        model.set_image_size(48)
        assert [name for name, p in model.named_parameters() if p.requires_grad] == []
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_the_same_size_changes_no_tensor(build: Build) -> None:
    for kind in KINDS:
        model = build(**KINDS[kind])
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.set_image_size(32)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
