"""Attention by plain products, by which CPUs train in bfloat16: it is the definition, and is taken there alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.model import ViT, attention
from vitrail.model.attention import attend_by_products

Build, Pictures = Callable[..., ViT], Callable[..., Tensor]
Taken = list[tuple[int, ...]]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """The shapes of the queries that go that way, on a processor that is said to have the instructions for it."""
    shapes: Taken = []

    def note(q: Tensor, *others: Any) -> Tensor:
        shapes.append(tuple(q.shape))
        return attend_by_products(q, *others)

    monkeypatch.setattr(attention, "attend_by_products", note)
    monkeypatch.setattr(attention, "cpu_multiplies_bf16", lambda: True)
    return shapes


def definition(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Written out: exp(q k scale + bias) over the sum of its row, times v."""
    logits = torch.einsum("bhid,bhjd->bhij", q, k) * scale + (0 if bias is None else bias)
    return torch.einsum("bhij,bhjd->bhid", logits.exp() / logits.exp().sum(-1, keepdim=True), v)


@pytest.mark.parametrize("queries", [1, 7])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_products_are_the_definition_and_so_are_their_gradients(
    scale: float | None, has_bias: bool, queries: int
) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 6, dtype=torch.float64, requires_grad=True) for n in (queries, 7, 7))
    bias = torch.randn(1, 3, queries, 7, dtype=torch.float64, requires_grad=True) if has_bias else None
    inputs = [x for x in (q, k, v, bias) if x is not None]
    found, wanted = attend_by_products(q, k, v, bias, 0.0, scale), definition(q, k, v, bias, scale or 6**-0.5)
    torch.testing.assert_close(found, wanted, atol=1e-14, rtol=1e-12)
    back = torch.randn_like(found)
    pairs = zip(torch.autograd.grad(found, inputs, back), torch.autograd.grad(wanted, inputs, back), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, atol=1e-13, rtol=1e-12)


def test_dropout_leaves_out_weights_and_scales_the_others_up() -> None:
    """All logits are alike, and a value of one for each key on its own carries the weights out."""
    torch.manual_seed(0)
    q = torch.zeros(8, 4, 64, 64)
    weights = attend_by_products(q, q, torch.eye(64).expand(8, 4, 64, 64), None, 0.25, None) * 64
    assert sorted(weights.unique().tolist()) == pytest.approx([0, 1 / 0.75])
    assert (weights == 0).float().mean() == pytest.approx(0.25, abs=0.01)


def gradients(model: ViT, x: Tensor, half: bool) -> Tensor:
    """Of all weights in one row, in float64."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logits = model(x)
    logits.double().square().mean().backward()
    return torch.cat([weight.grad.flatten().double() for weight in model.parameters()])


@pytest.mark.parametrize(
    "changes", [{}, {"pool": "mean"}, {"relative_bias": True}, {"rope": True, "qk_norm": True}], ids=str
)
def test_a_model_that_trains_in_bfloat16_has_the_gradients_of_float64(
    changes: dict[str, Any], build: Build, pictures: Pictures, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(**changes).train()
    x = pictures(model)
    found = gradients(model, x, half=True)
    assert len(taken) == 2
    monkeypatch.setattr(attention, "PLAIN", 0)
    fused = gradients(model, x, half=True)
    assert len(taken) == 2
    exact = gradients(model.double(), x.double(), half=False)
    error, usual = ((one - exact).norm() / exact.norm() for one in (found, fused))
    assert 0 < error < max(0.02, 1.5 * usual)


def test_the_last_block_computes_only_what_is_read(build: Build, pictures: Pictures, taken: Taken) -> None:
    model = build().train()
    gradients(model, pictures(model), half=True)
    assert taken == [(2, 4, 17, 8), (2, 4, 1, 8)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("training", [True, False])
def test_only_training_in_bfloat16_goes_this_way(
    training: bool, dtype: torch.dtype, build: Build, pictures: Pictures, taken: Taken
) -> None:
    model = build().train(training)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        model(pictures(model))
    assert bool(taken) == (training and dtype == torch.bfloat16)


@pytest.mark.parametrize("reason", ["many tokens", "no instructions", "mask"])
def test_the_fused_kernel_stays_where_products_would_not_be_better(
    reason: str, build: Build, pictures: Pictures, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, mask = build().train(), None
    if reason == "many tokens":
        monkeypatch.setattr(attention, "PLAIN", 16)
    elif reason == "no instructions":
        monkeypatch.setattr(attention, "cpu_multiplies_bf16", lambda: False)
    else:
        mask = torch.arange(16).expand(2, -1) < 9
    with torch.autocast("cpu", torch.bfloat16):
        model(pictures(model), mask=mask)
    assert not taken


def test_asking_for_attention_in_training_changes_no_bit_of_the_logits(
    build: Build, pictures: Pictures, taken: Taken
) -> None:
    model = build(pool="mean").train()
    x = pictures(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.forward_intermediates(x, attention="all").logits, model(x))
    assert len(taken) == 4
