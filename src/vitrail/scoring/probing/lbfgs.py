"""L-BFGS for several problems of one shape at once: a grid of regularisers costs little more than one of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # points and which problems → values, gradients

_MEMORY = 10  # pairs of steps and changes of the gradient
_ENOUGH = 1e-4  # of the decrease that the slope promises (Armijo)
_TRIES = 25  # of shorter and shorter steps
_FLAT = 1e-10  # move · bend in terms of bend²


def minimise(function: Function, start: Tensor, *, steps: int, tolerance: float) -> Tensor:
    """The minimum of each problem, (problems, size): no entry of the gradient is above `tolerance`, or no digit is left
    to gain, or `steps` are done.

    `function` takes points, (n, size), and the numbers of the problems they belong to, (n,). The problems must be
    convex. Each has its own step lengths, and leaves when it is done.
    """
    found = start.clone()
    alive = torch.arange(len(start), device=start.device)
    x = start.clone()
    value, slope = function(x, alive)
    moves: list[Tensor] = []
    bends: list[Tensor] = []
    for _ in range(steps):
        going = slope.abs().amax(dim=1) > tolerance
        if not bool(going.all()):
            found[alive[~going]] = x[~going]
            alive, x, value, slope = alive[going], x[going], value[going], slope[going]
            moves, bends = [move[going] for move in moves], [bend[going] for bend in bends]
            if not len(alive):
                break
        direction = _direction(slope, moves, bends)
        new, new_value, new_slope, moved = _search(function, alive, x, value, slope, direction, first=not moves)
        moves, bends = [*moves, new - x][-_MEMORY:], [*bends, new_slope - slope][-_MEMORY:]
        x, value, slope = new, new_value, new_slope
        slope = torch.where(moved[:, None], slope, 0)  # it cannot be bettered in this arithmetic: it leaves
    found[alive] = x
    return found


def _direction(slope: Tensor, moves: list[Tensor], bends: list[Tensor]) -> Tensor:
    """Minus the gradient times an estimate of the inverse Hessian (Nocedal's two loops)."""
    q = slope.clone()
    weights = []
    curvature = [_dot(move, bend) for move, bend in zip(moves, bends, strict=True)]
    # a pair that says nothing, since rounding is all there is of it, counts for nothing
    sound = [c > _FLAT * _dot(bend, bend) for c, bend in zip(curvature, bends, strict=True)]
    inverse = [torch.where(good, 1 / c, 0) for good, c in zip(sound, curvature, strict=True)]
    for move, bend, rho in zip(reversed(moves), reversed(bends), reversed(inverse), strict=True):
        weight = rho * _dot(move, q)
        q -= weight[:, None] * bend
        weights.append(weight)
    if moves:
        norm = _dot(bends[-1], bends[-1])
        scale = torch.where(sound[-1], curvature[-1] / norm, 1)
        q *= scale[:, None]
    for move, bend, rho, weight in zip(moves, bends, inverse, reversed(weights), strict=True):
        q += (weight - rho * _dot(bend, q))[:, None] * move
    down = _dot(q, slope) > 0
    return -torch.where(down[:, None], q, slope)


def _search(
    function: Function, alive: Tensor, x: Tensor, value: Tensor, slope: Tensor, direction: Tensor, *, first: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A step along each direction that decreases the value enough; `moved` is false where there is none."""
    promise = _dot(slope, direction)
    length = (1 / slope.abs().sum(dim=1)).clamp(max=1) if first else torch.ones_like(value)
    new, new_value, new_slope = x.clone(), value.clone(), slope.clone()
    trying = torch.arange(len(x), device=x.device)
    for _ in range(_TRIES):
        tried = x[trying] + length[trying, None] * direction[trying]
        values, slopes = function(tried, alive[trying])
        good = values <= value[trying] + _ENOUGH * length[trying] * promise[trying]
        done = trying[good]
        new[done], new_value[done], new_slope[done] = tried[good], values[good], slopes[good]
        values, trying = values[~good], trying[~good]
        if not len(trying):
            break
        length[trying] *= _shorter(values - value[trying], length[trying] * promise[trying])
    moved = torch.ones(len(x), dtype=torch.bool, device=x.device)
    moved[trying] = False
    return new, new_value, new_slope, moved


def _shorter(rise: Tensor, promised: Tensor) -> Tensor:
    """By how much to shorten a step: to the minimum of the parabola through what is known, within reason."""
    best = -promised / (2 * (rise - promised))
    return torch.nan_to_num(best, nan=0.1).clamp(0.1, 0.5)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=1)
