"""Sharpness-aware minimisation: the step is taken with the gradient of a worse place nearby (Foret et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from vitrail.training.skipping import local


@torch.no_grad()
def ascend(parameters: Sequence[Tensor], rho: float) -> list[Tensor]:
    """After the first backward pass: moves the weights by rho g / |g|, and returns what they were.

    The gradients are left for the caller to clear.
    """
    before = [weight.clone() for weight in local(parameters)]
    learning = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in learning if parameter.grad is not None]
    moves = torch._foreach_mul(local(gradients), rho / (_norm(gradients) + 1e-12))
    torch._foreach_add_(local(learning), moves)
    return before


@torch.no_grad()
def descend(parameters: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """After the second backward pass: puts every weight back, bit for bit, so that the step starts from there."""
    torch._foreach_copy_(local(parameters), list(before))


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    """Of all gradients together, wherever their shards are."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
