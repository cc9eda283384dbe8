"""study.png: each mean at its place, its spread, and its seeds beside it."""

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.colors
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text

from tests.studies.making import write_study
from vitrail.studies import plot
from vitrail.studies.plan import Row, read_plan
from vitrail.studies.results import Figures, Outcome, Result, Tried, deviation

TWO = """
recipe = "base.toml"
vary.ema = [0.1, 0.9]
[rows.one]
[rows.two]
[plot]
x = "ema"
"""


def figures(row: Row, scores: Sequence[float], **more: Any) -> Figures:
    runs = tuple(Outcome(seed, f"runs/{seed}", score, score, 4, 1.0) for seed, score in enumerate(scores))
    counts: dict[str, Any] = {"seconds": 1.0, "parameters": 10, "training_flops": 1e9, "pictures": 16.0, "val": None}
    same: dict[str, Any] = {"chosen": None, "runs": runs, **counts, **more}
    mean, spread = statistics.fmean(scores), deviation(scores)
    return Figures(row.name, row.series, row.settings, score=mean, spread=spread, **same)


def drawn(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str, scores: Sequence[Sequence[float]]) -> Axes:
    """What is drawn of rows with these scores, as it is when it is laid out."""
    plan = read_plan(write_study(folder, text))
    tried = [
        tuple(Tried(choice.value, 0.5, 0.1, (0.4, 0.6)) for choice in row.choices if plan.choose) for row in plan.rows
    ]
    chosen = [row.choices[-1].value for row in plan.rows]
    rows = [
        figures(row, own, tried=some, chosen=one)
        for row, own, some, one in zip(plan.rows, scores, tried, chosen, strict=True)
    ]
    kept: list[Axes] = []

    def keep(figure: Any, path: Path) -> None:
        figure.draw_without_rendering()
        kept.append(figure.axes[0])

    monkeypatch.setattr(plot, "save_png", keep)
    plot.write_plot(Result(plan, folder, "data", "accuracy", "test", tuple(rows), {}, {}), folder / "study.png")
    return kept[0]


def bars(axes: Axes) -> list[ErrorbarContainer]:
    return [one for one in axes.containers if isinstance(one, ErrorbarContainer)]


def dots(axes: Axes) -> list[Any]:
    """Those that are not filled, which are of single seeds."""
    paper = matplotlib.colors.to_rgba(plot.colours()["card"])
    return [
        line
        for line in axes.lines
        if matplotlib.colors.to_rgba(line.get_markerfacecolor()) == paper and len(line.get_xdata())
    ]


def on_paper(axes: Axes, line: Any) -> np.ndarray[Any, Any]:
    """Where its points are, in points (of 1/72 inch)."""
    figure = axes.get_figure()
    assert figure is not None
    return line.get_transform().transform(line.get_xydata()) * 72 / figure.dpi


def points_of(axes: Axes) -> np.ndarray[Any, Any]:
    """Of markers, and close to each other on all lines and bars, in pixels."""
    markers = [line.get_transform().transform(line.get_xydata()) for line in axes.lines]
    strokes = [points for points, line in zip(markers, axes.lines, strict=True) if line.get_linestyle() != "None"]
    bars = [bar for bar in axes.collections if isinstance(bar, LineCollection)]
    strokes += [bar.get_transform().transform(path.vertices) for bar in bars for path in bar.get_paths()]
    between = [np.linspace(*ends, 100) for one in strokes for ends in itertools.pairwise(one)]
    return np.concatenate([*(one for one in markers if len(one)), *between])


@pytest.mark.parametrize("log", ["", "log = true"])
def test_series_that_share_places_stand_aside_by_as_much_everywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: str
) -> None:
    axes = drawn(monkeypatch, tmp_path, TWO + log, [(0.5, 0.6), (0.6, 0.8), (0.5, 0.6), (0.6, 0.8)])
    one, two = (bar.lines[0] for bar in bars(axes))
    for line in (one, two):
        assert line.get_xydata() == pytest.approx(np.array([(0.1, 0.55), (0.9, 0.7)]))
    apart = on_paper(axes, two) - on_paper(axes, one)
    assert apart == pytest.approx(np.array([(2.4, 0.0), (2.4, 0.0)]))
    spread = bars(axes)[0].lines[2][0].get_segments()
    assert np.array(spread)[:, :, 1] == pytest.approx(
        np.array([(0.55 - 0.05 * 2**0.5, 0.55 + 0.05 * 2**0.5), (0.7 - 0.1 * 2**0.5, 0.7 + 0.1 * 2**0.5)])
    )


def test_seeds_are_dots_beside_their_mean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    axes = drawn(monkeypatch, tmp_path, TWO, [(0.5, 0.6), (0.6, 0.8), (0.5, 0.6, 0.7), (0.9,)])
    means = [place for bar in bars(axes) for place in on_paper(axes, bar.lines[0])]
    seeds = dots(axes)
    assert [list(line.get_ydata()) for line in seeds] == [[0.5, 0.6], [0.6, 0.8], [0.5, 0.6, 0.7]]  # of one: no dot
    for line, mean in zip(seeds, means[:3], strict=True):
        assert on_paper(axes, line)[:, 0] - mean[0] == pytest.approx(np.full(len(line.get_ydata()), 8.0))
    assert "each of up to 3 seeds" in axes.get_ylabel()


