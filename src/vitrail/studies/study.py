"""`vitrail.study`: every run of a study file, then one table and one plot."""

from __future__ import annotations

import dataclasses
import os
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitrail.data.opening import open_source
from vitrail.data.source import Source
from vitrail.data.splits import make_splits
from vitrail.errors import ConfigError, VitrailError
from vitrail.model.zoo import Config
from vitrail.studies.plan import Choice, Plan, Row, flattened, read_plan
from vitrail.studies.plot import write_plot
from vitrail.studies.results import Figures, Outcome, Result, Tried, deviation, figures, summary, training_flops
from vitrail.studies.side_by_side import Task, train_side_by_side
from vitrail.studies.work import Workplace, is_complete
from vitrail.training.feeding import total_steps
from vitrail.training.launching import absolute, mark_of
from vitrail.training.locks import FolderLock
from vitrail.training.recipe import Data, Recipe
from vitrail.training.run import FACTS, Run
from vitrail.training.start import configured
from vitrail.training.stopping import StoppedError

Say = Callable[[str], None]


def study(
    file: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    device: str | None = None,
    jobs: int = 1,
    again: bool = False,
    data_options: Mapping[str, Any] | None = None,
    say: Say | None = None,
) -> Result:
    """Trains what the file asks for into `out`, by default `studies/<file>`, with study.csv, study.json and study.png.

    What is complete there is not trained again, and what was stopped goes on. Runs whose settings have changed since
    are refused; with `again` they are trained anew. `jobs` runs are trained at a time, each in a process of its own.
    `data` is in place of the file's; `data_options` go to `open_source`. `say` is called with a line about each run.
    """
    if jobs < 1:
        raise ConfigError(f"jobs must be 1 or more, not {jobs}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise VitrailError("a study trains one run after the other in one process: start it without torchrun")
    plan = read_plan(file)
    address = plan.data if data is None else data
    if address is None:
        raise ConfigError(f"{plan.file}: data: it is missing: name what to train on, or give --data")
    source = open_source(address, **(data_options or {}))
    folder = Path("studies") / plan.file.stem if out is None else Path(out)
    works = [
        Work(row, choice, seed, folder / "runs" / choice.folder / f"seed-{seed}", _model(plan, row, choice, source))
        for row, choice, seed in plan.runs()
    ]
    place = Workplace(os.fspath(address), data_options or {}, source, device)
    studying = _Studying(plan, folder, place, jobs, say)
    studying.need_validation(works)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder)
    try:
        _refuse_changed(works, source, again)
        return studying.run(works)
    finally:
        lock.release()


class Work(NamedTuple):
    """One run of the study."""

    row: Row
    choice: Choice
    seed: int
    folder: Path
    config: Config

    @property
    def recipe(self) -> Recipe:
        return self.choice.recipes[self.seed]

    @property
    def is_judged(self) -> bool:
        """On the test part, as soon as it is trained; otherwise validation chooses first."""
        return len(self.row.choices) == 1

    @property
    def step(self) -> tuple[Any, ...]:
        """Works for which this is equal compute the same step: what was compiled for one serves the others."""
        recipe = self.recipe
        shapes = (recipe.batch_size, recipe.accumulate, recipe.data, recipe.stages)
        return self.config, shapes, recipe.precision, recipe.compile, recipe.optimiser.name, repr(recipe.augmentation)


def _model(plan: Plan, row: Row, choice: Choice, source: Source) -> Config:
    try:
        return configured(choice.recipe, source.classes)
    except VitrailError as error:
        raise ConfigError(f"{plan.file}: row {row.name!r}: {error}") from None


def _refuse_changed(works: list[Work], source: Source, again: bool) -> None:
    """What is there must be what is asked for."""
    changed = []
    for work in works:
        if (work.folder / FACTS).is_file():
            run = Run.open(work.folder)
            if (difference := _difference(run, work.recipe, source)) is not None:
                changed.append((work.folder, difference))
        elif work.folder.is_dir() and {path.name for path in work.folder.iterdir()} <= _BEGUN:
            shutil.rmtree(work.folder)  # killed before there was anything
    if changed and not again:
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        place, difference = changed[0]
        raise VitrailError(
            f"{place} was trained with other settings ({difference}){more}: "
            "--again trains such runs anew, or choose another --out"
        )
    for place, _ in changed:
        shutil.rmtree(place)


_BEGUN = {"recipe.toml", ".recipe.toml.new", ".run.json.new"}


def _difference(run: Run, asked: Recipe, source: Source) -> str | None:
    """Memory that was short may have changed `accumulate`, which changes no result."""
    if run.facts["samples"] != mark_of(source):
        return f"{source.name} has changed"
    was, now = (flattened(dataclasses.asdict(dataclasses.replace(r, accumulate=1))) for r in (run.recipe, asked))
    if now["distillation.teacher"]:
        now["distillation.teacher"] = absolute(now["distillation.teacher"])  # as a run writes it down
    key = next((key for key in (*now, *was) if now.get(key) != was.get(key)), None)
    return None if key is None else f"{key} was {was.get(key)}, now {now.get(key)}"


