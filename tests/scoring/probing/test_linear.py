"""Logistic regression beside scikit-learn's, and gradient descent for many rates at once."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from vitrail.scoring.probing.heads import scale_of
from vitrail.scoring.probing.lbfgs import minimise
from vitrail.scoring.probing.logistic import cross_entropy, fit_logistic, regress
from vitrail.scoring.probing.sgd import RATES, fit_sgd


@pytest.fixture
def short(monkeypatch) -> None:
    """Gradient descent in a few steps."""
    monkeypatch.setattr("vitrail.scoring.probing.sgd._LEAST", 60)
    monkeypatch.setattr("vitrail.scoring.probing.sgd._EPOCHS", 10)


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    points = torch.tensor(digits.data)
    return scale_of(points)(points), torch.tensor(digits.target)


def test_coefficients_are_scikit_learns_for_the_whole_grid(digits) -> None:
    points, labels = digits[0][:600], digits[1][:600]
    decays = [1.0, 1e-2, 1e-3]
    weight, bias = regress(points, labels, 10, decays, steps=1000, tolerance=1e-9)
    for place, decay in enumerate(decays):
        theirs = LogisticRegression(C=1 / (600 * decay), tol=1e-9, max_iter=10_000).fit(points.numpy(), labels.numpy())
        np.testing.assert_allclose(weight[place], theirs.coef_, atol=1e-4)
        centred = theirs.intercept_ - theirs.intercept_.mean()  # a constant on all classes changes nothing
        np.testing.assert_allclose(bias[place] - bias[place].mean(), centred, atol=1e-4)


def test_accuracy_in_float32_is_scikit_learns(digits) -> None:
    points, labels = digits
    ours = fit_logistic(points[:1200].float(), labels[:1200], 10, [1e-2, 1e-4]).answers(points[1200:].float())
    scaled = scale_of(points[:1200])
    for place, decay in enumerate([1e-2, 1e-4]):
        theirs = LogisticRegression(C=1 / (1200 * decay), tol=1e-8, max_iter=10_000)
        theirs.fit(scaled(points[:1200]).numpy(), labels[:1200].numpy())
        assert (ours[place].numpy() == theirs.predict(scaled(points[1200:]).numpy())).mean() > 0.99


def test_blocks_and_autograd_give_the_same_gradient(digits, monkeypatch) -> None:
    points, labels = digits[0][:50], digits[1][:50]
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 10, 64, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, 10, generator=generator, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr("vitrail.scoring.probing.logistic._LOGITS_AT_ONCE", 210)
    value, slope = cross_entropy(points, labels, weight.detach(), bias.detach())
    logits = torch.einsum("nd,hcd->hnc", points, weight) + bias[:, None]
    losses = torch.stack([torch.nn.functional.cross_entropy(one, labels) for one in logits])
    losses.sum().backward()
    torch.testing.assert_close(value, losses.detach())
    torch.testing.assert_close(slope, torch.cat([weight.grad, bias.grad[..., None]], dim=2))


def test_problems_that_are_solved_together_have_their_own_minima() -> None:
    """Quadratics of very different shapes: the minimum is known."""
    generator = torch.Generator().manual_seed(0)
    turns = torch.linalg.qr(torch.randn(4, 12, 12, generator=generator, dtype=torch.float64)).Q
    sizes = torch.logspace(-2, 2, 12, dtype=torch.float64) * torch.tensor([[1e-2], [1], [1e2], [1e4]])
    shapes = turns @ torch.diag_embed(sizes) @ turns.transpose(1, 2)
    minima = torch.randn(4, 12, generator=generator, dtype=torch.float64)

    def function(points: torch.Tensor, which: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        away = points - minima[which]
        slope = (shapes[which] @ away[..., None])[..., 0]
        return (away * slope).sum(dim=1) / 2, slope

    found = minimise(function, torch.zeros(4, 12, dtype=torch.float64), steps=2000, tolerance=1e-9)
    torch.testing.assert_close(found, minima, atol=1e-4, rtol=0)


def test_each_rate_learns_as_it_would_alone(digits, short) -> None:
    points, labels = digits[0][:300].float(), digits[1][:300]
    together = fit_sgd(points, labels, 10, RATES[6:])
    alone = fit_sgd(points, labels, 10, [RATES[9]])
    torch.testing.assert_close(together.weight[3], alone.weight[0], atol=1e-4, rtol=1e-3)
    assert (together.answers(points) == labels).double().mean(dim=1).max() > 0.95


def test_the_seed_decides_the_order_and_nothing_else_does(digits, short) -> None:
    points, labels = digits[0][:300].float(), digits[1][:300]
    first, again, other = (fit_sgd(points, labels, 10, [0.01], seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)


def test_torch_finds_the_same_head_as_gradient_descent_does(digits, short) -> None:
    """One rate, one batch of everything: torch.optim.SGD step by step."""
    points, labels = digits[0][:100].float(), digits[1][:100]
    ours = fit_sgd(points, labels, 10, [0.5], seed=3)
    scaled = scale_of(points)(points)
    head = torch.nn.Linear(64, 10)
    generator = torch.Generator().manual_seed(3 * 1_000_003)
    with torch.no_grad():
        head.weight.copy_(torch.randn(10, 64, generator=generator) * 0.01)
        head.bias.zero_()
    optimiser = torch.optim.SGD(head.parameters(), lr=0.5 * 100 / 256, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 60)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(head(scaled), labels).backward()
        optimiser.step()
        schedule.step()
    torch.testing.assert_close(ours.logits(points)[0], head(scaled).detach(), atol=1e-4, rtol=1e-4)
