"""Figures of pictures of any shape: everything is inside, and large enough to be seen."""

from collections.abc import Iterator

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vitrail.figures import drawings, model_drawings
from vitrail.pages.plots import drawing

GRIDS = [(14, 14), (7, 28), (28, 7), (37, 37), (2, 40), (3, 4)]  # of patches of 8 pixels
RNG = np.random.default_rng(0)


def drawn(rows: int, columns: int, depth: int, heads: int) -> Iterator[tuple[str, Figure]]:
    picture = RNG.integers(0, 256, (8 * rows, 8 * columns, 3), dtype=np.uint8)
    one, layers = RNG.random((rows, columns)), RNG.random((depth, rows, columns))
    patch = (rows // 2, columns // 2)
    methods = ("attribution", "rollout", "attention_gradient", "grad_cam")
    yield "attention", drawings.draw_attention(picture, layers, one)
    yield "heads", drawings.draw_heads(RNG.random((depth, heads, rows, columns)))
    yield "explanations", drawings.draw_explanations(picture, dict.fromkeys(methods, one), "a flower's long name")
    yield "one explanation", drawings.draw_explanations(picture, {"grad_cam": one}, "ship")
    yield "tokens", drawings.draw_tokens(picture, RNG.random((rows, columns, 3)), one, patch, one)
    yield "similarity", drawings.draw_similarity(picture, one, patch)
    if rows * columns < 1000:
        places = RNG.random((rows, columns, rows, columns))
        yield "learned", model_drawings.draw_positions(places, "learned")
        yield "bias", model_drawings.draw_positions(places, "bias")


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize(("depth", "heads"), [(12, 3), (2, 3)])
@pytest.mark.filterwarnings("error")
def test_nothing_is_cut_off_or_too_small(grid: tuple[int, int], depth: int, heads: int) -> None:
    with drawing():
        for name, figure in drawn(*grid, depth, heads):
            figure.set_canvas(FigureCanvasAgg(figure))
            figure.canvas.draw()
            wide, high = figure.get_size_inches()
            box = figure.get_tightbbox()
            assert min(box.x0, box.y0, wide - box.x1, high - box.y1) > -0.02, (name, box)
            for axes in figure.axes:
                if axes.images:
                    box = axes.get_window_extent()
                    assert max(box.width, box.height) > 1.2 * figure.dpi, name
            assert max(wide, high) < 24, name
