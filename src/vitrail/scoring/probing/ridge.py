"""Few-shot ridge regression as in the paper: regularised least squares from features to ±1, in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.scoring.probing.heads import Heads, Scale, blocks, scale_of

BIAS = 100.0  # a constant feature, so large that λ hardly holds its weight back
L2 = 2.0**10  # the paper's authors' own
SWEEP = tuple(2.0**power for power in range(-10, 21))

_ROWS_AT_ONCE = 1 << 14


def fit_ridge(points: Tensor, labels: Tensor, classes: int, l2: Sequence[float] = (L2,)) -> Heads:
    """One head for each λ, from one eigendecomposition.

    Features are scaled to mean 0 and deviation 1 and joined by a constant; targets are 1 for the class and -1 for the
    others. It minimises |XW - Y|² + λ|W|². With more pictures than features XᵀX is decomposed (the primal form), else
    XXᵀ (the dual one): they give the same head. In float64, where the device has it.
    """
    exact = points.dtype if points.device.type == "mps" else torch.float64
    scale = scale_of(points, exact)
    weight = solve(points, labels, classes, l2, scale)
    return Heads.unscaled(weight[:, :, :-1], weight[:, :, -1] * BIAS, scale)


def solve(points: Tensor, labels: Tensor, classes: int, l2: Sequence[float], scale: Scale) -> Tensor:
    """W for each λ, the weight of the constant last: (λ, classes, width + 1)."""
    width = points.shape[1] + 1
    regularisers = torch.tensor(list(l2), dtype=scale.mean.dtype, device=points.device)[:, None, None]
    if len(points) >= width:
        gram = torch.zeros(width, width, dtype=scale.mean.dtype, device=points.device)
        moment = torch.zeros(width, classes, dtype=scale.mean.dtype, device=points.device)
        for block, own in zip(blocks(points, _ROWS_AT_ONCE), blocks(labels, _ROWS_AT_ONCE), strict=True):
            x = design(block, scale)
            gram += x.T @ x
            moment += x.T @ targets(own, classes, x)
        values, vectors = torch.linalg.eigh(gram)
        turned = (vectors.T @ moment) / (values.clamp(min=0)[:, None] + regularisers)  # (λ, width, classes)
        return (vectors @ turned).transpose(1, 2)
    x = design(points, scale)
    values, vectors = torch.linalg.eigh(x @ x.T)
    turned = (vectors.T @ targets(labels, classes, x)) / (values.clamp(min=0)[:, None] + regularisers)
    return (x.T @ (vectors @ turned)).transpose(1, 2)


def design(points: Tensor, scale: Scale) -> Tensor:
    """Scaled features and the constant: (pictures, width + 1)."""
    return torch.nn.functional.pad(scale(points), (0, 1), value=BIAS)


def targets(labels: Tensor, classes: int, like: Tensor) -> Tensor:
    """(pictures, classes) of 1 and -1."""
    return 2 * torch.nn.functional.one_hot(labels, classes).to(like) - 1
