"""`curves.png`: how loss, accuracy, learning rate and speed went."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, PercentFormatter
from numpy.typing import NDArray

from vitrail.pages.document import colours
from vitrail.pages.plots import new_figure
from vitrail.training.live import goodness
from vitrail.training.log import Row

_MOST_POINTS = 400  # of a line; more are drawn as means of neighbours

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class History:
    """The rows of a log that hold: where a training went back, what was after that step is left out."""

    train: list[Row]
    evaluations: list[Row]

    @classmethod
    def of(cls, log: Sequence[Row]) -> History:
        return cls(_last_course(log, "train"), _last_course(log, "eval"))

    @property
    def best(self) -> Row | None:
        judged = [row for row in self.evaluations if goodness(row) > -math.inf]
        return max(judged, key=goodness, default=None)


def curves(history: History) -> Figure | None:
    """None where nothing was written down."""
    panels = [(key, *about) for key, about in _PANELS.items() if any(_has(history, key))]
    if not panels:
        return None
    figure = new_figure(10.5, 3.35 * -(-len(panels) // 2))
    axes = figure.subplots(-(-len(panels) // 2), min(2, len(panels)), squeeze=False).ravel()
    for place, (key, title, unit) in zip(axes, panels, strict=False):
        _panel(place, history, key)
        place.set_title(title)
        place.set_xlabel("epoch")
        place.yaxis.set_major_formatter(unit)
    for empty in axes[len(panels) :]:
        empty.set_visible(False)
    return figure


class _Exact(Formatter):
    """As few digits as show what each tick stands for, so that no two are alike."""

    def __init__(self, write: Callable[[Sequence[float], int], list[str]], fewest: int) -> None:
        self.write, self.fewest = write, fewest

    def __call__(self, value: float, place: int | None = None) -> str:
        return self.format_ticks([value])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        near = 1e-3 * min((abs(b - a) for a, b in pairwise(values)), default=np.inf)
        for digits in range(self.fewest, 17):
            words = self.write(values, digits)
            if all(abs(float(one.replace(",", "")) - value) <= near for one, value in zip(words, values, strict=True)):
                break
        return words


def _numbers(values: Sequence[float], digits: int) -> list[str]:
    """With decimals as many as any of them needs."""
    words = [f"{value:.{digits}g}" for value in values]
    if any("e" in word for word in words):
        return words
    decimals = max((len(word.partition(".")[2]) for word in words), default=0)
    return [f"{value:.{decimals}f}" for value in values]


def _rates(values: Sequence[float], digits: int) -> list[str]:
    """0.002, or where all are small 5e-4, with a short power of ten."""
    if max(map(abs, values), default=0) >= 1e-3:
        return _numbers(values, digits)
    split = [f"{value:.{digits - 1}e}".split("e") for value in values]
    return [f"{float(front):.{digits}g}e{int(power)}" if float(front) else "0" for front, power in split]


def _counts(values: Sequence[float], decimals: int) -> list[str]:
    return [f"{value:,.{decimals}f}" for value in values]


_PANELS = {
    "loss": ("Loss", _Exact(_numbers, 3)),
    "accuracy": ("Accuracy", PercentFormatter(1)),
    "map": ("Mean average precision", PercentFormatter(1)),
    "knn": ("Nearest neighbours of the same label", PercentFormatter(1)),
    "lr": ("Learning rate", _Exact(_rates, 3)),
    "pictures_per_s": ("Pictures per second", _Exact(_counts, 0)),
}


def _panel(axes: Axes, history: History, key: str) -> None:
    trained, judged = _has(history, key)
    tops = []
    if trained:
        x, y = _points(history.train, key)
        _train_line(axes, x, y, noisy=key in ("loss", "accuracy"))
        tops.append(_robust_top(y))
    if judged:
        x, y = _points(history.evaluations, key)
        dots = "o" if len(x) <= 60 else ""
        axes.plot(x, y, color=colours()["two"], linewidth=1.8, marker=dots, markersize=3.5, label="validation")
        _mark_best(axes, history, key)
        tops.append(_robust_top(y))
    if trained and judged:
        axes.legend(loc="lower right", bbox_to_anchor=(1.01, 0.985), ncols=2, handlelength=1.4, columnspacing=1.4)
    if key == "loss" and axes.get_ylim()[1] > 1.5 * max(tops):  # one burst must not flatten all the rest
        axes.set_ylim(top=1.1 * max(tops))
    if key == "pictures_per_s":
        axes.set_ylim(bottom=0)
    axes.margins(x=0.02)


def _train_line(axes: Axes, x: Floats, y: Floats, noisy: bool) -> None:
    colour = colours()["one"]
    if not noisy or len(x) < 60:
        dot = "o" if len(x) == 1 else ""  # one point makes no line
        axes.plot(x, y, color=colour, linewidth=1.8, marker=dot, markersize=5, label="training")
        return
    width = max(3, len(x) // 40)
    weights = np.convolve(np.ones_like(y), np.ones(width), "same")
    axes.plot(x, y, color=colour, linewidth=0.9, alpha=0.3)
    axes.plot(x, np.convolve(y, np.ones(width), "same") / weights, color=colour, linewidth=1.8, label="training")


def _mark_best(axes: Axes, history: History, key: str) -> None:
    best = history.best
    if best is None or best.get(key) is None:
        return
    good = colours()["good"]
    axes.axvline(best["epoch"], color=good, linewidth=1, linestyle=(0, (4, 3)))
    axes.plot([best["epoch"]], [best[key]], "o", color=good, markersize=7, zorder=5)
    if goodness({key: best[key]}) != goodness(best):  # the loss at the epoch of the best accuracy need not be the best
        return
    value = f"{best[key]:.3f}" if key == "loss" else f"{best[key]:.1%}"
    right = best["epoch"] > 0.5 * history.evaluations[-1]["epoch"]
    axes.annotate(
        f"best: {value}, epoch {round(best['epoch'], 2):g}",
        (best["epoch"], 0.93 if key == "loss" else 0.07),  # where the curve is not
        xycoords=axes.get_xaxis_transform(),
        xytext=(-7 if right else 7, 0),
        textcoords="offset points",
        ha="right" if right else "left",
        va="center",
        color=good,
        fontsize=9.5,
    )


def _has(history: History, key: str) -> tuple[bool, bool]:
    return tuple(  # type: ignore[return-value]
        any(row.get(key) is not None for row in rows) for rows in (history.train, history.evaluations)
    )


def _points(rows: Sequence[Row], key: str) -> tuple[Floats, Floats]:
    known = [(row["epoch"], row[key]) for row in rows if row.get(key) is not None]
    x, y = np.array(known, np.float64).T
    if len(x) <= _MOST_POINTS:
        return x, y
    edges = np.linspace(0, len(x), _MOST_POINTS + 1).astype(int)[:-1]
    sizes = np.diff(np.append(edges, len(x)))
    return np.add.reduceat(x, edges) / sizes, np.add.reduceat(y, edges) / sizes


def _robust_top(values: Floats) -> float:
    return float(min(values.max(), 2 * np.percentile(values, 97)))


def _last_course(log: Sequence[Row], kind: str) -> list[Row]:
    kept: list[Row] = []
    for row in reversed(log):
        if row["kind"] == kind and (not kept or row["step"] < kept[-1]["step"]):
            kept.append(row)
    return kept[::-1]
