"""Every method with every number of shots: settings are chosen on pictures that are held out, then judged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitrail.data.notes import counted, quoted
from vitrail.scoring.probing.methods import Method
from vitrail.scoring.probing.problem import Problem, Progress
from vitrail.scoring.probing.report import Figure
from vitrail.scoring.probing.sides import Draws

Shots = int | Literal["all"]

SHOTS: tuple[Shots, ...] = (1, 5, 10, 25, "all")  # those of the paper; all pictures too


class Runs:
    """Methods that choose among settings draw their shots beside what is held out; others from everything."""

    def __init__(self, problem: Problem, methods: Sequence[Method], seeds: int, progress: Progress | None) -> None:
        self.problem = problem
        self.methods = methods
        self.seeds = seeds
        self.progress = progress
        samples, rows = problem.source.samples, problem.rows
        held = problem.held
        chooses = torch.from_numpy(held)
        self.held_points, self.held_labels = problem.learn[chooses], problem.learn_labels[chooses]
        self.free = np.flatnonzero(~held)
        self.all_draws = Draws(samples, rows)
        self.free_draws = Draws(samples, rows[self.free], spared=int(held.sum()))

    def _draws(self, method: Method) -> Draws:
        return self.all_draws if len(method.grid) == 1 else self.free_draws

    def shots(self, asked: Sequence[Shots] | None) -> tuple[list[Shots], list[str]]:
        """The numbers of shots: those that are asked for, all of which must be there; or else the usual ones that are,
        and a note of those that are not."""
        numbers = sorted({one for one in asked or SHOTS if one != "all"})
        draws = min((self._draws(method) for method in self.methods), key=lambda draws: draws.most)
        if asked is not None:
            draws.refuse(numbers)
        found: list[Shots] = [one for one in numbers if one <= draws.most]
        notes = []
        if few := [str(one) for one in numbers if one > draws.most]:
            smallest = quoted([self.problem.source.classes[draws.smallest]])
            has = f"class {smallest} has {counted(draws.most, 'picture')} to draw from"
            notes.append(f"{', '.join(few)} shots left out: {has}")
        return found + (["all"] if "all" in (asked or SHOTS) else []), notes

    def places(self, method: Method, shots: Shots, seed: int) -> Tensor:
        """Which pictures of the problem a method learns from in the end."""
        if shots == "all":
            return torch.arange(len(self.problem.rows))
        places = self._draws(method).places(shots, seed)
        return torch.from_numpy(places if len(method.grid) == 1 else self.free[places])

    def figures(self, shots: Sequence[Shots]) -> list[Figure]:
        found: list[Figure] = []
        for method in self.methods:
            for kind in shots:
                start = time.perf_counter()
                if kind == "all":  # only the order of the batches is left to the seed
                    runs = [self._all(method, seed) for seed in range(self.seeds if method.name == "sgd" else 1)]
                else:
                    runs = [self._few(method, kind, seed) for seed in range(self.seeds)]
                accuracies, chosen = zip(*runs, strict=True)
                seconds = time.perf_counter() - start
                found.append(Figure(method.name, kind, accuracies, method.setting, chosen, seconds))
                if self.progress is not None:
                    self.progress("probes", len(found), len(self.methods) * len(shots))
        return found

    def _few(self, method: Method, shots: int, seed: int) -> tuple[float, float]:
        """Accuracy with so many shots, and the setting; one fit serves the choice and the judgement."""
        problem, own = self.problem, self.places(method, shots, seed)
        fit, grid = (problem.learn[own], problem.learn_labels[own]), method.settings(len(own))
        if len(grid) == 1:
            answers, best = method.answer(*fit, problem.judged, problem.classes, grid, seed), 0
        else:
            both = method.answer(*fit, torch.cat([self.held_points, problem.judged]), problem.classes, grid, seed)
            best = _best(both[:, : len(self.held_points)], self.held_labels)
            answers = both[:, len(self.held_points) :]
        return _accuracy(answers[best], problem.judged_labels), grid[best]

    def _all(self, method: Method, seed: int) -> tuple[float, float]:
        """Accuracy with all pictures, and the setting, chosen without those that are held out."""
        problem, free = self.problem, torch.from_numpy(self.free)
        grid = method.settings(len(free))
        chosen = grid[0]
        if len(grid) > 1:
            fit = (problem.learn[free], problem.learn_labels[free])
            answers = method.answer(*fit, self.held_points, problem.classes, grid, seed)
            chosen = grid[_best(answers, self.held_labels)]
        fit = (problem.learn, problem.learn_labels)
        answers = method.answer(*fit, problem.judged, problem.classes, (chosen,), seed)
        return _accuracy(answers[0], problem.judged_labels), chosen


def _accuracy(answers: Tensor, labels: Tensor) -> float:
    return float((answers == labels).double().mean())


def _best(answers: Tensor, labels: Tensor) -> int:
    """The setting that is right most often; of equal ones, the middle one."""
    right = (answers == labels).sum(dim=1)
    equal = (right == right.max()).nonzero().flatten()
    return int(equal[len(equal) // 2])
