"""Muon: momentum made orthogonal, for the matrices of the blocks; AdamW for all else (Keller Jordan 2024)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from vitrail.model.devices import cpu_gains_by_bf16
from vitrail.training.skipping import clear_bad, learning, local, unless_bad

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the quintic that is steepest at zero


def newton_schulz(matrices: Tensor, steps: int = 5) -> Tensor:
    """U V^T of U S V^T, nearly (singular values of about 0.7 to 1.2), of (n, rows, columns), rows ≤ columns."""
    a, b, c = COEFFICIENTS
    norms = torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)
    x = matrices / norms.clamp(min=1e-7)
    x = x.bfloat16() if x.is_cuda or (x.is_cpu and cpu_gains_by_bf16(x.shape[-2])) else x
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


def orthogonalise(matrices: Sequence[Tensor]) -> list[Tensor]:
    """`newton_schulz` of each, or of each of a stack; all that have one shape, lying or standing, in one batch."""
    shapes: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for place, matrix in enumerate(matrices):
        rows, columns = matrix.shape[-2:]
        lying, standing = shapes.setdefault((min(rows, columns), max(rows, columns)), ([], []))
        (standing if rows > columns else lying).append(place)
    done = list(matrices)
    for lying, standing in shapes.values():
        stacks = [matrices[place].reshape(-1, *matrices[place].shape[-2:]) for place in lying + standing]
        sizes = [len(stack) for stack in stacks]
        first = sum(sizes[: len(lying)])
        results = newton_schulz(torch.cat([*stacks[: len(lying)], *(stack.mT for stack in stacks[len(lying) :])]))
        # standing ones are laid out as their weights are, so that these take them all in one pass
        ready = [
            *results[:first].split_with_sizes(sizes[: len(lying)]),
            *results[first:].mT.contiguous().split_with_sizes(sizes[len(lying) :]),
        ]
        for place, result in zip(lying + standing, ready, strict=True):
            done[place] = result.view_as(matrices[place])
    return done


class Muon(torch.optim.Optimizer):
    """Groups whose `kind` is "matrix" take Nesterov momentum, made orthogonal; the "rest" is AdamW's, torch's own.

    A matrix of several `parts` is as many matrices below each other. Steps of tall ones are larger by
    sqrt(rows / columns), as in the original.
    """

    found_inf: Tensor | None = None
    factor: float | Tensor = 1.0  # of all learning rates in this step
    grad_scale: Tensor | None = None

    _update: Callable[..., None]

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, momentum: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0, "kind": "matrix", "parts": 1})
        self.momentum = momentum
        self._update = _update
        rest = [group for group in self.param_groups if group["kind"] == "rest"]
        on_cuda = any(parameter.is_cuda for group in rest for parameter in group["params"])
        self._rest = torch.optim.AdamW(rest, lr, betas, eps, fused=True, capturable=on_cuda) if rest else None
        for group in self._matrices():
            for parameter in group["params"]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def _matrices(self) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if group["kind"] == "matrix"]

    def fuse(self, fused: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
        """From now on the passes over the matrices are fused by a compiler: the same but for the last bits."""
        self._update = fused(_update)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        matrices, rates, decays = learning(self._matrices())
        if matrices:
            gradients = local([one.grad for one in matrices if one.grad is not None])
            means = local([self.state[one]["momentum_buffer"] for one in matrices])
            number = {one: group["parts"] for group in self._matrices() for one in group["params"]}
            parts = [number[one] for one in matrices]
            numbers = (parts, rates, decays, self.momentum, self.factor)
            self._update(matrices, gradients, means, *numbers, self.found_inf)
        self._step_rest()

    def _step_rest(self) -> None:
        if self._rest is not None:
            # set each time: loading a state puts other objects in their place
            self._rest.param_groups = [group for group in self.param_groups if group["kind"] == "rest"]
            self._rest.state = self.state
            self._rest.found_inf = self.found_inf  # type: ignore[attr-defined]
            self._rest.step()


def _update(
    matrices: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    parts: list[int],
    rates: list[float],
    decays: list[float],
    momentum: float,
    factor: float | Tensor,
    found_inf: Tensor | None,
) -> None:
    """A step of the matrices: of each part the orthogonal momentum, times its learning rate."""
    whole = _gather(matrices, _momenta(gradients, means, momentum, found_inf))
    stacks = [one.view(number, -1, one.shape[1]) for one, number in zip(whole, parts, strict=True)]
    moves = [_like(one, move.flatten(0, 1)) for one, move in zip(matrices, orthogonalise(stacks), strict=True)]
    shapes = [stack.shape[1:] for stack in stacks]
    factors = [-rate * max(1.0, rows / columns) ** 0.5 for rate, (rows, columns) in zip(rates, shapes, strict=True)]
    weights = local(matrices)
    steps = torch._foreach_mul(moves, factors)  # not in place: a compiler would put each back into its batch
    torch._foreach_add_(steps, torch._foreach_mul(weights, decays))
    torch._foreach_mul_(steps, unless_bad(factor, 0.0, found_inf))
    torch._foreach_add_(weights, steps)


def _momenta(
    gradients: list[Tensor], means: list[Tensor], momentum: float, found_inf: Tensor | None
) -> Sequence[Tensor]:
    """Nesterov's: the gradient and the running mean of gradients, after the mean has moved."""
    clear_bad(gradients, found_inf)
    torch._foreach_mul_(means, unless_bad(momentum, 1.0, found_inf))
    torch._foreach_add_(means, gradients, alpha=1 - momentum)
    ahead = torch._foreach_mul(means, momentum)
    torch._foreach_add_(ahead, gradients, alpha=1 - momentum)
    return ahead


def _gather(matrices: list[Tensor], shards: Sequence[Tensor]) -> list[Tensor]:
    """Whole matrices: a shard alone cannot be made orthogonal."""
    whole = []
    for parameter, shard in zip(matrices, shards, strict=True):
        if isinstance(parameter, DTensor):
            mesh, placements = parameter.device_mesh, parameter.placements
            shape, stride = parameter.shape, parameter.stride()
            shard = DTensor.from_local(shard, mesh, placements, shape=shape, stride=stride).full_tensor()
        whole.append(shard)
    return whole


def _like(parameter: Tensor, whole: Tensor) -> Tensor:
    """The part of a whole matrix that lies where this process has the parameter's."""
    if not isinstance(parameter, DTensor):
        return whole
    # every process has computed all of it, so nothing is sent
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()
