"""`confusion.png`: what is taken for what. A matrix of up to 50 classes; of more, the pairs that are confused most."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vitrail.pages.document import colours
from vitrail.pages.plots import bare, label_of, new_figure
from vitrail.scoring.scores import Scores

MOST_CLASSES = 50
_MOST_PAIRS = 30
_WITH_NUMBERS = 16  # classes; the cells of more are too small


def confusion(scores: Scores) -> Figure | None:
    """None for several labels to a picture, and where there is nothing to show."""
    if scores.cells is None:
        return None
    return _matrix(scores) if len(scores.per_class) <= MOST_CLASSES else _pairs(scores)


def _matrix(scores: Scores) -> Figure:
    names = [one.name for one in scores.per_class]
    counts, n = scores.confusion(), len(names)
    share = counts / np.maximum(1, np.array([one.support for one in scores.per_class]))[:, None]
    side = min(11.0, 3.6 + 0.42 * n) if n <= _WITH_NUMBERS else 7.0 + 0.08 * n
    size = 10.0 if n <= 12 else 8.5 if n <= 25 else 7.0
    figure = new_figure(side, side)
    axes = figure.add_subplot()
    one, ink, card = (colours()[name] for name in ("one", "ink", "card"))
    for row, column in np.argwhere(counts).tolist():
        part = float(share[row, column])
        depth = 0.08 + 0.92 * part**0.7  # a single mistake can be seen too
        box = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=one, alpha=depth, linewidth=0)
        axes.add_patch(box)
        if n <= _WITH_NUMBERS:
            words = "<1" if 0 < part < 0.005 else f"{100 * part:.0f}"
            axes.text(column, row, words, ha="center", va="center", size=size, color=card if depth > 0.55 else ink)
    bare(axes)
    axes.tick_params(labelcolor=ink)
    axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), aspect="equal")
    _cell_lines(axes, n)
    length = 22 if n <= 12 else 18
    axes.set_xticks(range(n), [label_of(name, length) for name in names], rotation=45 if n <= 12 else 90, size=size)
    if n <= 12:
        for tick in axes.get_xticklabels():
            tick.set(ha="right", rotation_mode="anchor")
    axes.set_yticks(range(n), [label_of(name, length) for name in names], size=size)
    axes.set_xlabel("answer")
    axes.set_ylabel("label")
    axes.set_title("Answers to the pictures of each class, in %", pad=10)
    return figure


def _cell_lines(axes: Axes, n: int) -> None:
    line = colours()["line"]
    for edge in np.arange(-0.5, n):
        axes.axhline(edge, color=line, linewidth=0.6)
        axes.axvline(edge, color=line, linewidth=0.6)


def _pairs(scores: Scores) -> Figure | None:
    pairs = scores.confused(_MOST_PAIRS)
    if not pairs:
        return None
    support = {one.name: one.support for one in scores.per_class}
    figure = new_figure(9.5, 1.1 + 0.27 * len(pairs))
    axes = figure.add_subplot()
    bare(axes)
    axes.barh(range(len(pairs)), [pair.pictures for pair in pairs], color=colours()["one"], height=0.66)
    for place, pair in enumerate(pairs):
        words = f"{pair.pictures:,} ({pair.pictures / support[pair.label]:.0%})"
        at = (pair.pictures, place)
        axes.annotate(words, at, (5, 0), textcoords="offset points", va="center", size=9, color=colours()["soft"])
    names = [f"{label_of(pair.label)} → {label_of(pair.answer)}" for pair in pairs]
    axes.set_yticks(range(len(pairs)), names, size=9.5, color=colours()["ink"])
    axes.set_xticks([])
    axes.set(ylim=(len(pairs) - 0.4, -0.6), xlim=(0, 1.2 * pairs[0].pictures))
    axes.set_title("Label → answer, in pictures (and their share of the label)", pad=10)
    return figure
