"""Pictures of which only some patches are seen: by leaving the others out, or by hiding them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.model import ViT

Build, Pictures = Callable[..., ViT], Callable[..., Tensor]
KEEP = torch.tensor([[0, 3, 5, 6, 9, 15], [1, 2, 8, 10, 12, 13]])
KINDS: dict[str, dict[str, Any]] = {
    "token": {},
    "mean": {"pool": "mean"},
    "mean without class token": {"pool": "mean", "class_token": False, "final_norm": "pooled"},
    "map": {"pool": "map", "class_token": False},
    "token and mean": {"pool": "token_mean"},
    "distilled": {"distilled": True},
    "no positions": {"positions": "none", "pool": "mean"},
    "rope": {"rope": True, "positions": "none"},
    "rope, mean, registers": {"rope": True, "pool": "mean", "registers": 2, "prefix_positions": "class"},
    "relative bias": {"relative_bias": True},
    "relative bias, map, registers": {"relative_bias": True, "pool": "map", "registers": 3},
    "everything": {"relative_bias": True, "rope": True, "registers": 2, "positions": "sincos_2d", "pre_norm": True},
    "levels": {"levels": (0, 1), "pool": "mean"},
    "not square": {"img_size": (16, 64), "positions": "learned_2d"},
}


def seen(keep: Tensor, patches: int = 16) -> Tensor:
    """The mask that sees what `keep` keeps."""
    return torch.zeros(len(keep), patches, dtype=torch.bool).scatter(1, keep, True)


def patches_changed(pictures: Tensor, mask: Tensor, model: ViT) -> Tensor:
    """Other pixels wherever the mask is false."""
    (h, w), (p, q) = model.config.grid, model.config.patch_size
    pixels = mask.reshape(-1, 1, h, w).repeat_interleave(p, 2).repeat_interleave(q, 3)
    return torch.where(pixels, pictures, torch.randn(pictures.shape) * 10)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_leaving_patches_out_is_the_same_as_hiding_them(kind: str, build: Build, pictures: Pictures) -> None:
    model = build(**KINDS[kind])
    x = pictures(model)
    kept, hidden = model(x, keep=KEEP), model(x, mask=seen(KEEP))
    torch.testing.assert_close(kept, hidden, atol=1e-5, rtol=1e-5)
    assert (kept - model(x)).abs().max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_pixels_of_a_hidden_patch_have_no_influence(kind: str, build: Build, pictures: Pictures) -> None:
    model = build(**KINDS[kind])
    x, mask = pictures(model), seen(KEEP)
    changed = patches_changed(x, mask, model)
    torch.testing.assert_close(model(changed, mask=mask), model(x, mask=mask), atol=1e-6, rtol=0)
    torch.testing.assert_close(model(changed, keep=KEEP), model(x, keep=KEEP), atol=0, rtol=0)
    assert (model(changed) - model(x)).abs().max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_order_of_what_is_kept_does_not_matter(kind: str, build: Build, pictures: Pictures) -> None:
    model = build(**KINDS[kind])
    x = pictures(model)
    torch.testing.assert_close(model(x, keep=KEEP.flip(1)), model(x, keep=KEEP), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_seeing_everything_is_seeing_the_picture(kind: str, build: Build, pictures: Pictures) -> None:
    model = build(**KINDS[kind])
    x = pictures(model)
    everything = torch.ones(2, 16, dtype=torch.bool)
    torch.testing.assert_close(model(x, mask=everything), model(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(x, mask=everything.reshape(2, *model.config.grid)), model(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(x, keep=torch.arange(16).expand(2, -1)), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rope", [False, True])
@torch.no_grad()
def test_keeping_the_first_rows_is_cropping_the_picture(rope: bool, build: Build, pictures: Pictures) -> None:
    model = build(positions="none", rope=rope, pool="mean")
    cropped = build(positions="none", rope=rope, pool="mean", img_size=(16, 32))
    cropped.load_state_dict(model.state_dict())
    x = pictures(model)
    kept = model(x, keep=torch.arange(8).expand(2, -1))
    torch.testing.assert_close(kept, cropped(x[:, :, :16]), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_each_picture_of_a_batch_has_its_own_patches(build: Build, pictures: Pictures) -> None:
    model = build(rope=True, relative_bias=True)
    x = pictures(model)
    together = model(x, keep=KEEP)
    alone = torch.cat([model(x[i : i + 1], keep=KEEP[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_what_is_kept_can_be_hidden_too(build: Build, pictures: Pictures) -> None:
    model = build(pool="mean", relative_bias=True)
    x, mask = pictures(model), seen(KEEP[:, :4])
    torch.testing.assert_close(model(x, keep=KEEP, mask=mask), model(x, keep=KEEP[:, :4]), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_features_and_intermediates_see_the_same_patches_as_the_logits(build: Build, pictures: Pictures) -> None:
    model = build(pool="mean", rope=True, registers=1)
    x, mask = pictures(model), seen(KEEP)
    wanted = model(x, mask=mask)
    torch.testing.assert_close(model.forward_head(model.forward_features(x, mask=mask), mask), wanted)
    out = model.forward_intermediates(x, "all", attention="all", mask=mask)
    torch.testing.assert_close(out.logits, wanted)
    hidden = ~torch.cat([torch.ones(2, 2, dtype=torch.bool), mask], dim=1)
    for weights in out.attention.values():
        assert weights.transpose(1, 3)[hidden].abs().max() == 0  # no one looks at a hidden patch
    kept = model.forward_intermediates(x, [1], keep=KEEP)
    assert kept.tokens[1].shape == (2, 2 + 6, 32)
    torch.testing.assert_close(kept.logits, wanted, atol=1e-5, rtol=1e-5)


def test_a_mask_that_does_not_fit_says_what_would(build: Build, pictures: Pictures) -> None:
    model = build()
    x = pictures(model)
    for wrong in (torch.ones(2, 15, dtype=torch.bool), torch.ones(2, 16), torch.ones(2, 5, 4, dtype=torch.bool)):
        with pytest.raises(ConfigError, match="mask must be true or false for each of 4 x 4 patches"):
            model(x, mask=wrong)
        with pytest.raises(ConfigError, match="mask must be true or false for each of 4 x 4 patches"):
            model(x, mask=wrong, keep=torch.arange(16).expand(2, -1))
    with pytest.raises(ConfigError, match="keep"):
        model.forward_intermediates(x, [0], maps=True, keep=KEEP)
