"""Accuracy against shots, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes

from vitrail.pages.document import colours
from vitrail.pages.plots import drawing, new_figure, save_png
from vitrail.pictures.sources import printable
from vitrail.scoring.probing.methods import METHODS, TITLES

if TYPE_CHECKING:
    from vitrail.scoring.probing.report import Figure, ProbeReport

_COLOURS = dict(zip(METHODS, ("one", "two", "three", "bad"), strict=True))
_MARKS = dict(zip(METHODS, "os^D", strict=True))


def draw(report: ProbeReport, path: Path) -> None:
    """A line for each method with bars of one standard deviation; what learnt from all pictures stands apart."""
    with drawing():
        page = new_figure(7.2, 4.4)
        axes = page.add_subplot()
        shots = list(dict.fromkeys(one.shots for one in report.figures))
        places = {number: float(place) for place, number in enumerate(shots)}
        if "all" in places and len(places) > 1:
            places["all"] += 0.3
        methods = list(dict.fromkeys(one.method for one in report.figures))
        for number, method in enumerate(methods):
            own = [one for one in report.figures if one.method == method]
            _line(axes, own, places, 0.07 * (number - (len(methods) - 1) / 2))
        axes.set_xticks(list(places.values()), [f"all\n({report.learnt:,})" if s == "all" else str(s) for s in shots])
        axes.set_xlabel("pictures of each class to learn from")
        axes.set_ylabel("accuracy, %")
        axes.margins(x=0.06)
        title = f"{_short(report.model)} on {_short(report.data)}"
        axes.set_title(title)
        axes.legend(loc="lower right")
        save_png(page, path)


def _line(axes: Axes, figures: list[Figure], places: dict[Any, float], aside: float) -> None:
    """Lines stand a little beside each other, so that their bars can be told apart."""
    name = figures[0].method
    colour, mark = colours()[_COLOURS[name]], _MARKS[name]
    x, y = [places[one.shots] + aside for one in figures], [100 * one.mean for one in figures]
    few = sum(one.shots != "all" for one in figures)
    axes.plot(x[:few], y[:few], color=colour, linewidth=1.6)
    axes.plot(x[max(few - 1, 0) :], y[max(few - 1, 0) :], color=colour, linewidth=1, linestyle=":")
    spread = [100 * (one.spread or 0) for one in figures]
    bars: dict[str, Any] = {"capsize": 3, "elinewidth": 1.2, "markersize": 5}
    axes.errorbar(x, y, spread, color=colour, marker=mark, linestyle="none", label=TITLES[name], **bars)


def _short(name: str, length: int = 34) -> str:
    """The last part of a path; other names as they are."""
    text = printable(name).rstrip("/")
    text = text if text.startswith("hf:") else text.rsplit("/", 1)[-1]
    return text if len(text) <= length else text[: length - 1] + "…"
