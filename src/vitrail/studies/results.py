"""What came out of a study: a row of figures for each row of its plan, as a table, a CSV and a JSON file."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.model.walk import parameters
from vitrail.model.zoo import Config
from vitrail.studies.plan import Plan, short, shown
from vitrail.training.live import duration
from vitrail.training.recipe import Recipe
from vitrail.training.stages import work_until
from vitrail.whole import written_whole


@dataclass(frozen=True)
class Outcome:
    """One run that is complete."""

    seed: int
    folder: str
    val: float | None  # the best score on the validation part
    test: float | None  # the score of the same model on the test part; None where that is not asked
    steps: int
    seconds: float
    threads: int | None = None  # of its process, on a CPU; sums that are rounded otherwise differ in their last bits

    @property
    def score(self) -> float | None:
        """By which rows are compared."""
        return self.val if self.test is None else self.test


@dataclass(frozen=True)
class Tried:
    """A value of the setting that validation chooses, and what it came to."""

    value: Any
    val: float
    spread: float | None
    seeds: tuple[float, ...] = ()  # what each came to


@dataclass(frozen=True)
class Figures:
    """A row of the table. `score` is a mean over seeds, `spread` their standard deviation (of one seed: none)."""

    row: str
    series: str
    settings: Mapping[str, Any]
    chosen: Any  # the value of the setting that validation chose
    score: float
    spread: float | None
    val: float | None
    seconds: float  # of training, mean
    parameters: int
    training_flops: float  # mean
    pictures: float  # that were trained on, counted each time; mean
    runs: tuple[Outcome, ...]
    tried: tuple[Tried, ...] = ()

    @property
    def n(self) -> int:
        return len(self.runs)


@dataclass(frozen=True)
class Result:
    """`.rows`, and `.failed`: what became of no run, by its folder."""

    plan: Plan
    folder: Path
    data: str
    measure: str  # accuracy, or map where pictures have several labels
    part: str  # of the data, that the scores are of: test, or val where there is no test part
    rows: tuple[Figures, ...]
    failed: Mapping[str, str]
    about: Mapping[str, Any]  # device and versions

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.plan.title,
            "data": self.data,
            "measure": f"{self.measure} on {self.part}",
            "seeds": list(self.plan.seeds),
            "choose": self.plan.choose,
            "rows": [{**asdict(row), "n": row.n} for row in self.rows],
            "failed": dict(self.failed),
            **self.about,
        }

    def write(self) -> None:
        """`study.json` and `study.csv`."""
        with written_whole(self.folder / "study.json", overwrite=True) as path:
            path.write_text(json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        varied = list(dict.fromkeys(key for row in self.rows for key in row.settings))
        chosen = [self.plan.choose] if self.plan.choose else []
        columns = (*varied, *chosen, self.measure, "spread", "n", f"val_{self.measure}", "seconds")
        with (
            written_whole(self.folder / "study.csv", overwrite=True) as path,
            path.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.writer(file)
            writer.writerow(("row", "series", *columns, "parameters", "training_flops", "pictures"))
            for row in self.rows:
                values = [*(row.settings.get(key, "") for key in varied), *([row.chosen] if chosen else [])]
                figures = (_digits(row.score), _digits(row.spread), row.n, _digits(row.val))
                costs = (_digits(row.seconds), row.parameters, row.training_flops, row.pictures)
                writer.writerow((row.row, row.series, *values, *figures, *costs))

    def table(self) -> list[list[str]]:
        """The head and the rows, as text."""
        part = {"test": "test", "val": "validation"}[self.part]
        head = [
            "row",
            *([short(self.plan.choose)] if self.plan.choose else []),
            f"{part} {_word(self.measure)}",
            "seeds",
        ]
        lines = [[*head, "parameters", "training FLOPs", "seconds"]]
        for row in self.rows:
            chosen = [shown(row.chosen)] if self.plan.choose else []
            cost = [f"{row.parameters / 1e6:.2f}M", f"{row.training_flops:.2e}", f"{row.seconds:.1f}"]
            lines.append([row.row, *chosen, percent(row.score, row.spread), str(row.n), *cost])
        return lines


def figures(row: Any, tried: Sequence[Tried], choice: Any, config: Config, runs: Sequence[Outcome]) -> Figures:
    """The means over the runs of what was chosen."""
    scores = [run.score for run in runs if run.score is not None]
    vals = [run.val for run in runs if run.val is not None]
    costs = [training_flops(choice.recipe, config, run.steps) for run in runs]
    return Figures(
        row=row.name,
        series=row.series,
        settings=row.settings,
        chosen=choice.value,
        score=statistics.fmean(scores),
        spread=deviation(scores),
        val=statistics.fmean(vals) if vals else None,
        seconds=statistics.fmean(run.seconds for run in runs),
        parameters=parameters(config),
        training_flops=statistics.fmean(costs),
        pictures=statistics.fmean(run.steps * choice.recipe.batch_size for run in runs),
        runs=tuple(runs),
        tried=tuple(tried),
    )


def deviation(scores: Sequence[float]) -> float | None:
    return statistics.stdev(scores) if len(scores) > 1 else None


def training_flops(recipe: Recipe, config: Config, steps: int) -> float:
    """Forward and twice as much backward, of every picture; in stages of smaller pictures, theirs; of patches, those
    that are not left out."""
    return 3.0 * work_until(recipe, config, steps)(steps) * recipe.batch_size


def percent(score: float, spread: float | None) -> str:
    return f"{100 * score:.2f}%" if spread is None else f"{100 * score:.2f} ± {100 * spread:.2f}%"


def _digits(figure: float | None) -> str:
    """Six of them: what a mean has behind these is noise of the sum."""
    return "" if figure is None else f"{figure:.6g}"


def _word(measure: str) -> str:
    return {"map": "mAP"}.get(measure, measure)


def summary(outcome: Outcome, measure: str) -> str:
    """A line for those who wait."""
    words = [
        f"{name} {score:.2%}" for name, score in (("val", outcome.val), ("test", outcome.test)) if score is not None
    ]
    return ", ".join([*words, duration(outcome.seconds)]).replace("val ", f"val {_word(measure)} ", 1)
