"""Figures of one picture, from the arrays. Call them, and save what they return, inside `pages.plots.drawing()`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from vitrail.figures.layout import EDGE, TITLE, Size, bar, beside, board, fitted, pane, title_width, under
from vitrail.figures.overlays import HEAT, Floats, Pixels, in_colour, of_the_mean, overlay, scaled, tiled
from vitrail.pages.document import colours
from vitrail.pages.plots import bare, label_of, new_figure

TITLES = {
    "attribution": "attribution",
    "attention_gradient": "attention × gradient",
    "grad_cam": "Grad-CAM",
    "rollout": "rollout",
    "random": "random order",
}
_OF_MEAN = "times the mean of all patches"
_OF_MAP, _OF_LARGEST = "share of the map's largest", "share of the largest"
_MARKED, _LIKENESS = "the picture, one patch marked", "likeness to the marked patch"
_MARK = "#ff3b30"
_LINES = {"attribution": "one", "attention_gradient": "two", "grad_cam": "three", "rollout": "bad", "random": "four"}


def draw_attention(picture: Pixels, by_layer: Floats, total: Floats) -> Figure:
    """Figure 6: the picture, what reaches the head by rollout, and the same after each layer."""
    relative, whole = of_the_mean(by_layer), of_the_mean(total)
    every = np.concatenate([relative, whole[None]])
    span = (float(np.quantile(every, 0.005)), float(np.quantile(every, 0.995)))
    depth = len(by_layer)
    columns = min(depth, 6 if depth <= 12 else 8)
    rows = math.ceil(depth / columns)
    height, width = picture.shape[:2]
    gap = round(0.16 * width)  # a fifth of an inch, for a line of text
    small = np.stack([overlay(picture, one, span) for one in relative])
    sheet = tiled(small, columns, gap, 255)
    titles = ("the picture, as the model sees it", f"attention rollout through all {depth} layers")
    size = fitted(picture, 3.5, 5.0)
    slot = max(size[0], title_width(titles)) + 0.3
    wide = EDGE + slot + max(slot, size[0] + beside(_OF_MEAN, size))
    top = TITLE + size[1] + under(_OF_MEAN, size) + 0.3
    of_sheet = fitted(sheet, min(wide - 2 * EDGE, 1.3 * columns), 8.0)
    figure = board(wide, top + of_sheet[1] + EDGE)
    left, right = (pane(figure, EDGE + place * slot, TITLE, size) for place in range(2))
    below = pane(figure, EDGE, top, of_sheet)
    _show(left, in_colour(picture), titles[0])
    _show(right, overlay(picture, whole, span), titles[1])
    bar(right, HEAT, span, _OF_MEAN, size)
    white = np.ones((rows, columns), bool)
    white.ravel()[depth:] = False
    _show(below, np.dstack([sheet, _opaque(sheet, white, height, width, gap)]))
    for layer in range(depth):
        y, x = layer // columns * (height + gap), layer % columns * (width + gap)
        below.text(x - 0.5, y - 0.1 * gap, f"to layer {layer + 1}", fontsize=8.5, va="bottom")
    return figure


def _opaque(sheet: Pixels, there: NDArray[np.bool_], height: int, width: int, gap: int) -> Pixels:
    """255 where a tile is, and 0 between them, so that the ground of the page shows."""
    tiles = np.where(there.ravel(), 255, 0).astype(np.uint8)
    full = np.broadcast_to(tiles[:, None, None], (tiles.size, height, width))
    return tiled(full, there.shape[1], gap, 0)[: sheet.shape[0], : sheet.shape[1]]


def draw_heads(maps: Floats) -> Figure:
    """Raw attention of the head's tokens: a column for each layer, a row for each head."""
    depth, heads, rows, columns = maps.shape
    gap = max(1, round(min(rows, columns) / 14))
    sheet = tiled(scaled(maps).swapaxes(0, 1).reshape(-1, rows, columns), depth, gap)
    side = max(0.4, min(0.85, 10 / depth), 3 / depth)
    size = fitted(sheet, depth * side, max(9.0, heads * 0.4))
    wide = max(size[0] + beside(_OF_MAP, size), 3.0)
    figure = board(0.55 + wide, TITLE + size[1] + 0.5 + under(_OF_MAP, size, 0.1))
    axes = pane(figure, 0.55, TITLE, size)
    axes.imshow(sheet, cmap=matplotlib.colormaps[HEAT], vmin=0, vmax=1, interpolation="nearest")
    bare(axes)
    for ticks, count, length in ((axes.set_xticks, depth, columns), (axes.set_yticks, heads, rows)):
        ticks([place * (length + gap) + (length - 1) / 2 for place in range(count)], map(str, range(1, count + 1)))
    axes.tick_params(labelsize=8)
    axes.set_xlabel("layer")
    axes.set_ylabel("head")
    axes.set_title("Attention to each patch")
    bar(axes, HEAT, (0, 1), _OF_MAP, size, below=0.6)
    return figure


