"""`stress.png`: nothing lies over anything else."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from vitrail.pages.plots import drawing
from vitrail.scoring.stress.baseline import ALEXNET, Baseline
from vitrail.scoring.stress.corruptions import CORRUPTIONS, SEVERITIES
from vitrail.scoring.stress.plan import FACTORS, SHARES
from vitrail.scoring.stress.plot import page_of
from vitrail.scoring.stress.report import Curve, Point, Stressed, StressReport, short
from vitrail.scoring.stress.subject import Outcome


def report(models: int, tests: tuple[str, ...]) -> StressReport:
    """Models that know everything whatever is done to the pictures: their points are at the top of every panel."""
    right = Outcome(100, 100, 0.0)
    levels = {("corruptions", name): SEVERITIES for name in CORRUPTIONS}
    levels |= {("occlusion", "blanked"): SHARES, ("occlusion", "removed"): SHARES, ("scale", ""): FACTORS}
    curves = tuple(
        Curve(test, series, tuple(Point(level, (right,)) for level in some))
        for (test, series), some in levels.items()
        if test in tests
    )
    names = [f"a model with a name {number}" for number in range(models)]
    stressed = tuple(Stressed(name, right, curves, "", (224, 224), (14, 14)) for name in names)
    return StressReport(stressed, "data", "all", 100, 100, 1, tests, (14, 14), "", Baseline("AlexNet", ALEXNET))


@pytest.fixture(scope="module", params=[(1, 1), (2, 2), (7, 1), (7, 2), (7, 3)], ids=str)
def page(request):
    """Drawn, of so many models and tests."""
    models, tests = request.param
    with drawing():
        page = page_of(report(models, ("corruptions", "occlusion", "scale")[:tests]))
        page.set_canvas(FigureCanvasAgg(page))
        page.canvas.draw()
        yield page


def test_the_legend_of_the_corruptions_lies_between_title_and_axes(page: Figure) -> None:
    axes = page.axes[-1]
    legend = axes.get_legend().get_window_extent()
    title = next(text for text in axes.findobj(Text) if text.get_text().startswith("Each corruption"))
    assert axes.get_window_extent().y1 <= legend.y0
    assert legend.y1 <= title.get_window_extent().y0
    assert legend.x1 <= page.bbox.x1
    assert title.get_window_extent().x1 <= page.bbox.x1


def test_the_names_of_models_lie_under_the_head_and_above_all_panels(page: Figure) -> None:
    if page.legends:
        box = page.legends[0].get_window_extent()
        assert box.x1 <= page.bbox.x1
        assert box.y0 >= max(axes.get_tightbbox().y1 for axes in page.axes)


def test_accuracy_ends_at_a_hundred_percent(page: Figure) -> None:
    assert all(axes.get_ylim()[1] <= 101 for axes in page.axes)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("runs/vit/last", "vit/last"), ("runs/vit/best/", "vit/best"), ("a/deit.pt", "deit.pt"), ("hf:me/it", "hf:me/it")],
)
def test_the_models_of_two_runs_have_different_names(name: str, wanted: str) -> None:
    assert short(name) == wanted
