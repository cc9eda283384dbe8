"""Multinomial logistic regression for a grid of regularisers at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vitrail.scoring.probing.heads import Heads, blocks, scale_of
from vitrail.scoring.probing.lbfgs import minimise

DECAYS = tuple(10 ** (power / 2) for power in range(2, -13, -1))  # 10 to 1e-6

_SMALL = 1 << 26  # numbers in the features, up to which they are worth float64
_EXACT = (1000, 1e-8)  # steps, and the largest entry of the gradient
_ROUGH = (200, 1e-5)  # what float32 can reach
_LOGITS_AT_ONCE = 1 << 24


def fit_logistic(points: Tensor, labels: Tensor, classes: int, decays: Sequence[float] = DECAYS) -> Heads:
    """One head for each decay, on features that are scaled to mean 0 and deviation 1."""
    exact = points.numel() <= _SMALL and points.device.type != "mps"
    scale = scale_of(points, torch.float64 if exact else torch.float32)
    steps, tolerance = _EXACT if exact else _ROUGH
    weight, bias = regress(scale(points), labels, classes, decays, steps=steps, tolerance=tolerance)
    return Heads.unscaled(weight, bias, scale)


def regress(
    points: Tensor,
    labels: Tensor,
    classes: int,
    decays: Sequence[float],
    *,
    steps: int,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    """Weights (decays, classes, width) and biases (decays, classes) that minimise the mean cross-entropy plus
    decay / 2 · |weight|²; scikit-learn's C is 1 / (pictures · decay)."""
    width, held = points.shape[1], torch.tensor(list(decays), dtype=points.dtype, device=points.device)

    def loss(flat: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = _unpacked(flat, classes, width)
        value, slope = cross_entropy(points, labels, weight, bias)
        decay = held[which]
        value += decay / 2 * weight.square().sum(dim=(1, 2))
        slope[:, :, :width] += decay[:, None, None] * weight
        return value, slope.flatten(1)

    start = torch.zeros(len(held), classes * (width + 1), dtype=points.dtype, device=points.device)
    return _unpacked(minimise(loss, start, steps=steps, tolerance=tolerance), classes, width)


def cross_entropy(points: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Its mean for each head, (heads,), and the gradient, that of the bias last: (heads, classes, width + 1)."""
    heads, classes, width = weight.shape
    value = torch.zeros(heads, dtype=points.dtype, device=points.device)
    slope = torch.zeros(heads, classes, width + 1, dtype=points.dtype, device=points.device)
    rows = max(1, _LOGITS_AT_ONCE // (heads * classes))
    flat = weight.reshape(heads * classes, width)
    for block, own in zip(blocks(points, rows), blocks(labels, rows), strict=True):
        logits = torch.addmm(bias.flatten(), block, flat.T).view(-1, heads, classes)
        logs = logits.log_softmax(dim=-1)
        value -= logs.gather(2, own[:, None, None].expand(-1, heads, 1)).sum(dim=(0, 2))
        wrong = logs.exp_() - one_hot(own, classes)[:, None].to(logs)
        slope[:, :, :width] += (wrong.view(-1, heads * classes).T @ block).view(heads, classes, width)
        slope[:, :, width] += wrong.sum(dim=0)
    return value / len(points), slope / len(points)


def _unpacked(flat: Tensor, classes: int, width: int) -> tuple[Tensor, Tensor]:
    both = flat.view(-1, classes, width + 1)
    return both[:, :, :width], both[:, :, width]