def draw_explanations(picture: Pixels, maps: Mapping[str, Floats], class_name: str) -> Figure:
    """Beside the picture: what speaks for a class, by each method."""
    count, shape = 1 + len(maps), picture.shape[0] / picture.shape[1]
    columns = count if shape > 0.55 else min(count, 2)  # wide pictures stand in rows
    rows = -(-count // columns)
    titles = [label_of(class_name, 26), *(TITLES[name] for name in maps)]
    shown = [in_colour(picture), *(overlay(picture, values) for values in maps.values())]
    size = fitted(picture, 2.1 if columns == count else 4.2, 4.5)
    slot = max(size[0], title_width(titles)) + 0.2
    wide = EDGE + slot * (columns - 1) + max(slot, size[0] + beside(_OF_LARGEST, size))
    figure = board(wide, (TITLE + size[1]) * rows + under(_OF_LARGEST, size) + EDGE)
    for place, (title, values) in enumerate(zip(titles, shown, strict=True)):
        down, across = divmod(place, columns)
        axes = pane(figure, EDGE + across * slot, TITLE + down * (TITLE + size[1]), size)
        _show(axes, values, title)
    bar(axes, HEAT, (0, 1), _OF_LARGEST, size)
    return figure


def draw_removal(lines: Mapping[str, tuple[Floats, Floats, Floats]], class_name: str) -> Figure:
    """Deletion and insertion: (fractions, deletion, insertion) of each method, with their areas."""
    figure = new_figure(9.6, 4.1)
    for place, (axes, title, better) in enumerate(
        zip(figure.subplots(1, 2, sharey=True), ("Deletion", "Insertion"), ("less", "more"), strict=True)
    ):
        for name, line in lines.items():
            area = float(np.trapezoid(line[1 + place], line[0]))
            style = "--" if name == "random" else "-"
            colour = colours()[_LINES[name]]
            axes.plot(line[0], line[1 + place], style, color=colour, linewidth=1.8, label=f"{area:.3f}  {TITLES[name]}")
        axes.set_title(f"{title}: area, {better} is better")
        axes.set_xlabel(f"patches {'removed' if place == 0 else 'shown'}, the most salient first")
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        below = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.19), "borderaxespad": 0}
        axes.legend(**below, ncols=2, columnspacing=1.2, handlelength=1.6, fontsize=9)
        if place == 0:
            axes.set_ylabel(f"probability of {label_of(class_name, 30)}")
    return figure


def draw_tokens(
    picture: Pixels, colour: Floats, similarity: Floats, patch: tuple[int, int], norms: Floats | None
) -> Figure:
    """Features as colours, the likeness of one patch to all, and the lengths of tokens."""
    size = fitted(picture, 2.3, 4.5)
    figure, panes = _panes_of_tokens(size, 4 if norms is not None else 3, bars_from=2)
    _similar(panes[0], panes[2], picture, similarity, patch, size)
    _show(panes[1], colour, "features: 3 components")
    if norms is not None:
        _show(panes[3], norms, "length of tokens, last layer", cmap="magma")
        bar(panes[3], "magma", (float(norms.min()), float(norms.max())), "length", size)
    return figure


def draw_similarity(picture: Pixels, similarity: Floats, patch: tuple[int, int]) -> Figure:
    """The likeness of one patch to all."""
    size = fitted(picture, 2.9, 5.0)
    figure, (left, right) = _panes_of_tokens(size, 2, bars_from=1)
    _similar(left, right, picture, similarity, patch, size)
    return figure


def _panes_of_tokens(size: Size, count: int, bars_from: int) -> tuple[Figure, list[Axes]]:
    """Side by side; those from one on have a bar."""
    slot = max(size[0], title_width([_MARKED])) + 0.2
    wider = max(slot, size[0] + beside("cosine", size))
    lefts = [EDGE + place * slot + max(0, place - bars_from) * (wider - slot) for place in range(count)]
    figure = board(lefts[-1] + wider, TITLE + size[1] + under("cosine", size) + EDGE)
    return figure, [pane(figure, left, TITLE, size) for left in lefts]


def _similar(left: Axes, right: Axes, picture: Pixels, similarity: Floats, patch: tuple[int, int], size: Size) -> None:
    """The picture, and the likeness of one patch to all, both with the patch marked."""
    _show(left, in_colour(picture), _MARKED)
    _show(right, similarity, _LIKENESS, cmap="viridis")
    bar(right, "viridis", (float(similarity.min()), float(similarity.max())), "cosine", size)
    height, width = picture.shape[0] / similarity.shape[0], picture.shape[1] / similarity.shape[1]
    for axes, (h, w) in ((left, (height, width)), (right, (1.0, 1.0))):
        corner = (patch[1] * w - 0.5, patch[0] * h - 0.5)
        axes.add_patch(Rectangle(corner, w, h, fill=False, edgecolor=_MARK, linewidth=1.8))


def draw_norms(norms: Floats, names: Sequence[str] = ("median", "99% are shorter", "longest")) -> Figure:
    """How long tokens are after each layer, over (pictures, depth, rows, columns)."""
    flat = norms.transpose(1, 0, 2, 3).reshape(norms.shape[1], -1)
    figure = new_figure(6.6, 3.4)
    axes = figure.add_subplot()
    layers = np.arange(1, len(flat) + 1)
    for name, part, colour in zip(names, (0.5, 0.99, 1.0), ("one", "two", "bad"), strict=True):
        axes.plot(layers, np.quantile(flat, part, axis=1), "o-", color=colours()[colour], markersize=4, label=name)
    axes.set_title("Length of the patches' tokens")
    axes.set_xlabel("layer")
    axes.set_ylabel("length")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left")
    return figure


def _show(axes: Axes, values: Floats | Pixels, title: str | None = None, cmap: str | None = None) -> None:
    axes.imshow(values, cmap=cmap, interpolation="nearest")
    _frameless(axes)
    if title:
        axes.set_title(title, fontsize=9.5)


def _frameless(axes: Axes) -> None:
    bare(axes)
    axes.set_xticks([])
    axes.set_yticks([])
