"""The probes behind one interface: features and labels in, answers for a grid of settings out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.scoring.probing import knn, logistic, ridge, sgd

METHODS = ("ridge", "knn", "lbfgs", "sgd")
GROUPS = {"linear": ("lbfgs", "sgd"), "all": METHODS}
TITLES = {"ridge": "ridge", "knn": "k-NN", "lbfgs": "linear, L-BFGS", "sgd": "linear, SGD"}


class Answering(Protocol):
    def __call__(
        self, points: Tensor, labels: Tensor, queries: Tensor, classes: int, grid: Sequence[float], seed: int
    ) -> Tensor:
        """What each setting says of each query: (settings, queries), on the CPU."""
        ...


@dataclass(frozen=True)
class Method:
    name: str
    setting: str  # what the grid is of
    grid: tuple[float, ...]
    answer: Answering

    def settings(self, pictures: int) -> tuple[float, ...]:
        """Those of the grid that make sense for so many pictures to learn from."""
        if self.name != "knn":
            return self.grid
        return tuple(k for k in self.grid if k <= pictures) or (float(pictures),)


def chosen_names(asked: str | Sequence[str]) -> tuple[str, ...]:
    """The names of methods, where `linear` and `all` stand for several."""
    words = [asked] if isinstance(asked, str) else list(asked)
    for word in words:
        if word not in METHODS and word not in GROUPS:
            raise VitrailError(f"{word!r} is no method: choose from {', '.join([*METHODS, *GROUPS])}")
    wanted = {name for word in words for name in GROUPS.get(word, (word,))}
    return tuple(name for name in METHODS if name in wanted)


def make_methods(
    names: Sequence[str], device: torch.device, *, l2: float | str, ks: Sequence[int], temperature: float
) -> list[Method]:
    if isinstance(l2, str) and l2 != "sweep":
        raise VitrailError(f"λ is a number above 0 or 'sweep', not {l2!r}")
    if not isinstance(l2, str) and not 0 < l2 < float("inf"):
        raise VitrailError(f"λ is a number above 0 or 'sweep', not {l2}")
    if temperature <= 0 or not ks or min(ks) < 1:
        raise VitrailError("the temperature must be above 0, and each k at least 1")
    regularisers = ridge.SWEEP if isinstance(l2, str) else (float(l2),)
    all_methods = {
        "ridge": Method("ridge", "λ", regularisers, partial(_by_heads, ridge.fit_ridge, device)),
        "knn": Method("knn", "k", tuple(sorted(map(float, set(ks)))), partial(_by_neighbours, device, temperature)),
        "lbfgs": Method("lbfgs", "decay", logistic.DECAYS, partial(_by_heads, logistic.fit_logistic, device)),
        "sgd": Method("sgd", "rate", sgd.RATES, partial(_by_heads, sgd.fit_sgd, device)),
    }
    return [all_methods[name] for name in names]


def _by_heads(
    fit: Any,
    device: torch.device,
    points: Tensor,
    labels: Tensor,
    queries: Tensor,
    classes: int,
    grid: Sequence[float],
    seed: int,
) -> Tensor:
    more = {"seed": seed} if fit is sgd.fit_sgd else {}
    answers: Tensor = fit(points.to(device), labels.to(device), classes, grid, **more).answers(queries)
    return answers


def _by_neighbours(
    device: torch.device,
    temperature: float,
    points: Tensor,
    labels: Tensor,
    queries: Tensor,
    classes: int,
    grid: Sequence[float],
    seed: int,
) -> Tensor:
    ks = [int(k) for k in grid]
    return knn.knn_answers(points, labels, queries, classes, ks, temperature=temperature, device=device)
