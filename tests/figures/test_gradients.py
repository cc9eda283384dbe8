"""Attributions against automatic differentiation through attention that is written out."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.figures.models import KINDS, make, make_resnet, pictures_for
from vitrail import figures
from vitrail.model import ViT


class WrittenOut:
    """Attention in plain operations, which keeps its weights and their gradients."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, scale: Any = None, **_: Any) -> Tensor:
        logits = q @ k.transpose(-2, -1) * (scale or q.shape[-1] ** -0.5)
        weights = (logits if attn_mask is None else logits + attn_mask).softmax(-1)
        weights.retain_grad()
        self.weights.append(weights)
        return weights @ v


def weighted_by_hand(model: ViT, pixels: Tensor, target: list[int], monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """(attention x gradient)^+, the mean over heads, of every layer, whole: (batch, queries, keys)."""
    plain = WrittenOut()
    with monkeypatch.context() as patch:
        patch.setattr("torch.nn.functional.scaled_dot_product_attention", plain)
        logits = model(pixels)
        logits[range(len(target)), target].sum().backward()
    found = []
    for weights in plain.weights:
        mean = (weights * weights.grad).clamp(min=0).mean(1)
        missing = weights.shape[-1] - weights.shape[-2]
        last = mean.shape[-1] == model.config.num_prefix + model.config.num_patches
        found.append(torch.nn.functional.pad(mean, (0, 0, 0, missing)) if last else mean)
    model.zero_grad()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_attribution_is_relevance_carried_through_all_layers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(kind).double().eval()
    config, target = model.config, [3, 1]
    pixels = pictures_for(model)
    layers = weighted_by_hand(model, pixels, target, monkeypatch)
    prefix = config.num_prefix
    relevance, after = torch.eye(prefix + config.num_patches).double(), []
    for weights in layers[: config.depth]:
        relevance = relevance + weights @ relevance
        after.append(relevance)
    relevance = sum(after[level] for level in config.levels or [-1])
    wanted = {
        "token": relevance[:, : 1 + config.distilled, prefix:].mean(1),
        "mean": relevance[:, prefix:, prefix:].mean(1),
        "token_mean": (relevance[:, 0, prefix:] + relevance[:, prefix:, prefix:].mean(1)) / 2,
    }
    share = len(config.levels or [-1]) / config.num_patches  # what each patch begins with
    wanted["mean"] -= share
    wanted["token_mean"] -= share / 2
    if config.pool == "map":
        wanted["map"] = (layers[-1] @ relevance[:, prefix:, prefix:])[:, 0]
    maps = figures.attribution(model, pixels, target)
    torch.testing.assert_close(maps.flatten(1), wanted[config.pool].float(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", [0, -1])
def test_attention_x_gradient_is_that_of_the_layer(kind: str, layer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(kind).double().eval()
    config, target = model.config, [0, 4]
    pixels = pictures_for(model)
    weights = weighted_by_hand(model, pixels, target, monkeypatch)[: config.depth][layer]
    prefix = config.num_prefix
    rows = list(range(1 + config.distilled)) if config.pool in ("token", "token_mean") else []
    rows += [] if config.pool == "token" else range(prefix, prefix + config.num_patches)
    maps = figures.attention_gradient(model, pixels, target, layer)
    torch.testing.assert_close(maps.flatten(1), weights[:, rows, prefix:].sum(1).float(), rtol=1e-4, atol=1e-7)


def test_in_a_mean_of_patches_none_has_attribution_by_being_there() -> None:
    model = make("mean").double().eval()
    maps = figures.attribution(model, pictures_for(model))
    assert (maps.amin(dim=(1, 2)) < 0.7 * maps.amax(dim=(1, 2))).all()


def test_without_a_target_the_predicted_class_is_explained() -> None:
    model = make().eval()
    pixels = pictures_for(model, 4)
    predicted = model(pixels).argmax(-1)
    for method in ("attribution", "attention_gradient", "grad_cam"):
        maps = figures.saliency(model, pixels, method)
        torch.testing.assert_close(maps, figures.saliency(model, pixels, method, predicted))
        assert not torch.allclose(maps, figures.saliency(model, pixels, method, (predicted + 1) % 5))


def test_frozen_models_and_inference_mode_are_explained_too() -> None:
    model = make("registers").eval()
    pixels = pictures_for(model)
    wanted = figures.attribution(model, pixels)
    with torch.inference_mode():
        torch.testing.assert_close(figures.attribution(model, pixels * 1), wanted)
        assert figures.grad_cam(model, pixels * 1).shape == (2, 4, 4)
    torch.testing.assert_close(figures.attribution(model.requires_grad_(False), pixels), wanted)


def test_a_patch_that_alone_decides_has_all_the_attribution() -> None:
    """Attention is made to read one patch alone, so that nothing else can speak for the class."""
    model = make(depth=1, num_heads=1, positions="learned").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.blocks[0].norm1.weight.fill_(1)
        model.norm.weight.fill_(1)
        model.cls_token[..., 0] = 1
        model.pos_embed[0, 1 + 6, 1] = 50  # patch 6 has a mark in channel 1, which keys carry and queries ask for
        model.blocks[0].attn.qkv.weight[0, 0] = 8  # query: from the class token
        model.blocks[0].attn.qkv.weight[32, 1] = 8  # key: from the mark
        model.blocks[0].attn.qkv.weight[64 + 1, 1] = 1  # value: the mark
        model.blocks[0].attn.proj.weight[2, 1] = 1
        model.head.weight[0, 2] = 1
    for method in ("attribution", "attention_gradient"):
        maps = figures.saliency(model, torch.zeros(1, 3, 32, 32), method, 0).flatten()
        assert maps.argmax() == 6
        assert maps[6] > 0.99 * maps.sum()


def test_a_resnet_has_grad_cam() -> None:
    model = make_resnet()
    maps = figures.saliency(model, pictures_for(model))
    assert maps.shape == (2, 4, 4)
    assert maps.std() > 0
