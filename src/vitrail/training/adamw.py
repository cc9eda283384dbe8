"""AdamW: torch's own, fused; and for weights of which halves are multiplied, one kernel that writes these too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitrail.model.halves import Halves


class AdamW(torch.optim.AdamW):
    """The same steps as torch's. The gradients of weights with halves are those of the halves."""

    found_inf: Tensor | None = None

    def __init__(
        self, groups: Any, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, *, halves: Halves
    ) -> None:
        on_cuda = any(half.is_cuda for _, half in halves.pairs())
        super().__init__(groups, lr, betas, eps, weight_decay, fused=True, capturable=on_cuda)
        self.halves = halves
        halves.clear()  # of what a compiler tried

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        halves = dict(self.halves.pairs())
        if any(weight.grad is not None for weight in halves):
            raise RuntimeError("a weight whose half is multiplied has a gradient of its own")
        super().step()
        for group in self.param_groups:
            self._step_halves([(one, halves[one]) for one in group["params"] if one in halves], group)

    def _step_halves(self, pairs: list[tuple[Tensor, Tensor]], group: dict[str, Any]) -> None:
        from vitrail.model.kernels.adamw import adamw_step

        learning = [(weight, half, half.grad) for weight, half in pairs if half.grad is not None]
        if not learning:
            return
        states = [self.state[weight] for weight, *_ in learning]
        counts = [state["step"] for state in states]
        one = torch.ones_like(counts[0]) if self.found_inf is None else 1.0 - self.found_inf
        torch._foreach_add_(counts, [one] * len(counts))  # a single tensor would be read by the CPU
        lr, device = group["lr"], learning[0][0].device
        rate = lr if isinstance(lr, Tensor) else torch.full((), lr, device=device)
        for (weight, half, gradient), state in zip(learning, states, strict=True):
            adamw_step(
                weight,
                half,
                gradient,
                state["exp_avg"],
                state["exp_avg_sq"],
                state["step"],
                rate,
                factor=self.halves.factor,
                found_inf=self.found_inf,
                decay=group["weight_decay"],
                betas=group["betas"],
                eps=group["eps"],
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.halves.clear()
