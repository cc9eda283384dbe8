"""Figure 7, from the arrays: filters, positions, and how far heads look."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitrail.figures.layout import TITLE, bar, beside, board, fitted, pane, title_width, under
from vitrail.figures.overlays import Floats, tiled
from vitrail.pages.document import colours
from vitrail.pages.plots import bare, new_figure

_MOST_PLACES = 14  # rows and columns of places that are drawn; more would be too small to see
POSITIONS = {
    "learned": ("Learned position embeddings", "cosine"),
    "fixed": ("Sine and cosine position embeddings", "cosine"),
    "rope": ("Rotary positions", "cosine of the turns"),
    "bias": ("Relative bias, mean of heads and layers", "added to attention's logits"),
}


def draw_filters(filters: Floats, share: Floats) -> Figure:
    """Figure 7, left: principal components of the filters, each with its share of the variance."""
    count, columns = len(filters), min(7, len(filters))
    height, width = filters.shape[2:]
    gap = max(1, round(0.3 * height))
    sheet = tiled(np.stack([_as_picture(one) for one in filters]), columns, gap, 0)
    wide = columns * 0.95
    figure = new_figure(wide + 0.3, wide * sheet.shape[0] / sheet.shape[1] + 0.65)
    axes = figure.add_subplot()
    axes.imshow(sheet, interpolation="nearest", cmap="gray", vmin=0, vmax=1)
    bare(axes)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("Principal components of the filters that read pixels", pad=18)
    for place in range(count):
        y, x = place // columns * (height + gap), place % columns * (width + gap) + (width - 1) / 2
        axes.text(x, y - 0.5 - 0.03 * height, f"{share[place]:.1%}", fontsize=7.5, ha="center", va="bottom")
    return figure


def _as_picture(values: Floats) -> Floats:
    """(height, width, 4), grey where there are not three channels: the middle is zero."""
    values = values if values.shape[0] == 3 else np.repeat(values.mean(axis=0, keepdims=True), 3, axis=0)
    colour = 0.5 + 0.5 * values.transpose(1, 2, 0) / max(float(np.abs(values).max()), 1e-12)
    return np.dstack([colour, np.ones(colour.shape[:2])])


def draw_positions(values: Floats, kind: str) -> Figure:
    """Figure 7, centre: for each place of the grid, its likeness to all places."""
    rows, columns = values.shape[:2]
    picked = [_spread(rows), _spread(columns)]
    title, unit = POSITIONS[kind]
    low, high = (-1.0, 1.0) if kind != "bias" else (float(values.min()), float(values.max()))
    sheet = tiled(values[np.ix_(*picked)].reshape(-1, rows, columns), len(picked[1]), 1)
    size = fitted(sheet, 6.4, 6.4)
    shown = "" if len(picked[0]) * len(picked[1]) == rows * columns else ", some of the places"
    head = f"{title}, {rows} × {columns}{shown}"
    top = max(TITLE, (1.4 - size[1]) / 2)  # beside a low one stands the name of its axis
    wide = max(size[0] + beside(unit, size), 1.1 * title_width([head]))
    figure = board(0.6 + wide, top + size[1] + max(0.55, (1.4 - size[1]) / 2) + under(unit, size, 0.1))
    axes = pane(figure, 0.6, top, size)
    axes.imshow(sheet, cmap="viridis", vmin=low, vmax=high, interpolation="nearest")
    bare(axes)
    for ticks, places, side in ((axes.set_yticks, picked[0], rows), (axes.set_xticks, picked[1], columns)):
        ticks([place * (side + 1) + (side - 1) / 2 for place in range(len(places))], [str(one + 1) for one in places])
    axes.tick_params(labelsize=8)
    axes.set_title(head)
    axes.set_xlabel("column of the patch")
    axes.set_ylabel("row of the patch")
    bar(axes, "viridis", (low, high), unit, size, below=0.6)
    return figure


def _spread(length: int) -> list[int]:
    if length <= _MOST_PLACES:
        return list(range(length))
    return sorted({round(place) for place in np.linspace(0, length - 1, 10)})


def draw_distances(distances: Floats, pictures: int) -> Figure:
    """Figure 7, right: how far each head looks, (depth, heads), against depth."""
    figure = new_figure(6.6, 3.8)
    axes = figure.add_subplot()
    depth, heads = distances.shape
    layers = np.repeat(np.arange(1, depth + 1), heads)
    axes.scatter(layers, distances.ravel(), s=22, color=colours()["one"], alpha=0.65, linewidths=0, label="one head")
    mean = distances.mean(axis=1)
    axes.plot(range(1, depth + 1), mean, color=colours()["two"], linewidth=1.6, label="mean of the layer")
    axes.set_title("How far heads look")
    axes.set_xlabel("layer")
    axes.set_ylabel(f"mean attention distance, pixels\n({pictures} picture{'s' if pictures > 1 else ''})")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="lower right")
    return figure
