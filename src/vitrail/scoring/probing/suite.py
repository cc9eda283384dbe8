"""Several data sets, one row each: a suite file, and the way VTAB reports."""

from __future__ import annotations

import json
import os
import statistics
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch

from vitrail.classifier import Classifier, placed
from vitrail.data.notes import quoted
from vitrail.errors import VitrailError
from vitrail.pictures.sources import printable
from vitrail.scoring.probing.methods import TITLES
from vitrail.scoring.probing.probe import probe
from vitrail.scoring.probing.report import CSV, JSON, ProbeReport, aligned, refuse, write_csv
from vitrail.whole import written_whole

SETTINGS = ("method", "shots", "split", "examples")  # of a whole suite; a task may have its own


@dataclass(frozen=True)
class Task:
    """A data set of a suite, and what is special about it."""

    name: str
    data: str
    group: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # for `probe`
    label_column: str | None = None
    path_column: str | None = None


@dataclass(frozen=True)
class Suite:
    name: str
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class TaskResult:
    task: Task
    report: ProbeReport | None
    error: str | None = None


def read_suite(source: str | os.PathLike[str]) -> Suite:
    """A suite from a TOML file, or one that comes with vitrail by its name. Folders and tables may be named relative to
    the file."""
    path = Path(source)
    inside = resources.files("vitrail") / "suites" / f"{source}.toml"
    if not path.is_file() and not inside.is_file():
        here = [one.name.removesuffix(".toml") for one in (resources.files("vitrail") / "suites").iterdir()]
        raise VitrailError(
            f"there is no suite {printable(path)}: give a TOML file, or one of {', '.join(sorted(here))}"
        )
    try:
        plain = tomllib.loads((path if path.is_file() else inside).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise VitrailError(f"{printable(path)} cannot be read as a suite: {' '.join(str(error).split())}") from error
    return _suite(plain, path)


def _suite(plain: dict[str, Any], path: Path) -> Suite:
    tables = plain.pop("task", None)
    shared = {key: plain.pop(key) for key in SETTINGS if key in plain}
    name = plain.pop("name", path.stem)
    if not isinstance(tables, list) or not tables:
        raise VitrailError(f"{printable(path)} has no [[task]]: each needs a name and data")
    if plain:
        raise VitrailError(
            f"{printable(path)} has {quoted(list(plain))}: a suite has name, {', '.join(SETTINGS)}, task"
        )
    own = [item.name for item in fields(Task) if item.name != "settings"]
    tasks = []
    for table in tables:
        if unknown := set(table) - {*own, *SETTINGS}:
            raise VitrailError(f"a task of {printable(path)} has {quoted(sorted(unknown))}: it has {', '.join(own)}")
        if not all(isinstance(table.get(key), str) for key in ("name", "data")):
            raise VitrailError(f"a task of {printable(path)} has no name or no data: both are words")
        settings = shared | {key: table[key] for key in SETTINGS if key in table}
        beside = path.parent / os.path.expanduser(table["data"])
        data = str(beside) if beside.exists() else table["data"]
        tasks.append(Task(**{key: table[key] for key in own if key in table} | {"data": data}, settings=settings))
    if len({task.name for task in tasks}) < len(tasks):
        raise VitrailError(f"{printable(path)} has two tasks of one name: give each its own")
    return Suite(str(name), tuple(tasks))


def probe_suite(
    model: Classifier | str | os.PathLike[str],
    suite: Suite | str | os.PathLike[str],
    *,
    name: str | None = None,
    img_size: int | tuple[int, int] | None = None,
    device: str | torch.device | None = None,
    begun: Callable[[str, int, int], None] | None = None,
    **how: Any,
) -> SuiteReport:
    """Probes a model on every data set of a suite; one that cannot be had or used has an error in its row.

    `how` is for `probe`; what is given there and is not None goes before what the suite says. `begun` is called with
    the name of each task as it begins, its number, and how many there are.
    """
    suite = suite if isinstance(suite, Suite) else read_suite(suite)
    called = name or (repr(model) if isinstance(model, Classifier) else os.fspath(model))
    model = placed(model, img_size, device)
    given = {key: value for key, value in how.items() if value is not None}
    results = []
    for number, task in enumerate(suite.tasks, 1):
        if begun is not None:
            begun(task.name, number, len(suite.tasks))
        columns = {"label_column": task.label_column, "path_column": task.path_column}
        options = {key: value for key, value in columns.items() if value is not None}
        try:
            report = probe(model, task.data, **{**task.settings, **options, **given}, name=called)
            results.append(TaskResult(task, report))
        except Exception as error:  # the network, a library or the data: the other tasks are not to blame
            words = " ".join(str(error).split())
            kind = "" if isinstance(error, VitrailError) else f"{type(error).__name__}: "
            results.append(TaskResult(task, None, kind + words))
    return SuiteReport(called, suite.name, tuple(results))


@dataclass(frozen=True)
class SuiteReport:
    model: str
    suite: str
    results: tuple[TaskResult, ...]

    @property
    def failed(self) -> list[TaskResult]:
        return [one for one in self.results if one.report is None]

    @property
    def columns(self) -> list[tuple[str, int | Literal["all"]]]:
        """(method, shots) that at least one task has."""
        reports = [one.report for one in self.results if one.report is not None]
        return list(dict.fromkeys((figure.method, figure.shots) for report in reports for figure in report.figures))

    @property
    def groups(self) -> list[str]:
        return [name for name in dict.fromkeys(one.task.group for one in self.results) if name]

    def mean(self, method: str, shots: int | Literal["all"], group: str | None = None) -> float | None:
        """Mean accuracy over the tasks, or those of a group, that have it."""
        wanted = [one for one in self.results if group is None or one.task.group == group]
        found = [value for one in wanted if (value := _accuracy(one, method, shots)) is not None]
        return statistics.fmean(found) if found else None

    def to_json(self) -> dict[str, Any]:
        means = [
            {"method": method, "shots": shots, "group": group, "accuracy": self.mean(method, shots, group)}
            for method, shots in self.columns
            for group in (*self.groups, None)
        ]
        tasks = [
            {
                "name": one.task.name,
                "group": one.task.group or None,
                "data": printable(one.task.data),
                "error": one.error,
                "report": None if one.report is None else one.report.to_json(),
            }
            for one in self.results
        ]
        return {"model": self.model, "suite": self.suite, "failed": len(self.failed), "means": means, "tasks": tasks}

    def text(self) -> str:
        """A row for each data set under its group, the means of the groups, and the mean of all."""
        columns = self.columns
        head = ["accuracy, %", *(f"{TITLES[m]}, {s}" + ("" if s == "all" else " shots") for m, s in columns)]
        rows = [head]
        for group in (*self.groups, ""):
            members = [one for one in self.results if one.task.group == group]
            rows += [[f"  {one.task.name}" if group else one.task.name, *self._cells(one)] for one in members]
            if group:
                rows.append([group, *(_percent(self.mean(m, s, group)) for m, s in columns)])
        there, count = len(self.results) - len(self.failed), len(self.results)
        called = f"mean of {count}" if there == count else f"mean of {there} of {count}"
        rows.append([called, *(_percent(self.mean(m, s)) for m, s in columns)])
        wrong = [f"{one.task.name}: {one.error}" for one in self.failed]
        return "\n".join([f"{self.model} on {self.suite}", "", *aligned(rows), *([""] if wrong else []), *wrong])

    def write(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """`probe.json` and `probe.csv`, in a folder that is there whole or not at all."""
        refuse(folder, overwrite)
        rows = [
            [one.task.group, one.task.name, *row]
            for one in self.results
            for row in ([["", "", "", "", "", ""]] if one.report is None else one.report.rows())
        ]
        with written_whole(Path(folder), overwrite=overwrite) as new:
            new.mkdir()
            (new / JSON).write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            write_csv(new / CSV, ["group", "task", "method", "shots", "seed", "accuracy", "setting", "value"], rows)

    def _cells(self, result: TaskResult) -> Sequence[str]:
        if result.report is None:
            return ["error" for _ in self.columns]
        has = {(figure.method, figure.shots): figure.text() for figure in result.report.figures}
        return [has.get(column, "–") for column in self.columns]


def _accuracy(result: TaskResult, method: str, shots: int | Literal["all"]) -> float | None:
    figures = () if result.report is None else result.report.figures
    return next((one.mean for one in figures if (one.method, one.shots) == (method, shots)), None)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
