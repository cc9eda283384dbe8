"""Copies of weights in half precision that are multiplied in their place: every way through a block takes them, and the
numbers are the same."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitrail
from vitrail.model import halves as module
from vitrail.model.halves import Halves

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layer scale": {"layer_scale": 0.1},
    "gated": {"mlp": "swiglu"},
    "turned": {"rope": True, "qk_norm": True, "norm": "rms"},
    "dropped": {"dropout": 0.2, "attn_dropout": 0.1, "drop_path": 0.2},
    "relative": {"relative_bias": True},
}


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEWEST", 1)


def make(**more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 10}
    return vitrail.create("vit_ti16", **sizes, **more).train()


def gradients(model: Any, run: Any = None, **how: Any) -> dict[str, Tensor]:
    """Of a loss of some pictures: those of halves under the names of their weights."""
    model.zero_grad()
    torch.manual_seed(1)
    run = model if run is None else run
    loss = nn.functional.cross_entropy(run(torch.randn(4, 3, 32, 32), **how).float(), torch.arange(4))
    loss.backward()
    found = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    halves = {
        f"{name}.weight": layer.in_half.grad for name, layer in model.named_modules() if hasattr(layer, "in_half")
    }
    assert not halves.keys() & found.keys()  # no weight was multiplied beside its half
    return found | halves


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("compiled", [False, True])
def test_halves_as_exact_as_weights_give_the_gradients_of_weights_bit_for_bit(way, compiled):
    """In float32, so that nothing is rounded; also as a compiler sees it."""
    found = []
    for kind in (None, torch.float32):
        model = make(**WAYS[way])
        halves = Halves() if kind is None else Halves([model.blocks], kind)
        assert len(list(halves.pairs())) == (0 if kind is None else 8)
        torch.compiler.reset()
        found.append(gradients(model, torch.compile(model, backend="aot_eager") if compiled else None))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_patches_that_are_left_out_change_nothing_of_that():
    keep = torch.tensor([[0, 3, 5, 9]] * 4)
    found = []
    for kind in (None, torch.float32):
        model = make()
        halves = Halves() if kind is None else Halves([model.blocks], kind)
        found.append(gradients(model, keep=keep))
        assert bool(halves) == (kind is not None)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_under_autocast_they_are_what_autocast_makes():
    """Its copies are rounded in the same way, and gradients come back in the same numbers."""
    found = []
    for with_halves in (False, True):
        model = make()
        halves = Halves([model.blocks] if with_halves else [])
        with torch.autocast("cpu", torch.bfloat16):
            found.append(gradients(model))
        assert all(half.grad.dtype == torch.bfloat16 for _, half in halves.pairs())
    assert all(torch.equal(found[0][name], found[1][name].float()) for name in found[0])


def test_answers_come_from_the_weights_themselves():
    model = make()
    pictures = torch.randn(2, 3, 32, 32)
    before = model.eval()(pictures)
    halves = Halves([model.blocks])
    assert torch.equal(model(pictures), before)
    assert "in_half" not in " ".join(model.state_dict())
    halves.release()
    assert not halves
    assert not any(hasattr(layer, "in_half") for layer in model.modules())


def test_frozen_weights_and_small_ones_have_none(monkeypatch):
    model = make()
    model.blocks[0].requires_grad_(False)
    assert {weight.shape[0] for weight, _ in Halves([model.blocks]).pairs()} == {192, 64, 256}
    assert len(list(Halves([model.blocks]).pairs())) == 4
    monkeypatch.setattr(module, "FEWEST", 64 * 192)
    assert {tuple(weight.shape) for weight, _ in Halves([make().blocks]).pairs()} == {(192, 64), (256, 64), (64, 256)}


def test_a_weight_that_somebody_changed_is_followed_when_asked():
    model = make()
    halves = Halves([model.blocks])
    weight, half = next(halves.pairs())
    with torch.no_grad():
        weight.normal_()
    assert not torch.equal(half, weight.bfloat16())
    halves.refresh()
    assert torch.equal(half, weight.bfloat16())
