"""`study.png`: one line for each series, with the spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from vitrail.pages.document import colours
from vitrail.pages.plots import drawing, label_of, new_figure, save_png
from vitrail.studies.plan import AXES, shown
from vitrail.studies.results import Result, percent

_COLOURS = ("one", "two", "three", "bad", "markink", "four")
_MARKERS = "osD^vPX"


class Point(NamedTuple):
    x: float
    y: float
    spread: float
    seeds: tuple[float, ...] = ()  # the score of each
    marked: bool = False


def write_plot(result: Result, path: Path) -> None:
    """x is a setting, training FLOPs, parameters; or there is a line for each row."""
    with drawing():
        wide = 7.2 if result.plan.plot.x != "row" else 8.0
        figure = new_figure(wide, 4.4 if result.plan.plot.x != "row" else 1.6 + 0.42 * len(result.rows))
        axes = figure.add_subplot()
        if result.plan.plot.x == "row":
            _dots(axes, result)
        else:
            _lines(axes, result)
        axes.set_title(result.plan.title, pad=12)
        save_png(figure, path)


def _judged(result: Result) -> str:
    """What the axis of scores is called."""
    part = "validation" if result.part == "val" or _shows_choice(result) else "test"
    seeds = max(row.n for row in result.rows)
    measure = "mAP" if result.measure == "map" else result.measure
    return f"{part} {measure}" + (f" (mean and standard deviation of {seeds} seeds)" if seeds > 1 else "")


def _dots(axes: Axes, result: Result) -> None:
    """A row each, from the top."""
    ink = colours()["one"]
    for place, row in enumerate(result.rows):
        scores = [run.score for run in row.runs if run.score is not None]
        if len(scores) > 1:
            axes.plot(scores, [place] * len(scores), "o", color=ink, alpha=0.3, markersize=4.5, markeredgewidth=0)
        axes.errorbar(
            row.score, place, xerr=row.spread or 0, fmt="o", color=ink, capsize=4, markersize=7, linewidth=1.6
        )
        above = (0, 8)
        axes.annotate(
            f"{row.score:.1%}", (row.score, place), above, textcoords="offset points", ha="center", fontsize=9
        )
    axes.set_yticks(range(len(result.rows)), [label_of(row.row, 40) for row in result.rows])
    axes.set_ylim(len(result.rows) - 0.4, -0.7)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0, labelsize=10)
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(FuncFormatter(_percent))
    axes.set_xlabel(_judged(result))


def _lines(axes: Axes, result: Result) -> None:
    """Where series share their places, each is drawn a little aside, or their spreads would hide each other."""
    plot, lines = result.plan.plot, _series(result)
    values = sorted({point.x for points in lines.values() for point in points})
    if plot.log:
        axes.set_xscale("log")
    for place, (name, points) in enumerate(lines.items()):
        colour, marker = colours()[_COLOURS[place % len(_COLOURS)]], _MARKERS[place % len(_MARKERS)]
        aside = place - (len(lines) - 1) / 2 if plot.x not in AXES else 0.0
        x, y = [_aside(point.x, aside, values, plot.log) for point in points], [point.y for point in points]
        spread = [point.spread for point in points]
        axes.errorbar(x, y, spread, fmt=f"{marker}-", color=colour, capsize=3, markersize=6, linewidth=1.8, label=name)
        for at, point in zip(x, points, strict=True):
            if len(point.seeds) > 1:
                axes.plot([at] * len(point.seeds), point.seeds, ".", color=colour, alpha=0.35, markersize=5)
            if point.marked:
                axes.plot(at, point.y, "o", color=colour, markersize=14, markerfacecolor="none")
    if plot.x not in AXES and len(values) <= 12:
        axes.xaxis.set_major_locator(FixedLocator(values))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(plot.x, value)))
    else:
        if plot.log:
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(plot.x, value)))
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    axes.set_xlabel(plot.label or AXES.get(plot.x) or plot.x)
    axes.set_ylabel(_judged(result).replace(" (", "\n("))
    if len(lines) > 1:
        axes.legend(loc="best")


def _shows_choice(result: Result) -> bool:
    return result.plan.choose is not None and result.plan.plot.x == result.plan.choose


def _series(result: Result) -> dict[str, list[Point]]:
    """The points of each line, from left to right."""
    lines: dict[str, list[Point]] = {}
    key = result.plan.plot.x
    for row in result.rows:
        if _shows_choice(result):  # what validation chose from, and what it chose
            points = [
                Point(float(one.value), one.val, one.spread or 0, marked=one.value == row.chosen) for one in row.tried
            ]
            name = f"{row.row} (chosen: {percent(row.score, row.spread)} on {result.part})"
        else:
            scores = tuple(run.score for run in row.runs if run.score is not None)
            x = {"training_flops": row.training_flops, "parameters": row.parameters, **row.settings}
            points, name = (
                [Point(float(x[key]), row.score, row.spread or 0, scores)],
                _name(row.series, row.settings, key),
            )
        lines.setdefault(name, []).extend(points)
    return {name: sorted(points) for name, points in lines.items()}


def _name(series: str, settings: Mapping[str, Any], key: str) -> str:
    """The series, and whatever else varies beside the axis."""
    others = [f"{other.rpartition('.')[2]} {shown(value)}" for other, value in settings.items() if other != key]
    if key in AXES:
        others = []
    return ", ".join([*([series] if series else []), *others])


def _aside(x: float, steps: float, values: list[float], log: bool) -> float:
    """So many small steps to the side."""
    if log:
        return float(x * (values[-1] / values[0]) ** (0.006 * steps))
    return x + 0.006 * steps * (values[-1] - values[0])


def _number(key: str, value: float) -> str:
    if key == "data.subset":
        return f"{100 * value:g}%"
    if key == "parameters":
        return f"{value / 1e6:g}M"
    if key == "training_flops" and value > 0:
        power = math.floor(math.log10(value) + 1e-9)
        factor = "" if round(value / 10**power, 6) == 1 else f"{value / 10**power:g} · "
        return factor + "10" + str(power).translate(_RAISED)
    return f"{value:g}"


_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def _percent(value: float, _: object) -> str:
    return f"{round(100 * value, 6):g}%"
