"""`stress.png`: a panel for each test, a line for each model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from vitrail.pages.document import colours
from vitrail.pages.plots import drawing, new_figure, save_png
from vitrail.scoring.stress.corruptions import CORRUPTIONS, SEVERITIES
from vitrail.scoring.stress.plan import TESTS
from vitrail.scoring.stress.report import Curve, Stressed, StressReport, short

_COLOURS = ("one", "two", "three", "bad", "markink", "four")
_MARKERS = "osD^vPX"
_LINE = 0.21  # inches, of a legend
_SECOND = ("removed", "least")  # of two series
_NAMES = {"blanked": "blanked in the picture", "removed": "removed from the sequence"}
_NAMES |= {"most": "most salient first", "least": "least salient first"}


def draw(report: StressReport, path: Path) -> None:
    with drawing():
        save_png(page_of(report), path)


def page_of(report: StressReport) -> Figure:
    """Panels side by side, at most three; corruptions, if they were tried, by name below."""
    tests = [test for test in report.tests if any(c.test == test for one in report.models for c in one.curves)]
    across = min(3, len(tests))
    down = -(-len(tests) // across)
    wide = "corruptions" in tests
    below = 3.6 + _LINE * -(-len(report.models) // across) if wide else 0.0  # inches
    page = new_figure(6.4 if across == 1 else 4.4 * across, (4.2 if across == 1 else 3.5) * down + below)
    rows = page.add_gridspec(down + wide, across, height_ratios=[3.5] * down + [below - 0.3] * wide)
    for place, test in enumerate(tests):
        axes = page.add_subplot(rows[place // across, place % across])
        _panel(axes, report, test, alone=across == 1)
        if place % across == 0:
            axes.set_ylabel("accuracy, %")
    if wide:
        _by_name(page.add_subplot(rows[down, :]), report, across)
    _title(page, report, across)
    return page


def _title(page: Figure, report: StressReport, across: int) -> None:
    """What was tried and, below it, which line is which model; a panel that stands alone says that itself."""
    of, lines = f"{report.pictures:,} pictures of {short(report.data)}", 0
    if len(report.models) == 1:
        of = f"{short(report.models[0].name)} on {of}"
    elif across > 1:
        handles = [_handle(number, short(one.name, 24)) for number, one in enumerate(report.models)]
        lines = -(-len(handles) // (across + 1))
        top = (0.002, 1 - 0.28 / page.get_figheight())
        page.legend(handles=handles, loc="upper left", bbox_to_anchor=top, ncols=across + 1, fontsize=10)
    seeds = f"; bars: standard deviation of {report.seeds} seeds" if report.seeds > 1 else ""
    text = of + (seeds if across > 1 else "") + "\n" * lines
    page.suptitle(text, x=0.01, ha="left", fontsize=12, fontweight="bold", linespacing=1.5)


def _panel(axes: Axes, report: StressReport, test: str, alone: bool) -> None:
    about = TESTS[test]
    for number, one in enumerate(report.models):
        curves = [c for c in one.curves if c.test == test]
        lines = [_mean_curve(one, curves)] if test == "corruptions" and curves else [_curve(one, c) for c in curves]
        for series, x, y, spread in lines:
            _line(axes, number, series, [about.factor * at for at in x], y, spread)
    ticks = sorted(
        {about.factor * p.level for one in report.models for c in one.curves if c.test == test for p in c.points}
    )
    if test == "scale":
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    if test in ("scale", "shuffle", "corruptions"):
        axes.set_xticks([{"shuffle": 1.0, "scale": 1.0}.get(test, 0.0), *ticks])
    elif test == "rotation":
        axes.set_xticks(range(0, 181, 30))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}{about.unit}")
    axes.tick_params(axis="x", labelsize=9)
    axes.set_xlabel(about.axis)
    axes.set_ylim(bottom=0, top=_top(report))
    axes.set_title(about.title + (", mean of 15" if test == "corruptions" else ""))
    handles = _legend(report, test, alone)
    if handles:
        axes.legend(handles=handles, loc="best", fontsize=8.5)


def _legend(report: StressReport, test: str, alone: bool) -> list[Line2D]:
    """Which line is which series; of a panel that stands alone, which is which model, too."""
    models = len(report.models) > 1 and alone
    handles = [_handle(number, short(one.name, 24)) for number, one in enumerate(report.models)] if models else []
    series = dict.fromkeys(
        c.series for one in report.models for c in one.curves if c.test == test and c.series in _NAMES
    )
    ink = colours()["soft"] if len(report.models) > 1 else colours()[_COLOURS[0]]
    return handles + [Line2D([], [], color=ink, label=_NAMES[name], **_look(0, name)) for name in series]


def _handle(number: int, name: str) -> Line2D:
    return Line2D([], [], color=colours()[_COLOURS[number % len(_COLOURS)]], label=name, **_look(number, ""))


def _look(number: int, series: str) -> dict[str, Any]:
    """Of a line: the mark is the model's; the second of two series is dashed, its marks are hollow."""
    look: dict[str, Any] = {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 4.5, "linewidth": 1.6}
    return look | ({"linestyle": "--", "markerfacecolor": colours()["card"]} if series in _SECOND else {})


