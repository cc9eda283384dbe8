"""`study.png`: one line for each series, with the spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from vitrail.pages.document import colours
from vitrail.pages.plots import drawing, new_figure, save_png
from vitrail.studies.plan import AXES, shown
from vitrail.studies.plot_words import fit, in_lines, place_legend
from vitrail.studies.results import Result, percent

_COLOURS = ("one", "two", "three", "bad", "markink", "four")
_MARKERS = "osD^vPX"
_APART = 2.4  # points, between series that share their places: or their spreads would hide each other
_NAME = 40  # letters of a row's name in one line
_BESIDE = 8.0  # points, from a mean to the dots of its seeds


class Point(NamedTuple):
    x: float
    y: float
    spread: float | None  # of one seed: none
    seeds: tuple[float, ...] = ()  # the score of each, where there are several
    marked: bool = False


def write_plot(result: Result, path: Path) -> None:
    """x is a setting, training FLOPs, parameters; or there is a line for each row."""
    names = [in_lines(row.row, _NAME) for row in result.rows]
    with drawing():
        if result.plan.plot.x == "row":
            each = max(0.42, *(0.14 + 0.16 * (1 + name.count("\n")) for name in names))
            figure = new_figure(8.0, 1.6 + each * len(names))
            axes = figure.add_subplot()
            _dots(axes, result, names)
        else:
            figure = new_figure(7.2, 4.4)
            axes = figure.add_subplot()
            _lines(axes, result)
        fit(figure, axes.set_title(result.plan.title, pad=12))
        fit(figure, axes.xaxis.label)
        place_legend(figure, axes)
        save_png(figure, path)


def _judged(result: Result, dots: bool) -> str:
    """What the axis of scores is called, where seeds have dots of their own or not."""
    part = "validation" if result.part == "val" or _shows_choice(result) else "test"
    counts = {row.n for row in result.rows}
    seeds = f"{max(counts)} seeds" if len(counts) == 1 else f"up to {max(counts)} seeds"
    measure = "mAP" if result.measure == "map" else result.measure
    shown = "mean, standard deviation and each" if dots else "mean and standard deviation"
    return f"{part} {measure}" + (f" ({shown} of {seeds})" if max(counts) > 1 else "")


def _dots(axes: Axes, result: Result, names: Sequence[str]) -> None:
    """A row each, from the top."""
    ink = colours()["one"]
    for place, row in enumerate(result.rows):
        seeds = _several(run.score for run in row.runs)
        _draw_seeds(axes, seeds, [place] * len(seeds), ink, up=-_BESIDE)
        axes.errorbar(row.score, place, xerr=row.spread, fmt="o", color=ink, capsize=4, markersize=7, linewidth=1.6)
        above = (0, 8)
        axes.annotate(
            f"{row.score:.1%}", (row.score, place), above, textcoords="offset points", ha="center", fontsize=9
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(result.rows) - 0.4, -0.7)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0, labelsize=10)
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(FuncFormatter(_percent))
    axes.set_xlabel(_judged(result, dots=True))


def _lines(axes: Axes, result: Result) -> None:
    plot, lines = result.plan.plot, _series(result)
    values = sorted({point.x for points in lines.values() for point in points})
    if plot.log:
        axes.set_xscale("log")
    for place, (name, points) in enumerate(lines.items()):
        colour, marker = colours()[_COLOURS[place % len(_COLOURS)]], _MARKERS[place % len(_MARKERS)]
        aside = _APART * (place - (len(lines) - 1) / 2) if plot.x not in AXES else 0.0
        x, y = [point.x for point in points], [point.y for point in points]
        spread = [math.nan if point.spread is None else point.spread for point in points]  # of one seed, no bar at all
        bars = None if all(map(math.isnan, spread)) else spread
        line = axes.errorbar(
            x, y, bars, fmt=f"{marker}-", color=colour, capsize=3, markersize=6, linewidth=1.8, label=name
        )
        _move(axes, line.get_children(), right=aside)
        for point in points:
            _draw_seeds(axes, [point.x] * len(point.seeds), point.seeds, colour, right=aside + _BESIDE)
            if point.marked:
                ring = axes.plot(point.x, point.y, "o", color=colour, markersize=14, markerfacecolor="none")
                _move(axes, ring, right=aside)
    if plot.x not in AXES and len(values) <= 12:
        axes.xaxis.set_major_locator(FixedLocator(values))
        axes.xaxis.set_minor_locator(NullLocator())
    elif plot.log:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(plot.x, value)))
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    axes.set_xlabel(plot.label or AXES.get(plot.x) or plot.x)
    dots = any(point.seeds for points in lines.values() for point in points)
    axes.set_ylabel(_judged(result, dots).replace(" (", "\n("))


def _draw_seeds(
    axes: Axes, x: Sequence[float], y: Sequence[float], colour: str, right: float = 0.0, up: float = 0.0
) -> None:
    """Beside their mean, which would hide them, and above whatever else is there."""
    paper = colours()["card"]
    dots = axes.plot(x, y, "o", color=colour, markersize=4, markerfacecolor=paper, markeredgewidth=1.1, zorder=4)
    _move(axes, dots, right, up)


def _move(axes: Axes, drawn: Iterable[Artist], right: float = 0.0, up: float = 0.0) -> None:
    """Aside, by so many points."""
    figure = axes.get_figure()
    assert figure is not None
    for artist in drawn:
        artist.set_transform(axes.transData + ScaledTranslation(right / 72, up / 72, figure.dpi_scale_trans))


def _shows_choice(result: Result) -> bool:
    return result.plan.choose is not None and result.plan.plot.x == result.plan.choose


def _series(result: Result) -> dict[str, list[Point]]:
    """The points of each line, from left to right."""
    lines: dict[str, list[Point]] = {}
    key = result.plan.plot.x
    for row in result.rows:
        if _shows_choice(result):  # what validation chose from, and what it chose
            points = [
                Point(float(one.value), one.val, one.spread, _several(one.seeds), one.value == row.chosen)
                for one in row.tried
            ]
            name = f"{row.row} (chosen: {percent(row.score, row.spread)} on {result.part})"
        else:
            seeds = _several(run.score for run in row.runs)
            x = {"training_flops": row.training_flops, "parameters": row.parameters, **row.settings}
            points, name = (
                [Point(float(x[key]), row.score, row.spread, seeds)],
                _name(row.series, row.settings, key),
            )
        lines.setdefault(name, []).extend(points)
    return {name: sorted(points, key=lambda point: point.x) for name, points in lines.items()}


def _several(scores: Iterable[float | None]) -> tuple[float, ...]:
    """Of several seeds; of one, the mean is its score."""
    there = tuple(score for score in scores if score is not None)
    return there if len(there) > 1 else ()


def _name(series: str, settings: Mapping[str, Any], key: str) -> str:
    """The series, and whatever else varies beside the axis."""
    others = [f"{other.rpartition('.')[2]} {shown(value)}" for other, value in settings.items() if other != key]
    if key in AXES:
        others = []
    return ", ".join([*([series] if series else []), *others])


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