class _Studying:
    def __init__(self, plan: Plan, folder: Path, place: Workplace, jobs: int, say: Say | None) -> None:
        self.plan, self.folder, self.place, self.source, self.jobs = plan, folder, place, place.source, jobs
        self.say = say or (lambda line: None)
        self.measure = "map" if self.source.samples.multi_label else "accuracy"
        self.is_tested = len(self.source.said("test")) > 0
        self.failed: dict[str, str] = {}

    def run(self, works: list[Work]) -> Result:
        self.say(self._size(works))
        if self.jobs > 1:
            self._side_by_side(_grouped(works))
        else:
            self._one_by_one(_grouped(works))
        rows = [row for row in map(self._figures, self.plan.rows, _by_row(works)) if row is not None]
        if not rows:
            raise VitrailError(f"no run of {self.plan.file} came to an end: {next(iter(self.failed.values()))}")
        part = "test" if self.is_tested else "val"
        about = _about(works)
        result = Result(self.plan, self.folder, self.place.address, self.measure, part, tuple(rows), self.failed, about)
        result.write()
        write_plot(result, self.folder / "study.png")
        return result

    def _size(self, works: list[Work]) -> str:
        left = [work for work in works if not is_complete(work.folder)]
        if not left:
            return f"all {len(works)} runs are complete"
        steps = {work.folder: total_steps(work.recipe, self._pictures(work.recipe.data)[0]) for work in left}
        pictures = sum(steps[work.folder] * work.recipe.batch_size for work in left)
        cost = sum(training_flops(work.recipe, work.config, steps[work.folder]) for work in left)
        done = f"; {len(works) - len(left)} are complete" if len(left) < len(works) else ""
        return f"{len(left)} runs to train, {pictures:,} pictures, {cost:.2e} FLOPs{done}"

    @cache  # noqa: B019
    def _pictures(self, data: Data) -> tuple[int, int]:
        """That there are to train, and to validate."""
        splits = make_splits(self.source, fraction=data.val_fraction, seed=data.split_seed, subset=data.subset)
        return len(splits.train), len(splits.val)

    def need_validation(self, works: list[Work]) -> None:
        if self.is_tested and self.plan.choose is None:
            return
        if any(not self._pictures(work.recipe.data)[1] for work in works):
            why = "to choose by" if self.plan.choose else "and there is no test part either"
            raise ConfigError(f"{self.plan.file}: data.val_fraction = 0 leaves no validation part {why}")

    def _one_by_one(self, works: list[Work]) -> None:
        last: tuple[Any, ...] | None = None
        for number, work in enumerate(works):
            if last not in (None, work.step) and work.recipe.compile:
                torch.compiler.reset()  # of another model: there is a limit to how many one function is kept for
            last = work.step
            self._one(works, number)

    def _side_by_side(self, works: list[Work]) -> None:
        left = [number for number, work in enumerate(works) if not is_complete(work.folder)]
        for number in sorted(set(range(len(works))) - set(left)):
            self._one(works, number)
        tasks = [Task(works[number].folder, works[number].recipe, works[number].is_judged) for number in left]
        place = self.place

        def tell(task: int, error: str | None) -> None:
            self._tell(works, left[task], error)

        train_side_by_side(tasks, self.jobs, place.address, place.options, place.device, tell)

    def _one(self, works: list[Work], number: int) -> None:
        work, error = works[number], None
        try:
            self.place.train(work.folder, work.recipe)
            if work.is_judged:
                self.place.score(work.folder, work.recipe)
        except StoppedError:
            raise
        except VitrailError as wrong:
            error = str(wrong)
        self._tell(works, number, error)

    def _tell(self, works: list[Work], number: int, error: str | None) -> None:
        """What came of a run. What fails is told, and does not end the study."""
        work = works[number]
        name = f"{number + 1}/{len(works)} {work.folder.relative_to(self.folder / 'runs')}"
        if error is None:
            self.say(f"{name}: {summary(self._outcome(work), self.measure)}")
        else:
            self.failed[str(work.folder)] = error
            self.say(f"{name}: failed: {error}")

    def _outcome(self, work: Work) -> Outcome:
        facts = Run.open(work.folder).facts
        place = str(work.folder.relative_to(self.folder))
        val, test = (facts.get(part, {}).get(self.measure) for part in ("scores", "test"))
        return Outcome(work.seed, place, val, test, facts["steps"], facts["seconds"])

    def _figures(self, row: Row, works: list[Work]) -> Figures | None:
        """None where every run has failed."""
        there = [work for work in works if str(work.folder) not in self.failed]
        if not there:
            return None
        tried = list(self._tried(row, there)) if len(row.choices) > 1 else []
        best = max(tried, key=lambda one: one.val).value if tried else there[0].choice.value
        chosen = [work for work in there if work.choice.value == best]
        for work in chosen:
            self.place.score(work.folder, work.recipe)
        return figures(row, tried, chosen[0].choice, chosen[0].config, [self._outcome(work) for work in chosen])

    def _tried(self, row: Row, works: list[Work]) -> Iterator[Tried]:
        for choice in row.choices:
            own = (self._outcome(work).val for work in works if work.choice is choice)
            if vals := [val for val in own if val is not None]:
                yield Tried(choice.value, statistics.fmean(vals), deviation(vals))


def _grouped(works: list[Work]) -> list[Work]:
    """In their order, but those that compute the same step one after the other."""
    places: dict[tuple[Any, ...], int] = {}
    for work in works:
        places.setdefault(work.step, len(places))
    return sorted(works, key=lambda work: places[work.step])


def _by_row(works: list[Work]) -> list[list[Work]]:
    found: dict[int, list[Work]] = {}
    for work in works:
        found.setdefault(id(work.row), []).append(work)
    return list(found.values())


def _about(works: list[Work]) -> dict[str, Any]:
    """Where it was trained, by the first run that is complete."""
    facts = next(Run.open(work.folder).facts for work in works if is_complete(work.folder))
    return {key: facts[key] for key in ("device", "versions")}
