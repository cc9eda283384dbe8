"""What probes found: for a reader at the terminal, for a program, and as a folder with a plot."""

from __future__ import annotations

import csv
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitrail.data.batch import Bad
from vitrail.data.notes import counted, quoted, write_bad
from vitrail.pictures.sources import printable
from vitrail.scoring.probing.methods import TITLES
from vitrail.whole import refuse_to_replace, written_whole

JSON, CSV, PLOT, BAD = "probe.json", "probe.csv", "probe.png", "bad_images.csv"


@dataclass(frozen=True)
class Figure:
    """One method with one number of shots."""

    method: str
    shots: int | Literal["all"]
    accuracies: tuple[float, ...]  # one for each seed, or one alone where no seed plays a part
    setting: str  # what was chosen: λ, k, decay, rate
    chosen: tuple[float, ...]
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; of one, none."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def text(self) -> str:
        """In percent."""
        return f"{self.mean:.1%}".rstrip("%") + ("" if self.spread is None else f" ± {100 * self.spread:.1f}")

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "shots": self.shots,
            "accuracy": self.mean,
            "spread": self.spread,
            "accuracies": list(self.accuracies),
            "setting": self.setting,
            "chosen": list(self.chosen),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class ProbeReport:
    """The figures, and what they are of."""

    model: str
    data: str
    split: str
    features: str
    width: int
    classes: int
    learnt: int  # pictures
    judged: int
    held: int  # of those learnt from: chose settings
    seeds: int
    figures: tuple[Figure, ...]
    preprocessing: str = ""
    precision: str = "fp32"
    skipped: tuple[Bad, ...] = field(default=(), repr=False)  # pictures that could not be read
    unlabelled: int = 0
    notes: tuple[str, ...] = ()
    feature_seconds: float = 0.0
    kept: bool = False  # features were computed earlier

    def figure(self, method: str, shots: int | Literal["all"] = "all") -> Figure:
        """The figure of a method with so many shots."""
        for one in self.figures:
            if (one.method, one.shots) == (method, shots):
                return one
        raise KeyError(f"{method} with {shots} shots was not probed")

    def to_json(self) -> dict[str, Any]:
        """One object."""
        return {
            "model": self.model,
            "data": printable(self.data),
            "split": self.split,
            "features": self.features,
            "width": self.width,
            "classes": self.classes,
            "learnt": self.learnt,
            "judged": self.judged,
            "held_out": self.held,
            "seeds": self.seeds,
            "preprocessing": self.preprocessing,
            "precision": self.precision,
            "skipped": [{"name": printable(bad.name), "reason": bad.reason} for bad in self.skipped],
            "unlabelled": self.unlabelled,
            "notes": list(self.notes),
            "feature_seconds": round(self.feature_seconds, 3),
            "features_kept": self.kept,
            "figures": [one.to_json() for one in self.figures],
        }

    def text(self) -> str:
        """A page for the terminal."""
        return "\n".join([*self._head(), "", *aligned(self._table()), *self._chosen()])

    def write(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """`probe.json`, `probe.csv`, `probe.png`, in a folder that is there whole or not at all."""
        from vitrail.scoring.probing.plot import draw

        refuse(folder, overwrite)
        with written_whole(Path(folder), overwrite=overwrite) as new:
            new.mkdir()
            (new / JSON).write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            write_csv(new / CSV, ["method", "shots", "seed", "accuracy", "setting", "value"], self.rows())
            draw(self, new / PLOT)
            if self.skipped:
                write_bad(dict(self.skipped), new / BAD)

    def rows(self) -> list[list[Any]]:
        """One for each fit."""
        return [
            [one.method, one.shots, seed if len(one.accuracies) > 1 else "", accuracy, one.setting, value]
            for one in self.figures
            for seed, (accuracy, value) in enumerate(zip(one.accuracies, one.chosen, strict=True))
        ]

    def _head(self) -> list[str]:
        what = f"{counted(self.learnt, 'picture')} to learn from, {self.judged:,} ({self.split}) to be judged on"
        origin = "from the cache" if self.kept else f"in {self.feature_seconds:.1f} s"
        lines = [
            f"{self.model} on {printable(self.data)}: {self.classes:,} classes, {what}",
            f"features: {self.features}, width {self.width:,}, {self.precision}, {origin}; {self.preprocessing}",
        ]
        if self.skipped:
            lines.append(f"unreadable, left out: {len(self.skipped):,}: {quoted([one.name for one in self.skipped])}")
        if self.unlabelled:
            lines.append(f"without a label, left out: {self.unlabelled:,}")
        return lines + [f"note: {note}" for note in self.notes]

    def _table(self) -> list[list[str]]:
        """Accuracy in percent: methods down, shots across."""
        shots = list(dict.fromkeys(one.shots for one in self.figures))
        methods = dict.fromkeys(one.method for one in self.figures)
        rows = [[TITLES[name], *(self.figure(name, number).text() for number in shots)] for name in methods]
        return [["shots", *map(str, shots)], *rows]

    def _chosen(self) -> list[str]:
        last = {one.method: one for one in self.figures}.values()
        words = [f"{one.setting} = {', '.join(f'{value:g}' for value in sorted(set(one.chosen)))}" for one in last]
        if not words:
            return []
        when = "all pictures" if next(iter(last)).shots == "all" else f"{next(iter(last)).shots} shots"
        how = f" (chosen on {self.held:,} pictures held out from learning)" if self.held else ""
        spread = f"± over {self.seeds} seeds; " if self.seeds > 1 else ""
        return ["", f"{spread}with {when}: {'; '.join(words)}{how}"]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(columns)
        lines.writerows(rows)


def refuse(folder: str | os.PathLike[str], overwrite: bool) -> None:
    refuse_to_replace(folder, {JSON, CSV, PLOT, BAD}, "report", overwrite=overwrite)
