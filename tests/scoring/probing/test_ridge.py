"""Few-shot ridge regression beside scikit-learn's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from vitrail.scoring.probing.heads import scale_of
from vitrail.scoring.probing.ridge import BIAS, L2, SWEEP, fit_ridge, solve


def problem(pictures: int, width: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features like a model's: far from zero, on different scales, and each class in its place."""
    rng = np.random.default_rng(seed)
    labels = np.arange(pictures) % classes
    centres = rng.normal(size=(classes, width))
    points = (centres[labels] + rng.normal(size=(pictures, width))) * rng.uniform(0.1, 30, width) + rng.normal(
        size=width
    )
    return torch.tensor(points, dtype=torch.float32), torch.tensor(labels)


def peer(points: torch.Tensor, labels: torch.Tensor, classes: int, l2: float) -> tuple[Ridge, np.ndarray]:
    x = points.double().numpy()
    x = np.pad((x - x.mean(0)) / (x.std(0) + 1e-5), ((0, 0), (0, 1)), constant_values=BIAS)
    return Ridge(alpha=l2, fit_intercept=False).fit(x, 2.0 * np.eye(classes)[labels.numpy()] - 1), x


@pytest.mark.parametrize(("pictures", "width"), [(60, 20), (21, 20), (20, 20), (5, 20), (30, 200)])
@pytest.mark.parametrize("l2", [2.0**-6, 1.0, L2])
def test_weights_are_scikit_learns_in_the_primal_and_in_the_dual_form(pictures: int, width: int, l2: float) -> None:
    points, labels = problem(pictures, width, 5)
    ours = solve(points, labels, 5, [l2], scale_of(points, torch.float64))[0]
    theirs, x = peer(points, labels, 5, l2)
    np.testing.assert_allclose(ours.numpy(), theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(x @ ours.numpy().T, theirs.predict(x), atol=1e-4)


def test_heads_take_features_as_the_model_gives_them() -> None:
    points, labels = problem(40, 24, 4)
    theirs, x = peer(points, labels, 4, L2)
    np.testing.assert_allclose(fit_ridge(points, labels, 4).logits(points)[0], theirs.predict(x), atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(4, 40), st.integers(2, 30), st.integers(0, 1000))
def test_one_decomposition_gives_every_lambda_what_it_would_have_alone(pictures: int, width: int, seed: int) -> None:
    points, labels = problem(pictures, width, 3, seed)
    together = fit_ridge(points, labels, 3, SWEEP)
    for place in (0, 15, 30):
        alone = fit_ridge(points, labels, 3, [SWEEP[place]])
        torch.testing.assert_close(together.logits(points)[place], alone.logits(points)[0], atol=1e-8, rtol=1e-8)


def test_a_feature_that_never_changes_does_no_harm() -> None:
    points, labels = problem(30, 6, 3)
    points[:, 2] = 7
    without = points[:, [0, 1, 3, 4, 5]]
    logits = fit_ridge(points, labels, 3, [1.0]).logits(points)
    torch.testing.assert_close(logits, fit_ridge(without, labels, 3, [1.0]).logits(without))
