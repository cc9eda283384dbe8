"""What an evaluation found: for a reader at the terminal, for a program, and as tables in a folder."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitrail.data.batch import Bad
from vitrail.data.notes import counted, quoted, write_bad
from vitrail.pictures.sources import printable
from vitrail.scoring.real_labels import RealScore
from vitrail.scoring.scores import ClassScores, Scores
from vitrail.whole import refuse_to_replace, written_whole

REPORT, PER_CLASS, CONFUSION = "report.json", "per_class.csv", "confusion.csv"
MISTAKES, BAD = "mistakes.csv", "bad_images.csv"

_FEW = 5  # classes at either end that are shown
_CONFUSED = 20  # pairs in the JSON; the table has all


@dataclass(frozen=True)
class Report:
    """The scores, and what they are of."""

    model: str
    data: str
    split: str
    scores: Scores
    mistaken: tuple[str, ...] = field(repr=False)  # names of the pictures of `scores.mistakes`
    skipped: tuple[Bad, ...] = field(default=(), repr=False)  # pictures that could not be read
    unlabelled: int = 0  # pictures without a label
    ignored: dict[str, int] = field(default_factory=dict)  # pictures of classes that the model does not know
    real: RealScore | None = None
    preprocessing: str = ""
    precision: str = "fp32"
    flip: bool = False

    @property
    def pictures(self) -> int:
        """That were scored."""
        return self.scores.pictures

    def to_json(self) -> dict[str, Any]:
        """One object, with null for what is not defined. The whole confusion matrix is in `confusion.csv`."""
        scores = self.scores
        plain = {
            "model": self.model,
            "data": printable(self.data),
            "split": self.split,
            "pictures": self.pictures,
            "skipped": [{"name": printable(bad.name), "reason": bad.reason} for bad in self.skipped],
            "unlabelled": self.unlabelled,
            "ignored": self.ignored,
            "unanswered": scores.unanswered,
            "preprocessing": self.preprocessing,
            "precision": self.precision,
            "flip": self.flip,
            "classes": len(scores.per_class),
            "multi_label": scores.multi_label,
            **{name: value for name, value in _numbers(scores) if value is not None},
            "real": None if self.real is None else asdict(self.real),
            "per_class": [asdict(one) for one in scores.per_class],
            "reliability": [one._asdict() for one in scores.reliability],
            "confused": [one._asdict() for one in scores.confused(_CONFUSED)],
            "mistakes": [{"name": name, **mistake} for name, mistake in self._mistakes()],
        }
        finite: dict[str, Any] = _finite(plain)
        return finite

    def text(self) -> str:
        """A page for the terminal."""
        return "\n".join([*self._head(), "", *self._figures(), "", *self._classes(), *self._confused()])

    def write(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """`report.json` and tables, in a folder that is there whole or not at all."""
        refuse(folder, overwrite)
        with written_whole(Path(folder), overwrite=overwrite) as new:
            new.mkdir()
            (new / REPORT).write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            columns = list(ClassScores.__dataclass_fields__)
            rows = ([getattr(one, column) for column in columns] for one in self.scores.per_class)
            _write(new / PER_CLASS, columns, rows)
            if not self.scores.multi_label:
                _write(new / CONFUSION, ["label", "answer", "pictures"], self._cells())
            said = (
                [name, "|".join(one["labels"]), one["answer"], one["probability"]] for name, one in self._mistakes()
            )
            _write(new / MISTAKES, ["name", "label", "answer", "probability"], said)
            if self.skipped:
                write_bad(dict(self.skipped), new / BAD)

    def _mistakes(self) -> Iterable[tuple[str, dict[str, Any]]]:
        for name, mistake in zip(self.mistaken, self.scores.mistakes, strict=True):
            yield printable(name), mistake._asdict()

    def _cells(self) -> Iterable[Sequence[Any]]:
        names = [one.name for one in self.scores.per_class]
        cells = [] if self.scores.cells is None else self.scores.cells.tolist()
        return ([names[label], names[answer], count] for label, answer, count in cells)

    def _head(self) -> list[str]:
        scores = self.scores
        there = sum(one.support > 0 for one in scores.per_class)
        of = f" of {len(scores.per_class):,}" if there < len(scores.per_class) else ""
        what = f"{printable(self.data)} ({self.split}): {counted(self.pictures, 'picture')}, {there:,}{of} classes"
        ways = [self.preprocessing, self.precision] + ["each with its mirror image"] * self.flip
        lines = [f"{self.model} on {what}", "; ".join(ways)]
        if self.skipped:
            lines.append(f"unreadable, not scored: {len(self.skipped):,}: {quoted([one.name for one in self.skipped])}")
        if self.unlabelled:
            lines.append(f"without a label, not scored: {self.unlabelled:,}")
        if self.ignored:
            count = counted(sum(self.ignored.values()), "picture")
            lines.append(f"of classes that the model does not know, left out: {count} of {quoted(self.ignored)}")
        if scores.unanswered:
            lines.append(f"the model's output is not a number for {counted(scores.unanswered, 'picture')}: wrong")
        return lines

    def _figures(self) -> list[str]:
        scores, rows = self.scores, []
        shares = {"top1": "top-1", "top5": "top-5", "mean_average_precision": "mAP", "micro_f1": "micro F1"}
        shares |= {"balanced_accuracy": "balanced accuracy", "macro_f1": "macro F1", "ece": "calibration error"}
        for name, value in _numbers(scores):
            if name == "loss" or (name == "brier" and value is not None):
                rows.append((name.replace("brier", "Brier score"), f"{value:.4f}"))
            elif name in shares and value is not None and not (name == "top5" and len(scores.per_class) <= 5):
                rows.append((shares[name], f"{value:.2%}"))
        if self.real is not None:
            rows.append(("ReaL top-1", f"{self.real.top1:.2%} of {counted(self.real.pictures, 'picture')}"))
        width = max(len(name) for name, _ in rows)
        return [f"{name.ljust(width)}  {value}" for name, value in rows]

    def _classes(self) -> list[str]:
        """All classes where they are few, else the worst and the best, by F1."""
        there = sorted((one for one in self.scores.per_class if one.support), key=lambda one: (one.f1, one.recall))
        width = max(5, *(len(printable(one.name)) for one in there))
        head = f"{'class'.ljust(width)}  {'pictures':>8}  {'precision':>9}  {'recall':>7}  {'F1':>7}"
        lines = []
        for one in there:
            figures = f"{one.support:8,}  {one.precision:9.2%}  {one.recall:7.2%}  {one.f1:7.2%}"
            lines.append(f"{printable(one.name).ljust(width)}  {figures}")
        if len(lines) > 2 * _FEW:
            lines = ["the worst:", *lines[:_FEW], "the best:", *lines[-_FEW:]]
        return [head, *lines]

    def _confused(self) -> list[str]:
        pairs = self.scores.confused(_FEW)
        if not pairs or pairs[0].pictures < 2:
            return []
        words = [f"{printable(one.label)} for {printable(one.answer)} ({one.pictures:,})" for one in pairs]
        return ["", f"most often mistaken: {', '.join(words)}"]


def refuse(folder: str | os.PathLike[str], overwrite: bool) -> None:
    refuse_to_replace(folder, {REPORT, PER_CLASS, CONFUSION, MISTAKES, BAD}, "report", overwrite=overwrite)


def _numbers(scores: Scores) -> list[tuple[str, float | None]]:
    names = ("loss", "top1", "top5", "mean_average_precision", "balanced_accuracy", "micro_f1", "macro_precision")
    return [(name, getattr(scores, name)) for name in (*names, "macro_recall", "macro_f1", "ece", "brier")]


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(columns)
        lines.writerows([printable(c) if isinstance(c, str) else _finite(c) for c in row] for row in rows)
