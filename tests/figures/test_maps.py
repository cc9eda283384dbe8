"""Attention maps and rollout against their definitions."""

import math

import pytest
import torch
from torch import Tensor

from tests.figures.models import KINDS, make, make_resnet, pictures_for
from vitrail import figures
from vitrail.errors import VitrailError
from vitrail.model import ViT


def softmax_by_loops(model: ViT, tokens: Tensor, block: int) -> list[list[list[list[float]]]]:
    """softmax(q k / sqrt(d)) in float64, number by number, of (batch, tokens, width) that enter a block."""
    config, layer = model.config, model.blocks[block]
    heads, d = config.num_heads, config.key_dim
    weight, bias = layer.attn.qkv.weight.double().tolist(), layer.attn.qkv.bias.double().tolist()
    gain, shift = layer.norm1.weight.double().tolist(), layer.norm1.bias.double().tolist()
    found = []
    for picture in tokens.double().tolist():
        rows, both = [], list(zip(weight, bias, strict=True))
        for x in picture:
            mean = sum(x) / len(x)
            deviation = math.sqrt(sum((one - mean) ** 2 for one in x) / len(x) + config.norm_eps)
            x = [(one - mean) / deviation * g + s for one, g, s in zip(x, gain, shift, strict=True)]
            rows.append([sum(w * one for w, one in zip(row, x, strict=True)) + b for row, b in both])
        of_heads = []
        for head in range(heads):
            q = [row[head * d : (head + 1) * d] for row in rows]
            k = [row[(heads + head) * d : (heads + head + 1) * d] for row in rows]
            logits = [[sum(a * b for a, b in zip(one, other, strict=True)) / math.sqrt(d) for other in k] for one in q]
            powers = [[math.exp(value - max(row)) for value in row] for row in logits]
            of_heads.append([[value / sum(row) for value in row] for row in powers])
        found.append(of_heads)
    return found


