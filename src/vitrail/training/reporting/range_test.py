"""`lr_find.png`: the loss over a learning rate that rises, and the one that was taken."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from vitrail.pages.document import colours
from vitrail.pages.plots import drawing, new_figure, save_png
from vitrail.training.lr_find import RangeTest
from vitrail.training.recipe import Optimiser


def save_range_test(test: RangeTest, settings: Optimiser, path: Path) -> None:
    """`settings` are those whose learning rates the test multiplied."""
    with drawing():
        save_png(_figure(test, settings), path)


def _figure(test: RangeTest, settings: Optimiser) -> Figure:
    figure = new_figure(7.5, 4.2)
    axes = figure.subplots()
    rates, smoothed, factor = test.factors * settings.lr, test.smoothed, test.suggestion
    axes.plot(rates, test.losses, color=colours()["one"], linewidth=0.9, alpha=0.35, label="of a step")
    axes.plot(rates, smoothed, color=colours()["one"], linewidth=1.8, label="smoothed")
    fall = smoothed[0] - smoothed.min()
    top = smoothed[0] + max(1.5 * fall, 0.1 * abs(smoothed[0]))  # where it breaks, it leaves the picture
    axes.set_ylim(smoothed.min() - 0.4 * fall - 0.02 * abs(smoothed[0]), top)
    _mark(axes, settings.lr, "the recipe's", "soft", left=factor is not None and factor > 1)
    if factor is not None:
        taken = settings.times(factor).lr
        _mark(axes, taken, f"{taken:g}", "good", left=factor <= 1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    muon = (
        f" (that of matrices is {settings.muon_lr / settings.lr:.3g} times as much)" if settings.name == "muon" else ""
    )
    axes.set_xlabel(f"learning rate{muon}")
    axes.set_title("Loss while the learning rate rises")
    axes.legend(loc="upper left")
    return figure


def _mark(axes: Axes, rate: float, words: str, colour: str, *, left: bool) -> None:
    ink = colours()[colour]
    axes.axvline(rate, color=ink, linewidth=1.2, linestyle=(0, (4, 3)))
    place, align = axes.get_xaxis_transform(), "right" if left else "left"
    axes.annotate(f" {words} ", (rate, 0.04), xycoords=place, color=ink, ha=align)
