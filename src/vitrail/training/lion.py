"""Lion: the sign of a momentum (Chen et al. 2023, "Symbolic discovery of optimization algorithms")."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitrail.training.skipping import clear_bad, learning, local, unless_bad


class Lion(torch.optim.Optimizer):
    """w ← w - lr (sign(β1 m + (1 - β1) g) + λ w), then m ← β2 m + (1 - β2) g."""

    found_inf: Tensor | None = None
    factor: float | Tensor = 1.0  # of all learning rates in this step
    grad_scale: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        self.betas = betas
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        parameters, rates, decays = learning(self.param_groups)
        if not parameters:
            return
        gradients = local([parameter.grad for parameter in parameters if parameter.grad is not None])
        momenta = local([self.state[parameter]["exp_avg"] for parameter in parameters])
        weights = local(parameters)
        clear_bad(gradients, self.found_inf)
        moves = torch._foreach_mul(momenta, self.betas[0])
        torch._foreach_add_(moves, gradients, alpha=1 - self.betas[0])
        torch._foreach_sign_(moves)
        torch._foreach_mul_(moves, [-rate for rate in rates])
        torch._foreach_add_(moves, torch._foreach_mul(weights, decays))
        torch._foreach_mul_(moves, unless_bad(self.factor, 0.0, self.found_inf))
        torch._foreach_add_(weights, moves)
        torch._foreach_mul_(momenta, unless_bad(self.betas[1], 1.0, self.found_inf))
        torch._foreach_add_(momenta, gradients, alpha=1 - self.betas[1])
