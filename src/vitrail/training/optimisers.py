"""Optimisers by name; one way to take a step, to leave it out, and to save and restore their state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from vitrail.errors import WeightsError
from vitrail.model.halves import Halves
from vitrail.training.adamw import AdamW
from vitrail.training.lion import Lion
from vitrail.training.muon import Muon
from vitrail.training.recipe import Optimiser
from vitrail.training.skipping import local


def make_optimiser(
    groups: list[dict[str, Any]], optimiser: Optimiser, halves: Halves | None = None
) -> torch.optim.Optimizer:
    """The optimiser of a recipe, for the groups of `parameter_groups`. Its state is whole before the first step.
    `halves`, which AdamW alone takes, are of some of the weights."""
    made = _make(groups, optimiser, halves)
    for group in made.param_groups:
        for parameter in group["params"]:
            _fill_state(made, parameter)
    return made


def _make(groups: list[dict[str, Any]], optimiser: Optimiser, halves: Halves | None) -> torch.optim.Optimizer:
    # torch's are fused on CPU too: 3 to 6 times as fast there, the same bits for any number of threads
    lr, betas, eps = optimiser.lr, optimiser.betas, optimiser.eps
    match optimiser.name:
        case "adamw" if halves:
            return AdamW(groups, lr, betas, eps, optimiser.weight_decay, halves=halves)
        case "adamw":
            return torch.optim.AdamW(groups, lr, betas, eps, fused=True, capturable=_on_cuda(groups))
        case "adam":  # weight decay is part of the gradient, as in the paper's pre-training
            return torch.optim.Adam(groups, lr, betas, eps, fused=True, capturable=_on_cuda(groups))
        case "sgd":
            return Momentum(groups, lr, optimiser.momentum, fused=True)
        case "lion":
            return Lion(groups, lr, betas)
        case "muon":
            return Muon(groups, lr, optimiser.momentum, betas, eps)


def _on_cuda(groups: list[dict[str, Any]]) -> bool:
    return any(parameter.is_cuda for group in groups for parameter in group["params"])


class Momentum(torch.optim.SGD):
    """torch's SGD, which refuses sharded parameters if fused, on what of them lies in this process."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            learning = [parameter for parameter in group["params"] if parameter.grad is not None]
            sgd(
                local(learning),
                local([parameter.grad for parameter in learning]),
                local([self.state[parameter]["momentum_buffer"] for parameter in learning]),  # type: ignore[arg-type]
                fused=True,
                found_inf=getattr(self, "found_inf", None),
                weight_decay=group["weight_decay"],
                momentum=group["momentum"],
                lr=group["lr"],
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )


def _fill_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> None:
    """What torch makes in a first step. Fused SGD would leave it unfilled if that step were left out."""
    state = optimizer.state[parameter]
    if isinstance(optimizer, torch.optim.SGD):
        state["momentum_buffer"] = torch.zeros_like(parameter)
    elif not state and not isinstance(optimizer, Lion):
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)


def step(optimizer: torch.optim.Optimizer, ok: Tensor, factor: Tensor | None = None) -> None:
    """One step if `ok`, a truth value on the device, is true; else parameters and state stay as they are.

    `factor` is the schedule's, on the device too: learning rates are that part of their peaks. Nothing waits for the
    device. The gradients are used up: they may have changed afterwards.
    """
    optimizer.found_inf = torch.where(ok, 0.0, 1.0)  # type: ignore[attr-defined]
    if factor is not None:
        _set_rates(optimizer, factor)
    optimizer.step()


def _set_rates(optimizer: torch.optim.Optimizer, factor: Tensor) -> None:
    ours = isinstance(optimizer, Lion | Muon)  # they take the factor itself, once for all parameters
    if ours:
        optimizer.factor = factor  # type: ignore[attr-defined]
    for group in optimizer.param_groups:
        peak = group["base_lr"] * group["lr_scale"]
        group["lr"] = peak if ours and group.get("kind") != "rest" else factor * peak


def named_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The whole state, which is tensors alone: `exp_avg.blocks.0.attn.qkv.weight`. They are the optimiser's own."""
    state = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            state[f"{key}.{name}"] = value
    return state


@torch.no_grad()
def load_named_state(optimizer: torch.optim.Optimizer, model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Puts a saved state in place of the present one; it must be the state of the same parameters."""
    present = named_state(optimizer, model)
    wrong = [name for name in present.keys() | state.keys() if _shape(present, name) != _shape(state, name)]
    if wrong:
        first = min(wrong)
        raise WeightsError(
            f"the saved state of the optimiser is of another training: {len(wrong)} of {len(present)} tensors do not"
            f" fit, first {first} (saved is {_shape(state, first)}, wanted {_shape(present, first)})"
        )
    for name, value in present.items():
        value.copy_(state[name])


def _shape(state: Mapping[str, Tensor], name: str) -> str:
    return str(tuple(state[name].shape)) if name in state else "nothing"
