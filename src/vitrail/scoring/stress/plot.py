"""`stress.png`: a panel for each test, a line for each model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from vitrail.pages.document import colours
from vitrail.pages.plots import drawing, new_figure, save_png
from vitrail.scoring.stress.corruptions import CORRUPTIONS, SEVERITIES
from vitrail.scoring.stress.plan import TESTS
from vitrail.scoring.stress.report import Curve, Stressed, StressReport, short

_COLOURS = ("one", "two", "three", "bad", "markink", "four")
_MARKERS = "osD^vP"
_DASHES = {"removed": "--", "least": "--"}  # the second of two series
_NAMES = {"blanked": "blanked in the picture", "removed": "removed from the sequence"}
_NAMES |= {"most": "most salient first", "least": "least salient first"}


def draw(report: StressReport, path: Path) -> None:
    """Panels side by side, at most three; corruptions, if they were tried, by name below."""
    tests = [test for test in report.tests if any(c.test == test for one in report.models for c in one.curves)]
    across = min(3, len(tests))
    down = -(-len(tests) // across)
    wide = "corruptions" in tests
    with drawing():
        page = new_figure(4.4 * across + (0.4 if across == 1 else 0), 3.5 * down + 3.6 * wide)
        rows = page.add_gridspec(down + wide, across, height_ratios=[3.5] * down + [3.3] * wide)
        for place, test in enumerate(tests):
            axes = page.add_subplot(rows[place // across, place % across])
            _panel(axes, report, test)
            if place % across == 0:
                axes.set_ylabel("accuracy, %")
        if wide:
            _by_name(page.add_subplot(rows[down, :]), report)
        _title(page, report, across)
        save_png(page, path)


def _title(page: Figure, report: StressReport, across: int) -> None:
    of = f"{report.pictures:,} pictures of {short(report.data)}"
    if len(report.models) == 1:
        of = f"{short(report.models[0].name)} on {of}"
    seeds = f"; bars: standard deviation of {report.seeds} seeds" if report.seeds > 1 else ""
    page.suptitle(of + (seeds if across > 1 else ""), x=0.01, ha="left", fontsize=12, fontweight="bold")


def _panel(axes: Axes, report: StressReport, test: str) -> None:
    about = TESTS[test]
    for number, one in enumerate(report.models):
        curves = [c for c in one.curves if c.test == test]
        lines = [_mean_curve(one, curves)] if test == "corruptions" and curves else [_curve(one, c) for c in curves]
        for series, x, y, spread in lines:
            names = [short(one.name, 24)] * (len(report.models) > 1) + [_NAMES.get(series, series)] * bool(series)
            _line(axes, number, series, [about.factor * at for at in x], y, spread, ", ".join(names))
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
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="best", fontsize=8.5)


def _top(report: StressReport) -> float:
    """The same for all panels, so that they can be compared."""
    return min(100.0, 100 * max(one.clean.accuracy for one in report.models) * 1.12 + 1)


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
    axes: Axes, number: int, series: str, x: Sequence[float], y: Sequence[float], spread: Sequence[float], name: str
) -> None:
    colour, mark = colours()[_COLOURS[number % len(_COLOURS)]], _MARKERS[number % len(_MARKERS)]
    bars: dict[str, Any] = {"capsize": 2.5, "elinewidth": 1.1, "markersize": 4.5, "linewidth": 1.6}
    if series in _DASHES:
        bars |= {"linestyle": _DASHES[series], "markerfacecolor": colours()["card"]}
    axes.errorbar(x, y, spread if any(spread) else None, color=colour, marker=mark, label=name or None, **bars)


def _by_name(axes: Axes, report: StressReport) -> None:
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
    axes.set_ylim(bottom=0, top=1.15 * _top(report))
    axes.set_ylabel("accuracy, %")
    axes.set_title("Each corruption: mean over the severities; the bar is from the worst to the best")
    axes.legend(loc="upper left", ncols=3, fontsize=8.5)
