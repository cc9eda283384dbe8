"""Patches that training leaves out: as many as timm's, each as often as the others; and nothing else changes."""

import pytest
import torch

import vitrail
from vitrail.errors import ConfigError
from vitrail.model.patches import some_patches

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
FORMS = [
    {},
    {"class_token": False, "pool": "mean", "rope": True, "qk_norm": True, "norm": "rms"},
    {"relative_bias": True, "positions": "none", "registers": 2},
    {"distilled": True},
    {"pool": "map", "class_token": False},
]


def made(**options):
    torch.manual_seed(0)
    model = vitrail.create("vit_ti16", **SMALL | {"zero_head": False} | options)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and tables begin as zeros
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model.train()


@pytest.mark.parametrize("form", FORMS, ids=["class token", "rope", "relative", "distilled", "map"])
def test_it_is_the_model_with_some_of_the_patches(form):
    model = made(**form, patch_drop=0.3)
    pictures = torch.randn(3, 3, 32, 32)
    torch.manual_seed(1)
    found = model(pictures)
    torch.manual_seed(1)
    keep = torch.rand(3, 16).topk(11).indices
    assert torch.equal(found, model(pictures, keep=keep))
    assert not torch.equal(found, made(**form)(pictures))
    assert torch.equal(model.eval()(pictures), made(**form).eval()(pictures))


def test_it_keeps_as_many_as_timm_does():
    drop = pytest.importorskip("timm.layers").PatchDropout
    for rate in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        theirs = drop(rate, num_prefix_tokens=0).train()(torch.zeros(2, 64, 1))
        keep = some_patches(torch.zeros(2, 3, 32, 32), made(patch_size=4).config, round(1000 * rate))
        assert keep.shape == theirs.shape[:2]
        assert all(len(set(row)) == len(row) for row in keep.tolist())


def test_every_patch_is_left_out_as_often():
    """4,000 draws of 12 of 16: five standard deviations."""
    torch.manual_seed(0)
    keep = some_patches(torch.zeros(1, 1, 1, 1).expand(4000, 3, 32, 32), made().config, 250)
    counts = keep.flatten().bincount(minlength=16)
    assert (counts - 3000).abs().max() < 5 * (4000 * 0.75 * 0.25) ** 0.5
    assert len({tuple(sorted(row)) for row in keep.tolist()}) > 1000


def test_it_can_change_on_the_way_compiled_too():
    model = made(patch_drop=0.5)
    pictures = torch.randn(2, 3, 32, 32)
    torch.compiler.reset()
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    for rate, kept in ((0.5, 8), (0.0, 16), (0.25, 12)):
        model.set_patch_drop(rate)
        torch.manual_seed(1)
        found = run(pictures)
        torch.manual_seed(1)
        keep = torch.rand(2, 16).topk(kept).indices if rate else None
        assert torch.allclose(found, model(pictures, keep=keep, mask=None) if rate else model(pictures), atol=1e-6)


def test_a_mask_or_a_choice_of_patches_goes_before():
    model = made(patch_drop=0.5)
    pictures = torch.randn(2, 3, 32, 32)
    keep = torch.arange(5).expand(2, 5)
    assert torch.equal(model(pictures, keep=keep), made()(pictures, keep=keep))
    mask = torch.arange(16).expand(2, 16) < 9
    assert torch.equal(model(pictures, mask=mask), made()(pictures, mask=mask))


@pytest.mark.parametrize("rate", [1.0, -0.1, float("nan")])
def test_a_part_is_from_0_to_below_1(rate):
    with pytest.raises(ConfigError, match="patch_drop"):
        made(patch_drop=rate)
