"""Copies of weights in half precision, which are multiplied in training in their place.

Autocast makes such a copy of each weight in every step, and turns its gradient into float32: for a large model as many
passes over memory as half a step of AdamW takes. A copy that is kept has a gradient of its own, in its own numbers, and
whoever changes the weight writes it anew (`vitrail.training.adamw`). The numbers are those of autocast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from vitrail.model.devices import HAS_TRITON

FEWEST = 2**19  # numbers of a weight: to pass over fewer takes no longer than to start a kernel


def are_used(device: torch.device, precision: str) -> bool:
    """Whether training keeps halves there."""
    return device.type == "cuda" and HAS_TRITON and precision in ("bf16", "bf16_residual")


def has_half(layer: nn.Module) -> bool:
    """Whether it is the half that is multiplied."""
    return layer.training and getattr(layer, "in_half", None) is not None


def trained_weight(layer: nn.Linear) -> Tensor:
    """What a linear map multiplies by."""
    half: Tensor = layer.in_half if has_half(layer) else layer.weight  # type: ignore[assignment]
    return half


class Halves:
    """Of the large linear maps in some parts of a model that learn, until they are released."""

    def __init__(self, parts: Iterable[nn.Module] = (), kind: torch.dtype = torch.bfloat16) -> None:
        self.factor: Tensor | None = None  # of their gradients, which clipping leaves to whoever takes the step
        self._layers = [
            layer
            for part in parts
            for layer in part.modules()
            if type(layer) is nn.Linear and layer.weight.requires_grad and layer.weight.numel() >= FEWEST
        ]
        for layer in self._layers:
            layer.in_half = layer.weight.detach().to(kind).requires_grad_()

    def __bool__(self) -> bool:
        return bool(self._layers)

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each weight and its half."""
        for layer in self._layers:
            yield layer.weight, layer.in_half  # type: ignore[misc]

    def gradients(self) -> list[Tensor]:
        return [half.grad for _, half in self.pairs() if half.grad is not None]

    def clear(self) -> None:
        """Forgets the gradients."""
        for _, half in self.pairs():
            half.grad = None
        self.factor = None

    @torch.no_grad()
    def refresh(self) -> None:
        """After weights were changed by somebody who does not know of halves."""
        for weight, half in self.pairs():
            half.copy_(weight)

    def release(self) -> None:
        """From here on the weights themselves are multiplied."""
        for layer in self._layers:
            del layer.in_half
        self._layers = []
