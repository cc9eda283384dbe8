"""Charts as inline SVG, in the colours of the page."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vitrail.data.samples import Integers
from vitrail.pages.markup import Markup, tag

WIDTH = 1000
_NAMES = 190  # pixels for the names of classes
_ROW = 22
_MOST_ROWS = 40  # classes; more are drawn as a silhouette
_HEIGHT = 160
_BINS = 24


def class_chart(names: tuple[str, ...], counts: Mapping[str, Integers]) -> Markup:
    """How many pictures each class has, the splits stacked."""
    total = np.sum(list(counts.values()), axis=0)
    return _bars(names, counts, total) if len(names) <= _MOST_ROWS else _silhouette(names, total)


def legend(splits: Mapping[str, object]) -> Markup:
    items = [tag("span", tag("i", class_=f"key fill{place}"), name) for place, name in enumerate(splits)]
    return tag("p", items, class_="legend")


def _bars(names: tuple[str, ...], counts: Mapping[str, Integers], total: Integers) -> Markup:
    scale = (WIDTH - _NAMES - 60) / max(1, int(total.max()))
    parts: list[Markup] = []
    for place in np.argsort(-total, kind="stable").tolist():
        y = len(parts) * _ROW
        label = tag("text", _short(names[place]), x=_NAMES - 10, y=y + 15, text_anchor="end", class_="name")
        bars, x = [], float(_NAMES)
        for split, column in enumerate(counts.values()):
            width = float(column[place]) * scale
            bars.append(_bar(x, y + 4, width, _ROW - 8, f"fill{split}"))
            x += width
        number = tag("text", f"{total[place]:,}", x=round(x + 8, 1), y=y + 15, class_="number")
        parts.append(tag("g", tag("title", names[place]), label, bars, number))
    return _svg(parts, len(parts) * _ROW, "pictures in each class")


def _silhouette(names: tuple[str, ...], total: Integers) -> Markup:
    """All classes as one shape, from the largest to the smallest."""
    order = np.sort(total)[::-1]
    x = np.linspace(0, WIDTH, len(order) + 1)
    top = _HEIGHT - order / max(1, int(order[0])) * (_HEIGHT - 20)
    steps = [f"M0,{_HEIGHT}"]
    steps += [f"V{y:.1f}H{edge:.1f}" for y, edge in zip(top, x[1:], strict=True)]
    shape = tag("path", d="".join(steps) + f"V{_HEIGHT}Z", class_="fill0")
    first, last = names[int(total.argmax())], names[int(total.argmin())]
    words = [
        tag("text", f"{_short(first)}: {order[0]:,}", x=0, y=_HEIGHT + 18, class_="number"),
        tag("text", f"{_short(last)}: {order[-1]:,}", x=WIDTH, y=_HEIGHT + 18, text_anchor="end", class_="number"),
    ]
    return _svg([shape, *words], _HEIGHT + 26, "pictures in each class, the largest first")


def size_chart(short: NDArray[np.uint32]) -> Markup:
    """How long the shorter sides are; the axis is logarithmic."""
    low, high = float(short.min()), float(short.max())
    if low == high:
        low, high = low / 1.5, high * 1.5
    counts, edges = np.histogram(np.log2(short), _BINS, (np.log2(low), np.log2(high)))
    scale = (_HEIGHT - 20) / counts.max()
    step = WIDTH / _BINS
    parts = []
    for place, count in enumerate(counts.tolist()):
        if count:
            height = max(1.5, count * scale)
            span = f"{2 ** edges[place]:,.0f} to {2 ** edges[place + 1]:,.0f} pixels: {count:,}"
            bar = _bar(place * step + 1, _HEIGHT - height, step - 2, height, "fill0")
            parts.append(tag("g", tag("title", span), bar))
    for place in range(0, _BINS + 1, 6):
        anchor = "start" if place == 0 else "end" if place == _BINS else "middle"
        words = f"{2 ** edges[place]:,.0f}"
        parts.append(tag("text", words, x=place * step, y=_HEIGHT + 18, text_anchor=anchor, class_="number"))
    return _svg(parts, _HEIGHT + 26, "pictures by the length of their shorter side in pixels")


def _bar(x: float, y: float, width: float, height: float, style: str) -> Markup:
    box = {"x": round(x, 1), "y": round(y, 1), "width": round(width, 1), "height": round(height, 1)}
    return tag("rect", **box, rx=2, class_=style)


def _svg(parts: list[Markup], height: int, label: str) -> Markup:
    return tag("svg", parts, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=label)


def _short(name: str, length: int = 24) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
