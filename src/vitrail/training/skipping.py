"""Steps that are left out on the device, where whether they are good is known, without waiting for the answer.

The protocol is that of torch's fused optimisers: `found_inf`, 1 where the gradients are bad and 0 where they are good,
on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def local(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What of them lies in this process: element by element, shards are worked on as they are."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def learning(groups: Iterable[dict[str, Any]]) -> tuple[list[Tensor], list[float], list[float]]:
    """Parameters with gradients; for each its learning rate, and the factor of itself that weight decay adds to it.

    All groups together make one pass over the device, however many learning rates there are.
    """
    found = [(one, group) for group in groups for one in group["params"] if one.grad is not None]
    rates = [group["lr"] for _, group in found]
    decays = [-group["lr"] * group["weight_decay"] for _, group in found]
    return [one for one, _ in found], rates, decays


def clear_bad(gradients: Sequence[Tensor], found_inf: Tensor | None) -> None:
    """Makes bad gradients zero, in place; good ones keep their bits."""
    if found_inf is not None:
        # as whole numbers, since not a number times zero is not zero
        bits = [gradient.view(_WHOLE[gradient.element_size()]) for gradient in gradients]
        torch._foreach_mul_(bits, (found_inf == 0).to(torch.int32))


def unless_bad(value: float | Tensor, otherwise: float, found_inf: Tensor | None) -> float | Tensor:
    """A number of the step, or on the device the one that leaves things as they are."""
    return value if found_inf is None else torch.where(found_inf == 0, value, otherwise)
