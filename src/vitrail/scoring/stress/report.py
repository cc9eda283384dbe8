"""What a stress found: for a reader at the terminal, for a program, and as a folder with a plot."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.data.batch import Bad
from vitrail.data.notes import counted, last_part, quoted
from vitrail.pictures.sources import printable
from vitrail.scoring.probing.report import aligned, write_csv
from vitrail.scoring.stress.baseline import Baseline
from vitrail.scoring.stress.corruptions import CORRUPTIONS
from vitrail.scoring.stress.plan import TESTS
from vitrail.scoring.stress.subject import Outcome
from vitrail.whole import written_whole

JSON, CSV, PLOT, TRIALS = "stress.json", "stress.csv", "stress.png", "trials.jsonl"


@dataclass(frozen=True)
class Point:
    """One strength of a test; an outcome for each seed, or one alone where chance plays no part."""

    level: float
    outcomes: tuple[Outcome, ...]

    @property
    def accuracies(self) -> tuple[float, ...]:
        return tuple(one.accuracy for one in self.outcomes)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; of one, none."""
        return statistics.stdev(self.accuracies) if len(self.outcomes) > 1 else None

    @property
    def loss(self) -> float:
        return statistics.fmean(one.loss for one in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        plain = {"level": self.level, "accuracy": self.mean, "spread": self.spread, "accuracies": list(self.accuracies)}
        return {**plain, "loss": self.loss if math.isfinite(self.loss) else None}


@dataclass(frozen=True)
class Curve:
    """Accuracy of a model as a test grows stronger; the pictures as they are stand in `Stressed.clean`."""

    test: str
    series: str  # "" where a test has one
    points: tuple[Point, ...]

    def at(self, level: float) -> Point:
        """The point of this strength."""
        for point in self.points:
            if math.isclose(point.level, level, abs_tol=1e-9):
                return point
        raise KeyError(f"{self.test} has no level {level}: it has {', '.join(f'{p.level:g}' for p in self.points)}")

    @property
    def mean(self) -> float:
        """Over the levels."""
        return statistics.fmean(point.mean for point in self.points)


@dataclass(frozen=True)
class Stressed:
    """One model."""

    name: str
    clean: Outcome
    curves: tuple[Curve, ...]
    preprocessing: str
    size: tuple[int, int]
    grid: tuple[int, int] | None  # of its own patches
    skipped: tuple[Bad, ...] = field(default=(), repr=False)

    def curve(self, test: str, series: str = "") -> Curve:
        for one in self.curves:
            if (one.test, one.series) == (test, series):
                return one
        raise KeyError(f"{self.name} has no curve {test} {series}".rstrip())

    @property
    def corruption_errors(self) -> dict[str, float]:
        """The error under each corruption, the mean over the severities; empty where they were not tried."""
        return {one.series: 1 - one.mean for one in self.curves if one.test == "corruptions"}


@dataclass(frozen=True)
class StressReport:
    """All models, and what they were judged on."""

    models: tuple[Stressed, ...]
    data: str
    split: str
    pictures: int  # that were chosen
    available: int  # of the split, with a label that all models know
    seeds: int
    tests: tuple[str, ...]
    grid: tuple[int, int]  # of the panes that were blanked
    attack: str  # in words
    baseline: Baseline | None = None
    notes: tuple[str, ...] = ()

    def model(self, name: str) -> Stressed:
        for one in self.models:
            if one.name == name:
                return one
        raise KeyError(f"there is no {name}: the models are {', '.join(one.name for one in self.models)}")

    def to_json(self) -> dict[str, Any]:
        """One object."""
        return {
            "data": printable(self.data),
            "split": self.split,
            "pictures": self.pictures,
            "available": self.available,
            "seeds": self.seeds,
            "tests": list(self.tests),
            "grid": list(self.grid),
            "attack": self.attack,
            "baseline": None if self.baseline is None else self.baseline.name,
            "notes": list(self.notes),
            "models": [self._of(one) for one in self.models],
        }

    def _of(self, one: Stressed) -> dict[str, Any]:
        errors = one.corruption_errors
        corruptions = None
        if errors:
            corruptions = {
                "mean_error": statistics.fmean(errors.values()),
                "mce": None if self.baseline is None else self.baseline.mce(errors),
                "ce": None if self.baseline is None else self.baseline.ce(errors),
            }
        return {
            "model": printable(one.name),
            "preprocessing": one.preprocessing,
            "size": list(one.size),
            "patches": None if one.grid is None else list(one.grid),
            "clean": {"accuracy": one.clean.accuracy, "loss": one.clean.loss, "pictures": one.clean.pictures},
            "corruptions": corruptions,
            "curves": [
                {"test": c.test, "series": c.series, "points": [point.to_json() for point in c.points]}
                for c in one.curves
            ],
            "skipped": [{"name": printable(bad.name), "reason": bad.reason} for bad in one.skipped],
        }

    def text(self) -> str:
        """A page for the terminal, accuracies in percent."""
        return "\n".join([*self._head(), *(line for test in self.tests for line in self._test(test))])

    def write(self, folder: str | os.PathLike[str]) -> None:
        """`stress.json`, `stress.csv` and `stress.png` into a folder, each whole or absent."""
        from vitrail.scoring.stress.plot import draw

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with written_whole(folder / CSV, overwrite=True) as new:
            write_csv(new, ["model", "test", "series", "level", "seed", "accuracy", "loss", "pictures"], self.rows())
        if any(one.curves for one in self.models):
            draw(self, folder / PLOT)
        with written_whole(folder / JSON, overwrite=True) as new:
            new.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def rows(self) -> list[list[Any]]:
        """One for each trial."""
        found: list[list[Any]] = []
        for one in self.models:
            name, clean = printable(one.name), one.clean
            found.append([name, "clean", "", "", "", clean.accuracy, clean.loss, clean.pictures])
            for curve in one.curves:
                for point in curve.points:
                    for seed, result in enumerate(point.outcomes):
                        level = [curve.test, curve.series, point.level, seed if len(point.outcomes) > 1 else ""]
                        found.append([name, *level, result.accuracy, result.loss, result.pictures])
        return found

    def _head(self) -> list[str]:
        of = f" of {self.available:,}" if self.pictures < self.available else ""
        lines = [
            f"{printable(self.data)} ({self.split}): {self.pictures:,}{of} pictures, {counted(self.seeds, 'seed')}"
        ]
        for one in self.models:
            lines.append(f"{printable(one.name)}: {one.clean.accuracy:.2%} as they are; {one.preprocessing}")
            if one.skipped:
                names = quoted([bad.name for bad in one.skipped])
                lines.append(f"unreadable, not scored: {len(one.skipped):,}: {names}")
        return lines + [f"note: {note}" for note in self.notes]

    def _test(self, test: str) -> list[str]:
        about = TESTS[test]
        more = {"patch": f" ({self.attack})", "occlusion": self._panes(), "salient": self._panes()}.get(test, "")
        head = ["", f"{about.title}{more}: accuracy, %"]
        if test == "corruptions":
            return head + aligned(self._corruption_table())
        levels = sorted({p.level for one in self.models for c in one.curves if c.test == test for p in c.points})
        table = [[about.axis, *(f"{about.factor * level:.4g}{about.unit}" for level in levels)]]
        for one in self.models:
            own = [curve for curve in one.curves if curve.test == test]
            table += [[label(one.name, curve.series, self), *_cells(curve, levels)] for curve in own]
        return head + (aligned(table) if levels else ["no pictures of this size can be tried"])

    def _panes(self) -> str:
        return f" (panes of a {self.grid[0]} × {self.grid[1]} grid)"

    def _corruption_table(self) -> list[list[str]]:
        """Corruptions down, models across: the mean over the severities, and beside the baseline the error."""
        there = [one for one in self.models if one.corruption_errors]
        head = ["mean over severities", *(cell for one in there for cell in self._names(one))]
        total = ["mean", *(cell for one in there for cell in self._error(one, None))]
        rows = [
            [name.replace("_", " "), *(cell for one in there for cell in self._error(one, name))]
            for name in CORRUPTIONS
        ]
        return [head, *rows, total]

    def _names(self, one: Stressed) -> Iterable[str]:
        yield short(one.name, 20)
        if self.baseline is not None:
            yield f"CE, % of {short(self.baseline.name, 12)}"

    def _error(self, one: Stressed, name: str | None) -> Iterable[str]:
        errors = one.corruption_errors
        yield f"{100 * (1 - (statistics.fmean(errors.values()) if name is None else errors[name])):.1f}"
        if self.baseline is not None:
            yield f"{100 * (self.baseline.mce(errors) if name is None else self.baseline.ce(errors)[name]):.1f}"


def _cells(curve: Curve, levels: list[float]) -> Iterable[str]:
    there = {point.level: point for point in curve.points}
    for level in levels:
        point = there.get(level)
        spread = "" if point is None or point.spread is None else f" ± {100 * point.spread:.1f}"
        yield "" if point is None else f"{100 * point.mean:.1f}{spread}"


def label(name: str, series: str, report: StressReport) -> str:
    """What a line is called: the model where there are several, and the series."""
    words = [short(name)] * (len(report.models) > 1) + [series] * bool(series)
    return ", ".join(words) or short(name)


def short(name: str, length: int = 34) -> str:
    """Cut off at a length."""
    text = last_part(name)
    return text if len(text) <= length else text[: length - 1] + "…"
