"""Where the words of a plot find room: its title, the names of its rows, its legend."""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from vitrail.pictures.sources import printable

_INSIDE = 4  # lines, whose legend may find a place between them
_SHORT = 24  # letters of a name, beside which there is still room for a plot
_ACROSS = 84  # letters of a legend from side to side
_SYMBOL = 8  # letters' room that a line's symbol takes
_MARGIN = 8.0  # points


def in_lines(name: str, most: int) -> str:
    """The whole name in lines, which end after a comma where they can."""
    parts = [printable(part) for part in name.split(", ")]
    joined = ", ".join(part.replace(" ", "\xa0") if len(part) < most else part for part in parts)
    return "\n".join(textwrap.wrap(joined, most, break_on_hyphens=False)).replace("\xa0", " ")


def fit(figure: Figure, text: Text) -> None:
    """In as many lines as it takes to end before the picture does; the picture grows by them."""
    words = text.get_text()
    text.set_text("")  # while places are found: what does not fit yet would push all else aside
    figure.draw_without_rendering()
    text.set_text(words)
    before = text.get_window_extent().height
    right = figure.bbox.x1 - _MARGIN * figure.dpi / 72
    for most in range(len(words), 0, -1):
        box = text.get_window_extent()
        if box.x0 >= 0 and box.x1 <= right:
            break
        text.set_text(textwrap.fill(words, most))
    _grow(figure, text.get_window_extent().height - before)


def place_legend(figure: Figure, axes: Axes) -> None:
    """Between the lines if it hides nothing there; many short names beside the axes, all others below."""
    handles, names = axes.get_legend_handles_labels()
    if len(names) < 2:
        return
    longest = max(map(len, names))
    if len(names) <= _INSIDE:
        legend = axes.legend(loc="best")
        figure.draw_without_rendering()
        if not _is_drawn_on(axes, legend):
            return
        legend.remove()
    elif longest <= _SHORT:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return
    labels = [in_lines(name, _ACROSS) for name in names]
    columns = max(1, min(len(names), _ACROSS // (longest + _SYMBOL)))
    below = figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    _grow(figure, below.get_window_extent().height)


def _grow(figure: Figure, pixels: float) -> None:
    figure.set_figheight(figure.get_figheight() + pixels / figure.dpi)


def _is_drawn_on(axes: Axes, legend: Legend) -> bool:
    """Whether a line, a marker or a bar lies where the legend is."""
    place, point = legend.get_window_extent(), axes.figure.dpi / 72
    for line in axes.lines:
        path = line.get_transform().transform_path(line.get_path())
        around = place.padded(line.get_markersize() / 2 * point)
        if around.count_contains(path.vertices) or (line.get_linestyle() != "None" and _crosses(path, place)):
            return True
    bars = [bar for bar in axes.collections if isinstance(bar, LineCollection)]
    return any(_crosses(bar.get_transform().transform_path(path), place) for bar in bars for path in bar.get_paths())


def _crosses(path: Path, place: Bbox) -> bool:
    return bool(path.intersects_bbox(place, filled=False))