def test_one_seed_has_no_spread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    axes = drawn(monkeypatch, tmp_path, TWO, [(0.5, 0.6), (0.7,), (0.5,), (0.6,)])
    mixed, single = bars(axes)
    heights = [np.ptp(place[:, 1]) for place in mixed.lines[2][0].get_segments() if len(place)]
    assert [height for height in heights if np.isfinite(height)] == pytest.approx([0.1 * 2**0.5])
    assert not single.has_yerr
    axes = drawn(monkeypatch, tmp_path, 'recipe = "base.toml"\n[rows.a]\n[rows.b]', [(0.5,), (0.4, 0.6)])
    assert [bar.has_xerr for bar in bars(axes)] == [False, True]
    assert [list(line.get_xdata()) for line in dots(axes)] == [[0.4, 0.6]]


def test_one_seed_is_no_mean_of_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    axes = drawn(monkeypatch, tmp_path, TWO, [(0.5,)] * 4)
    assert axes.get_ylabel() == "test accuracy"
    assert not dots(axes)


def test_what_was_chosen_has_a_ring_around_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = TWO.replace("vary", 'choose = "ema"\nvary', 1)
    axes = drawn(monkeypatch, tmp_path, text, [(0.5, 0.6), (0.6, 0.8)])
    rings = [line for line in axes.lines if line.get_markersize() == 14]
    for bar, ring in zip(bars(axes), rings, strict=True):
        assert on_paper(axes, ring)[0] == pytest.approx(on_paper(axes, bar.lines[0])[-1])
    assert [list(line.get_ydata()) for line in dots(axes)] == [[0.4, 0.6]] * 4
    assert axes.get_ylabel().startswith("validation accuracy")


def test_a_legend_of_many_lines_stands_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for count in (2, 6):
        rows = "".join(f"[rows.row{number}]\n" for number in range(count))
        text = f'recipe = "base.toml"\nvary.ema = [0.1, 0.9]\n{rows}[plot]\nx = "ema"'
        axes = drawn(monkeypatch, tmp_path, text, [(0.5, 0.6)] * 2 * count)
        legend = axes.get_legend()
        assert legend is not None
        box, inside = legend.get_window_extent(), axes.get_window_extent()
        assert (box.x0 > inside.x1) == (count > 4)
        assert box.x1 <= axes.get_figure().bbox.x1


CHOSEN = TWO.replace("vary", 'choose = "ema"\nvary', 1)


def test_no_two_rows_have_the_same_label(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Names that begin alike are whole, and their lines end where a setting does."""
    text = """
        recipe = "base.toml"
        [vary]
        optimiser.name = ["adamw", "lion"]
        architecture.pool = ["token", "mean"]
        augmentation.policy = ["autoaugment-imagenet", "autoaugment-cifar10"]
        """
    axes = drawn(monkeypatch, tmp_path, text, [(0.5, 0.6)] * 8)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0] == "name adamw, pool token,\npolicy autoaugment-imagenet"
    assert labels[-1] == "name lion, pool mean,\npolicy autoaugment-cifar10"
    assert len(set(labels)) == 8
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert all(upper.y0 > lower.y1 for upper, lower in itertools.pairwise(boxes))
    assert min(box.x0 for box in boxes) >= 0


@pytest.mark.parametrize("x", ["ema", "row"])
@pytest.mark.parametrize("word", ["accuracy ", "accuracy", "精度"])
def test_a_long_title_ends_before_the_picture_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, x: str, word: str
) -> None:
    text = f'title = "{word * 30}"' + TWO.replace('x = "ema"', f'x = "{x}"\nlabel = "{word * 30}"')
    axes = drawn(monkeypatch, tmp_path, text, [(0.5, 0.6)] * 4)
    figure = axes.get_figure()
    assert figure is not None
    title = next(child for child in axes.get_children() if isinstance(child, Text) and child.get_text()[:2] == word[:2])
    assert "\n" in title.get_text()
    assert title.get_text().split() == (word * 30).split() or not word.endswith(" ")
    for shown in (title, axes.xaxis.label):
        box = shown.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert 0 <= box.y0 < box.y1 <= figure.bbox.y1


@pytest.mark.parametrize(("text", "count"), [(TWO, 2), (CHOSEN, 2), (CHOSEN, 3), (CHOSEN, 6)])
def test_a_legend_lies_on_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, count: int) -> None:
    """Of lines that fill the axes, or whose names are long, it stands outside and inside the picture."""
    more = "".join(f"[rows.more{number}]\n" for number in range(count - 2))
    text = text.replace("[plot]", more + "[plot]").replace("[0.1, 0.9]", "[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]")
    axes = drawn(monkeypatch, tmp_path, text, [(0.1, 0.9)] * (count if "choose" in text else 8 * count))
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    legend = axes.get_legend() or figure.legends[0]
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert 0 <= box.y0 < box.y1 <= axes.xaxis.label.get_window_extent().y0 or box.y0 >= axes.get_window_extent().y0
    assert not box.count_contains(points_of(axes))
    assert axes.get_window_extent().height > 200
    assert axes.get_window_extent().width > 400


def test_a_legend_stays_between_lines_that_leave_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    axes = drawn(monkeypatch, tmp_path, TWO, [(0.1, 0.101), (0.9, 0.901), (0.11, 0.111), (0.91, 0.911)])
    legend = axes.get_legend()
    assert legend is not None
    assert axes.get_window_extent().contains(*legend.get_window_extent().min)
    assert not legend.get_window_extent().count_contains(points_of(axes))