def _top(report: StressReport) -> float:
    """The same for all panels, so that they can be compared."""
    points = [point.mean for one in report.models for curve in one.curves for point in curve.points]
    return min(101.0, 100 * max([*points, *(one.clean.accuracy for one in report.models)]) * 1.08 + 1)


Line = tuple[str, list[float], list[float], list[float]]


def _curve(one: Stressed, curve: Curve) -> Line:
    """With the pictures as they are, where the test has no strength."""
    start = 1.0 if curve.test in ("shuffle", "scale") else 0.0
    points = [(start, 100 * one.clean.accuracy, 0.0)]
    points += [(point.level, 100 * point.mean, 100 * (point.spread or 0)) for point in curve.points]
    x, y, spread = (list(column) for column in zip(*sorted(points), strict=True))
    return curve.series, x, y, spread


def _mean_curve(one: Stressed, curves: Sequence[Curve]) -> Line:
    means = [100 * statistics.fmean(curve.at(severity).mean for curve in curves) for severity in SEVERITIES]
    levels = [0.0, *map(float, SEVERITIES)]
    return "", levels, [100 * one.clean.accuracy, *means], [0.0] * len(levels)


def _line(
    axes: Axes, number: int, series: str, x: Sequence[float], y: Sequence[float], spread: Sequence[float]
) -> None:
    colour = colours()[_COLOURS[number % len(_COLOURS)]]
    bars: dict[str, Any] = {"capsize": 2.5, "elinewidth": 1.1, **_look(number, series)}
    axes.errorbar(x, y, spread if any(spread) else None, color=colour, **bars)


def _by_name(axes: Axes, report: StressReport, across: int) -> None:
    """Each corruption, the mean over the severities, the worst and the best of them as a line."""
    there = [one for one in report.models if one.corruption_errors]
    for number, one in enumerate(there):
        colour, mark = colours()[_COLOURS[number % len(_COLOURS)]], _MARKERS[number % len(_MARKERS)]
        aside = 0.22 * (number - (len(there) - 1) / 2)
        for place, name in enumerate(CORRUPTIONS):
            means = [100 * point.mean for point in one.curve("corruptions", name).points]
            axes.plot([place + aside] * 2, [min(means), max(means)], color=colour, linewidth=5, alpha=0.25)
        y = [100 * (1 - one.corruption_errors[name]) for name in CORRUPTIONS]
        mce = "" if report.baseline is None else f", mCE {100 * report.baseline.mce(one.corruption_errors):.1f}%"
        axes.plot(
            [place + aside for place in range(len(CORRUPTIONS))],
            y,
            mark,
            color=colour,
            markersize=5.5,
            label=f"{short(one.name, 24)}{mce}" + (f" of {short(report.baseline.name, 16)}" if report.baseline else ""),
        )
    names = [name.replace("_", " ").replace(" compression", "").replace(" transform", "") for name in CORRUPTIONS]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
    axes.grid(axis="x", visible=False)
    axes.set_ylim(bottom=0, top=_top(report))
    axes.set_ylabel("accuracy, %")
    lines = -(-len(there) // across)  # of the legend, which stands between the title and the axes
    more = "; the bar is from the worst to the best" if across > 1 else "; bars: worst to best"
    axes.set_title("Each corruption: mean over the severities" + more, pad=8 + 72 * _LINE * lines)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=across, fontsize=8.5)
