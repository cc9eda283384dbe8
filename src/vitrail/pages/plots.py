"""How plots look, and how one figure becomes a PNG file and a drawing inside the page, in the page's colours."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitrail.pages.document import colours
from vitrail.pages.markup import Markup
from vitrail.pictures.sources import printable
from vitrail.whole import written_whole

# names of classes are in any script; what is installed of these is asked, in this order
_FONTS = (
    *("DejaVu Sans", "Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "Droid Sans Fallback"),
    *("WenQuanYi Zen Hei", "Microsoft YaHei", "PingFang SC", "Hiragino Sans", "Malgun Gothic", "Arial Unicode MS"),
)
_DPI = 130


@contextmanager
def drawing() -> Iterator[None]:
    """The style, for as long as figures are made and saved; what the caller of a training has set stays as it is."""
    ink, soft, line = (colours()[name] for name in ("ink", "soft", "line"))
    style = {
        "font.family": list(_installed_fonts()),
        "font.size": 10,
        "text.color": ink,
        "text.parse_math": False,  # a class may be called $5 or a^b
        "axes.edgecolor": line,
        "axes.labelcolor": soft,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlecolor": ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.formatter.useoffset": False,
        "grid.color": line,
        "grid.linewidth": 0.8,
        "xtick.color": line,
        "ytick.color": line,
        "xtick.labelcolor": soft,
        "ytick.labelcolor": soft,
        "legend.frameon": False,
        "legend.fontsize": 9.5,
        "svg.fonttype": "none",
    }
    with matplotlib.style.context(["default", style]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


@cache
def _installed_fonts() -> tuple[str, ...]:
    there = set(font_manager.get_font_names())
    return tuple(name for name in _FONTS if name in there)


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1, wspace=0.03, hspace=0.03)
    return figure


def save_png(figure: Figure, path: Path) -> None:
    with written_whole(path, overwrite=True) as new:
        figure.savefig(new, format="png", dpi=_DPI, facecolor=colours()["card"])
    figure.set_layout_engine("none")  # it is laid out: drawn again, everything stays at its place


def as_svg(figure: Figure, label: str) -> Markup:
    """The figure as a part of a page: without what belongs to a file of its own, and with the page's variables for
    colours, so that it is dark where the page is."""
    page = io.StringIO()
    about: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": label}):  # names inside the drawing, which must differ between drawings
        figure.savefig(page, format="svg", transparent=True, metadata=about)
    text = page.getvalue()
    text = text[text.index("<svg") :].replace("xlink:href", "href")
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    box = re.search(r'viewBox="[\d. -]+"', text)
    assert box is not None
    text = f'<svg {box[0]} role="img" aria-label="{html.escape(label)}">' + text[text.index(">") + 1 :]
    used = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    text = re.sub(r"font: (?:(\d+) )?([\d.]+px)[^;\"]*", _font, text)
    for name, value in colours().items():
        text = re.sub(rf"(: ){value}\b", rf"\1var(--{name})", text)
    return Markup(re.sub(r"\n\s*", "\n", text))


def _font(found: re.Match[str]) -> str:
    """The page's font, in the size of the drawing."""
    weight = f"font-weight: {found[1]}; " if found[1] else ""
    return f"{weight}font-size: {found[2]}"


def label_of(name: str, length: int = 24) -> str:
    """The name of a class as it stands beside an axis."""
    text = printable(name)
    return text if len(text) <= length else text[: length - 1] + "…"


def bare(axes: Axes) -> None:
    """Without lines around."""
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
