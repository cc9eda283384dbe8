"""What a run leaves to look at: plots, a table of the classes, and one page with all of it."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.pages.markup import Markup
from vitrail.pages.plots import as_svg, drawing, save_png
from vitrail.scoring.scores import Scores
from vitrail.training.log import Row
from vitrail.training.reporting.calibration import calibration
from vitrail.training.reporting.confusion import confusion
from vitrail.training.reporting.curves import History, curves
from vitrail.training.reporting.page import Story, make_page
from vitrail.training.reporting.worst import ShownMistake, worst
from vitrail.whole import written_whole

__all__ = ["ShownMistake", "write_reports"]


def write_reports(
    folder: Path,
    log: Sequence[Row],
    scores: Scores | None,
    classes: Sequence[str],
    recipe_toml: str,
    facts: Mapping[str, Any],
    mistakes: Sequence[ShownMistake] = (),
) -> list[Path]:
    """Writes what there is to show of a run into its folder, over what was there, and gives the files.

    `scores` are those of the best model; None for a run without validation. Of `facts`, `notes` (lines that the owner
    should know) and `bad` (unreadable pictures: name to reason) have places of their own; the others become a table,
    and those that are tables themselves a panel each. `augmented.png`, if it is there, becomes part of the page.
    """
    history = History.of(log)
    written, drawings = _write_plots(folder, history, scores)
    if scores is not None:
        written.append(_write_classes(folder / "per_class.csv", scores))
    if mistakes:
        with written_whole(folder / "worst.png", overwrite=True) as path:
            worst(mistakes).save(path, "PNG")
        written.append(folder / "worst.png")
    page = make_page(Story(folder, history, scores, classes, recipe_toml, facts, mistakes, drawings))
    with written_whole(folder / "report.html", overwrite=True) as path:
        path.write_text(page, encoding="utf-8")
    return [*written, folder / "report.html"]


def _write_plots(folder: Path, history: History, scores: Scores | None) -> tuple[list[Path], dict[str, Markup]]:
    written, drawings = [], {}
    with drawing():
        figures = {"curves": curves(history)}
        if scores is not None:
            figures |= {"confusion": confusion(scores), "calibration": calibration(scores)}
        for name, figure in figures.items():
            if figure is not None:
                save_png(figure, folder / f"{name}.png")
                written.append(folder / f"{name}.png")
                drawings[name] = as_svg(figure, name)
    return written, drawings


def _write_classes(path: Path, scores: Scores) -> Path:
    columns = ["support", "answers", "precision", "recall", "f1"]
    columns += ["average_precision"] if scores.multi_label else []
    rows = ([one.name, *(_number(getattr(one, column)) for column in columns)] for one in scores.per_class)
    with (
        written_whole(path, overwrite=True) as new,
        open(new, "w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        csv.writer(file).writerows([["class", *columns], *rows])
    return path


def _number(value: float) -> float | str:
    """What cannot be said is an empty cell."""
    return "" if math.isnan(value) else value