@torch.no_grad()
def test_attention_is_the_softmax_of_queries_and_keys_number_by_number() -> None:
    model = make(depth=2)
    pixels = pictures_for(model)
    entering = model.forward_intermediates(pixels, 0).tokens[0]
    wanted = torch.tensor(softmax_by_loops(model, entering, 1), dtype=torch.float64)
    weights = model.forward_intermediates(pixels, attention=1).attention[1]
    assert (weights - wanted).abs().max() < 2e-6
    maps = figures.attention_maps(model, pixels, 1)
    assert maps.shape == (2, 1, 4, 4, 4)
    assert (maps[:, 0].flatten(2) - wanted[:, :, 0, 1:]).abs().max() < 2e-6


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_watching_changes_no_bit_of_the_output(kind: str) -> None:
    model = make(kind).eval()
    pixels = pictures_for(model)
    plain = model(pixels)
    seen = []
    assert torch.equal(model(pixels, watch=dict.fromkeys(range(4), lambda one: seen.append(one.weights()))), plain)
    assert len(seen) == 3 + (model.config.pool == "map")
    for weights in seen:
        assert (weights.sum(-1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_has_maps_of_its_grid_and_stays_as_it_was(kind: str) -> None:
    model = make(kind).train()
    pixels = pictures_for(model, 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grid = model.config.grid
    assert figures.attention_maps(model, pixels).shape == (3, 3, 4, *grid)
    assert figures.rollout_by_layer(model, pixels).shape == (3, 3, *grid)
    for method in figures.METHODS:
        maps = figures.saliency(model, pixels, method)
        assert maps.shape == (3, *grid)
        assert maps.dtype == torch.float32
        assert not maps.requires_grad
        assert (maps >= 0).all()
        assert maps.std() > 0
    assert model.training
    assert not pixels.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_rollout_is_the_product_of_half_attention_and_half_identity(kind: str) -> None:
    model = make(kind).eval()
    config = model.config
    pixels = pictures_for(model)
    n = config.num_prefix + config.num_patches
    product, after = torch.eye(n, dtype=torch.float64), []
    for weights in model.forward_intermediates(pixels, attention="all").attention.values():
        product = (weights.double().mean(1) + torch.eye(n)) / 2 @ product
        after.append(product)
    product = sum(after[level] for level in config.levels) / len(config.levels) if config.levels else after[-1]
    prefix = config.num_prefix
    wanted = {
        "token": product[:, : 1 + config.distilled, prefix:].mean(1),
        "mean": product[:, prefix:, prefix:].mean(1),
        "token_mean": (product[:, 0, prefix:] + product[:, prefix:, prefix:].mean(1)) / 2,
    }
    if config.pool == "map":
        seen = []
        model(pixels, watch={config.depth: seen.append})
        wanted["map"] = (seen[0].weights().mean(1).double() @ product[:, prefix:, prefix:])[:, 0]
    assert (figures.rollout(model, pixels).flatten(1) - wanted[config.pool]).abs().max() < 1e-6


@torch.no_grad()
def test_rollout_of_uniform_attention_is_its_closed_form() -> None:
    model = make(depth=5).eval()
    for block in model.blocks:
        block.attn.qkv.weight.zero_()
        block.attn.qkv.bias.zero_()
    by_layer = figures.rollout_by_layer(model, pictures_for(model))
    for depth in range(1, 6):  # (I / 2 + 11ᵀ / 2n)^L = I / 2^L + (1 - 1 / 2^L) 11ᵀ / n
        torch.testing.assert_close(by_layer[:, depth - 1], torch.full((2, 4, 4), (1 - 0.5**depth) / 17))
    mean = make("mean", depth=5).eval()
    for block in mean.blocks:
        block.attn.qkv.weight.zero_()
        block.attn.qkv.bias.zero_()
    torch.testing.assert_close(figures.rollout(mean, pictures_for(mean)), torch.full((2, 4, 4), 1 / 16))


def test_pictures_may_have_another_size_where_the_model_takes_it() -> None:
    model = make(dynamic_img_size=True)
    pixels = torch.randn(1, 3, 16, 56)
    for method in figures.METHODS:
        assert figures.saliency(model, pixels, method).shape == (1, 2, 7)


def test_models_in_half_precision_have_maps_too() -> None:
    model = make("rope, qk-norm, rms")
    pixels = pictures_for(model)
    whole = {method: figures.saliency(model, pixels, method, 1) for method in figures.METHODS}
    model = model.bfloat16()
    for method, maps in whole.items():
        half = figures.saliency(model, pixels, method, 1)
        assert half.dtype == torch.float32
        assert torch.corrcoef(torch.stack([half.flatten(), maps.flatten()]))[0, 1] > 0.95
    assert figures.attention_distance(model, pixels).shape == (2, 3, 4)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("distilled")
    pixels = pictures_for(model, 5)
    whole = {method: figures.saliency(model, pixels, method, [0, 1, 2, 3, 4]) for method in figures.METHODS}
    monkeypatch.setattr("vitrail.figures.watching._ROOM", 1)
    for method, maps in whole.items():
        torch.testing.assert_close(figures.saliency(model, pixels, method, [0, 1, 2, 3, 4]), maps)


def test_what_cannot_be_is_said_in_one_line() -> None:
    model, resnet = make(), make_resnet()
    pixels = pictures_for(model)
    with pytest.raises(VitrailError, match="a ResNet has not: use grad_cam"):
        figures.saliency(resnet, pixels, "rollout")
    with pytest.raises(VitrailError, match="no class 5: the model has classes 0 to 4"):
        figures.attribution(model, pixels, [0, 5])
    with pytest.raises(VitrailError, match="one class for all pictures, or one for each"):
        figures.attribution(model, pixels, [0, 1, 2])
    with pytest.raises(VitrailError, match="no head"):
        figures.attribution(make(num_classes=0), pixels)
    with pytest.raises(VitrailError, match="no block 3: the model has blocks 0 to 2"):
        figures.attention_maps(model, pixels, 3)
    with pytest.raises(VitrailError, match="no method 'guess': choose one of attribution"):
        figures.saliency(model, pixels, "guess")
    with pytest.raises(VitrailError, match="pixels must be"):
        figures.rollout(model, pixels[0])
