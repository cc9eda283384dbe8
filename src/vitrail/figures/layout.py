"""Where pictures and colour bars stand in a figure, in inches: nothing is cut off, whatever the shape of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitrail.pages.plots import new_figure

Size = tuple[float, float]  # width and height

EDGE = 0.12  # around everything
TITLE = 0.32  # above a picture
_BAR = 0.13  # how thick a colour bar is
_LETTER = 0.078  # the width of one in a bar's label
_LETTER_OF_TITLE = 0.084


def board(wide: float, high: float) -> Figure:
    """A figure on which `pane` puts axes."""
    figure = new_figure(wide, high)
    figure.set_layout_engine("none")
    return figure


def pane(figure: Figure, left: float, top: float, size: Size) -> Axes:
    """Axes of this size, so far from the left and from the top."""
    wide, high = figure.get_size_inches()
    return figure.add_axes((left / wide, 1 - (top + size[1]) / high, size[0] / wide, size[1] / high))


def fitted(picture: NDArray[Any], wide: float, high: float) -> Size:
    """The size of a picture that is as large as there is room for."""
    scale = min(wide / picture.shape[1], high / picture.shape[0])
    return picture.shape[1] * scale, picture.shape[0] * scale


def title_width(titles: Sequence[str]) -> float:
    return _LETTER_OF_TITLE * max(map(len, titles))


def bar(axes: Axes, cmap: str, span: tuple[float, float], label: str, size: Size, below: float = 0.08) -> None:
    """A colour bar without a frame beside axes of this size, as high as they are; where that is too low for the label,
    so far below them."""
    wide, high = size
    upright = _upright(label, size)
    place = (1 + 0.08 / wide, 0, _BAR / wide, 1) if upright else (0, -(below + _BAR) / high, 1, _BAR / high)
    mappable = ScalarMappable(Normalize(*span), matplotlib.colormaps[cmap])
    side = "vertical" if upright else "horizontal"
    line = axes.figure.colorbar(mappable, cax=axes.inset_axes(place), orientation=side)
    line.set_label(label, fontsize=9)
    line.ax.tick_params(labelsize=9)
    line.outline.set_visible(False)


def beside(label: str, size: Size) -> float:
    """What a bar takes to the right of axes."""
    return 0.08 + _BAR + 0.75 if _upright(label, size) else 0.2


def under(label: str, size: Size, below: float = 0.08) -> float:
    """What a bar takes below axes."""
    return 0.06 if _upright(label, size) else below + _BAR + 0.45


def _upright(label: str, size: Size) -> bool:
    return _LETTER * len(label) <= size[1]
