"""`bench.png`: pictures a second against the part of the ceiling that they reach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from vitrail.pages.document import colours
from vitrail.pages.plots import drawing, label_of, new_figure, save_png
from vitrail.speed.peers import OURS, PEERS

if TYPE_CHECKING:
    from vitrail.speed.bench_results import Bench, Measurement

_COLOURS = dict(zip((OURS, *PEERS), ("one", "two", "three", "bad", "four"), strict=True))
_MARKERS = {"eager": "o", "compiled": "D", "graphs": "^", "tuned": "P"}
_APART = 0.05  # of the height, between labels
_TITLES = {"infer": "Inference", "train": "Training"}


def write_plot(result: Bench, path: Path) -> None:
    """A panel for each mode; a line joins the contenders of one case, which lie on it by its arithmetic."""
    counted = [one for one in result.measurements if any(row.pictures_per_s for row in one.rows)]
    modes = [mode for mode in _TITLES if any(one.case.mode == mode for one in counted)]
    with drawing():
        figure = new_figure(5.6 * len(modes) + 1.6, 4.8)
        seen = [row for one in result.measurements for row in one.rows if row.pictures_per_s]
        for place, mode in enumerate(modes):
            axes = figure.add_subplot(1, len(modes), place + 1)
            _panel(axes, [one for one in counted if one.case.mode == mode])
            axes.set_title(_TITLES[mode], pad=10)
        names = [name for name in _COLOURS if any(row.contender == name for row in seen)]
        ways = [way for way in _MARKERS if any(row.way == way for row in seen)]
        handles = [Line2D([], [], marker="s", linestyle="", color=colours()[_COLOURS[n]], label=n) for n in names]
        soft = colours()["soft"]
        handles += [Line2D([], [], marker=_MARKERS[way], linestyle="", color=soft, label=way) for way in ways]
        if any(row.same is False for row in seen):
            handles.append(Line2D([], [], marker="x", linestyle="", color=colours()["bad"], label="other outputs"))
        figure.legend(handles=handles, loc="outside right upper")
        figure.suptitle(result.about["hardware"], x=0.012, ha="left", fontsize=9.5, color=soft)
        save_png(figure, path)


def _panel(axes: Axes, measurements: Sequence[Measurement]) -> None:
    axes.set_yscale("log")
    tops = {}
    for one in measurements:
        rows = sorted((row for row in one.rows if row.pictures_per_s), key=lambda row: row.pictures_per_s or 0)
        x = [100 * (row.of_ceiling or 0) for row in rows]
        y = [row.pictures_per_s or 0 for row in rows]
        axes.plot(x, y, color=colours()["line"], linewidth=1.4, zorder=1)
        for row, at, height in zip(rows, x, y, strict=True):
            ink = colours()[_COLOURS[row.contender]]
            spread = [[height - (row.low or height)], [(row.high or height) - height]]
            axes.errorbar(at, height, yerr=spread, fmt=_MARKERS[row.way], color=ink, markersize=6.5, capsize=2)
            if row.same is False:
                axes.plot(at, height, "x", color=colours()["bad"], markersize=10, zorder=4)
        name = label_of(Path(one.case.model).name.removeprefix("vit_"), 16)
        words = f"{name}, batch {one.case.batch}, {one.case.precision}"
        tops[words] = (x[-1], y[-1])
    rates = [row.pictures_per_s for one in measurements for row in one.rows if row.pictures_per_s]
    low, high = min(rates) / 1.8, 1.8 * max(rates)
    axes.set_ylim(low, high)
    axes.set_xlim(0, max(100.0, 110 * max(row.of_ceiling or 0 for one in measurements for row in one.rows)))
    _label(axes, tops, low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    axes.set_xlabel("of the matrix-product rate")
    axes.set_ylabel("pictures/s")


def _label(axes: Axes, tops: Mapping[str, tuple[float, float]], low: float, high: float) -> None:
    """The cases beside the panel, each with a line to its fastest contender; none upon another."""
    soft, line = colours()["soft"], colours()["line"]
    place = -math.inf
    for words, (x, y) in sorted(tops.items(), key=lambda top: top[1][1]):
        place = max(math.log(y / low) / math.log(high / low), place + _APART)
        axes.annotate(
            words,
            (x, y),
            (1.02, place),
            textcoords="axes fraction",
            va="center",
            fontsize=8.5,
            color=soft,
            arrowprops={"arrowstyle": "-", "color": line, "linewidth": 0.9, "shrinkA": 2, "shrinkB": 5},
        )
