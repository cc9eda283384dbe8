"""Muon: momentum made orthogonal, for the matrices of the blocks; AdamW for all else (Keller Jordan 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from vitrail.training.skipping import clear_bad, local, unless_bad

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the quintic that is steepest at zero


def newton_schulz(matrices: Tensor, steps: int = 5) -> Tensor:
    """U V^T of U S V^T, nearly (singular values of about 0.7 to 1.2), of (n, rows, columns), rows ≤ columns."""
    a, b, c = COEFFICIENTS
    norms = torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)
    x = matrices / norms.clamp(min=1e-7)
    x = x.bfloat16() if x.is_cuda else x
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


def orthogonalise(matrices: Sequence[Tensor]) -> list[Tensor]:
    """`newton_schulz` of each; all that have one shape, lying or standing, in one batch."""
    places: dict[tuple[int, int], list[int]] = {}
    for place, matrix in enumerate(matrices):
        places.setdefault((min(matrix.shape), max(matrix.shape)), []).append(place)
    done = list(matrices)
    for batch in places.values():
        results = newton_schulz(torch.stack([_lying(matrices[place]) for place in batch]))
        for place, result in zip(batch, results.unbind(), strict=True):
            done[place] = result if _lies(matrices[place]) else result.mT
    return done


def _lies(matrix: Tensor) -> bool:
    return matrix.shape[0] <= matrix.shape[1]


def _lying(matrix: Tensor) -> Tensor:
    return matrix if _lies(matrix) else matrix.mT


class Muon(torch.optim.Optimizer):
    """Groups whose `kind` is "matrix" take Nesterov momentum, made orthogonal; the "rest" is AdamW's, torch's own.

    A matrix of several `parts` is as many matrices below each other. Steps of tall ones are larger by
    sqrt(rows / columns), as in the original.
    """

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, momentum: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "kind": "matrix", "parts": 1})
        rest = [group for group in self.param_groups if group["kind"] == "rest"]
        self._rest = torch.optim.AdamW(rest, lr, betas, eps, fused=True) if rest else None
        for group in self._matrices():
            for parameter in group["params"]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def _matrices(self) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if group["kind"] == "matrix"]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        weights: list[Tensor] = []
        moves: list[Tensor] = []
        pieces: list[Tensor] = []
        factors: list[float] = []
        counts: list[int] = []
        for group in self._matrices():
            learning = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not learning:
                continue
            directions = self._gather(learning, self._momentum(learning, group["momentum"]))
            if group["weight_decay"]:
                kept = unless_bad(1 - group["lr"] * group["weight_decay"], 1.0, self.found_inf)
                torch._foreach_mul_(local(learning), kept)
            for direction in directions:
                parts = direction.chunk(group["parts"])
                pieces += parts
                counts.append(len(parts))
                factors.append(-group["lr"] * max(1.0, parts[0].shape[0] / parts[0].shape[1]) ** 0.5)
            weights += learning
        if weights:
            orthogonal = iter(orthogonalise(pieces))
            for weight, count in zip(weights, counts, strict=True):
                parts = tuple(next(orthogonal) for _ in range(count))
                moves.append(_like(weight, parts[0] if count == 1 else torch.cat(parts)))
            moves = list(torch._foreach_mul(moves, factors))
            if self.found_inf is not None:
                torch._foreach_mul_(moves, unless_bad(1.0, 0.0, self.found_inf))
            torch._foreach_add_(local(weights), moves)
        self._step_rest()

    def _momentum(self, learning: list[Tensor], momentum: float) -> list[Tensor]:
        """Nesterov's: the gradient and the running mean of gradients, after the mean has moved."""
        gradients = local([parameter.grad for parameter in learning if parameter.grad is not None])
        means = local([self.state[parameter]["momentum_buffer"] for parameter in learning])
        clear_bad(gradients, self.found_inf)
        torch._foreach_mul_(means, unless_bad(momentum, 1.0, self.found_inf))
        torch._foreach_add_(means, gradients, alpha=1 - momentum)
        ahead = torch._foreach_mul(means, momentum)
        torch._foreach_add_(ahead, gradients, alpha=1 - momentum)
        return list(ahead)

    @staticmethod
    def _gather(learning: list[Tensor], shards: list[Tensor]) -> list[Tensor]:
        """Whole matrices: a shard alone cannot be made orthogonal."""
        whole = []
        for parameter, shard in zip(learning, shards, strict=True):
            if isinstance(parameter, DTensor):
                mesh, placements = parameter.device_mesh, parameter.placements
                shape, stride = parameter.shape, parameter.stride()
                shard = DTensor.from_local(shard, mesh, placements, shape=shape, stride=stride).full_tensor()
            whole.append(shard)
        return whole

    def _step_rest(self) -> None:
        if self._rest is not None:
            # set each time: loading a state puts other objects in their place
            self._rest.param_groups = [group for group in self.param_groups if group["kind"] == "rest"]
            self._rest.state = self.state
            self._rest.found_inf = self.found_inf  # type: ignore[attr-defined]
            self._rest.step()


def _like(parameter: Tensor, whole: Tensor) -> Tensor:
    """The part of a whole matrix that lies where this process has the parameter's."""
    if not isinstance(parameter, DTensor):
        return whole
    # every process has computed all of it, so nothing is sent
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()
