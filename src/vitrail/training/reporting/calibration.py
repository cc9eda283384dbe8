"""`calibration.png`: how often answers of each probability are right."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vitrail.pages.document import colours
from vitrail.pages.plots import new_figure
from vitrail.scoring.scores import Scores


def calibration(scores: Scores) -> Figure | None:
    """None for several labels to a picture."""
    bins = [one for one in scores.reliability if one.pictures]
    if not bins:
        return None
    figure = new_figure(6.2, 6.2)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    one, two, soft, four = (colours()[name] for name in ("one", "two", "soft", "four"))
    middles = [(part.lower + part.upper) / 2 for part in bins]
    width = 0.92 * (bins[0].upper - bins[0].lower)
    upper.bar(middles, [part.accuracy for part in bins], width, color=one, label="right answers")
    upper.hlines(
        [part.confidence for part in bins],
        [middle - width / 2 for middle in middles],
        [middle + width / 2 for middle in middles],
        color=two,
        linewidth=3,
        label="mean probability",
        zorder=3,
    )
    upper.plot([0, 1], [0, 1], color=soft, linewidth=1, linestyle=(0, (4, 3)), label="as sure as right", zorder=1)
    upper.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="share of right answers")
    upper.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    error = "" if scores.ece is None or scores.ece != scores.ece else f": ECE {scores.ece:.1%}"
    upper.set_title(f"Calibration{error}")
    upper.legend(loc="upper left")
    lower.bar(middles, [part.pictures / scores.pictures for part in bins], width, color=four)
    lower.set(xlabel="probability that the model gives its answer", ylabel="pictures")
    for axis in (lower.xaxis, lower.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure
