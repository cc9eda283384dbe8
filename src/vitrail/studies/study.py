"""`vitrail.study`: every run of a study file, then one table and one plot."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from vitrail.classifier import default_preprocessing
from vitrail.data.opening import open_source
from vitrail.data.splits import Splits, make_splits
from vitrail.errors import ConfigError, DataError, VitrailError
from vitrail.studies.plan import Plan, Row, read_plan
from vitrail.studies.plot import write_plot
from vitrail.studies.results import Figures, Outcome, Result, Tried, deviation, figures, summary, training_flops
from vitrail.studies.side_by_side import Task, train_side_by_side
from vitrail.studies.work import Work, by_row, grouped, refuse_changed
from vitrail.studies.workplace import Failure, Workplace, is_complete
from vitrail.training.feeding import Feeding, check_labels, total_steps
from vitrail.training.locks import FolderLock
from vitrail.training.parallel import World
from vitrail.training.recipe import Data
from vitrail.training.run import Run
from vitrail.training.start import configured

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
    classes = source.classes
    folder = Path("studies") / plan.file.stem if out is None else Path(out)
    works = [
        Work(row, choice, seed, folder / "runs" / choice.folder / f"seed-{seed}", configured(choice.recipe, classes))
        for row, choice, seed in plan.runs()
    ]
    place = Workplace(os.fspath(address), data_options or {}, source, device)
    studying = _Studying(plan, folder, place, jobs, say)
    studying.need_validation(works)
    studying.need_batches(works)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, "choose another --out")
    try:
        refuse_changed(works, source, again)
        return studying.run(works)
    finally:
        lock.release()


class _Studying:
    def __init__(self, plan: Plan, folder: Path, place: Workplace, jobs: int, say: Say | None) -> None:
        self.plan, self.folder, self.place, self.source, self.jobs = plan, folder, place, place.source, jobs
        self.say = say or (lambda line: None)
        self.measure = "map" if self.source.samples.multi_label else "accuracy"
        self.is_tested = len(self.source.said("test")) > 0
        self.failed: dict[str, str] = {}
        self.begun: set[Path] = set()

    def run(self, works: list[Work]) -> Result:
        self.say(self._size(works))
        if self.jobs > 1:
            self._side_by_side(grouped(works))
        else:
            self._one_by_one(grouped(works))
        rows = [row for row in map(self._figures, self.plan.rows, by_row(works)) if row is not None]
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
        steps = {work.folder: total_steps(work.recipe, len(self._splits(work.recipe.data).train)) for work in left}
        pictures = sum(steps[work.folder] * work.recipe.batch_size for work in left)
        cost = sum(training_flops(work.recipe, work.config, steps[work.folder]) for work in left)
        done = f"; {len(works) - len(left)} are complete" if len(left) < len(works) else ""
        return f"{len(left)} runs to train, {pictures:,} pictures, {cost:.2e} FLOPs{done}"

    @cache  # noqa: B019
    def _splits(self, data: Data) -> Splits:
        return make_splits(self.source, fraction=data.val_fraction, seed=data.split_seed, subset=data.subset)

    def need_validation(self, works: list[Work]) -> None:
        if self.is_tested and self.plan.choose is None:
            return
        if any(not len(self._splits(work.recipe.data).val) for work in works):
            why = "to choose by" if self.plan.choose else "and there is no test part either"
            raise ConfigError(f"{self.plan.file}: data.val_fraction = 0 leaves no validation part {why}")

    def need_batches(self, works: list[Work]) -> None:
        """That there are labels to learn, and that the batches of every row can be made."""
        alone = World(0, 1, torch.device("cpu"))
        for work in {work.choice.folder: work for work in works}.values():
            splits = self._splits(work.recipe.data)
            check_labels(splits)
            if work.recipe.auto_batch:
                continue
            try:
                Feeding(work.recipe, splits, default_preprocessing(work.config), alone).check()
            except DataError as error:
                where = f"row {work.row.name!r}: " if len(self.plan.rows) > 1 else ""
                raise ConfigError(f"{self.plan.file}: {where}{work.in_the_file(str(error))}") from None

    def _one_by_one(self, works: list[Work]) -> None:
        last: tuple[Any, ...] | None = None
        for number in self._not_in_vain(works, range(len(works))):
            work = works[number]
            if last not in (None, work.step) and work.recipe.compile:
                torch.compiler.reset()  # of another model: there is a limit to how many one function is kept for
            last = work.step
            self._one(works, number)

    def _side_by_side(self, works: list[Work]) -> None:
        left = [number for number, work in enumerate(works) if not is_complete(work.folder)]
        for number in sorted(set(range(len(works))) - set(left)):
            self._one(works, number)
        tried = ((number, works[number]) for number in self._not_in_vain(works, left))
        tasks = ((number, Task(work.folder, work.recipe, work.is_judged)) for number, work in tried)
        place = self.place
        train_side_by_side(tasks, self.jobs, place.address, place.options, place.device, partial(self._tell, works))

    def _one(self, works: list[Work], number: int) -> None:
        work = works[number]
        self._tell(works, number, self.place.attempt(work.folder, work.recipe, work.is_judged))

    def _not_in_vain(self, works: list[Work], numbers: Iterable[int]) -> Iterator[int]:
        """One after the other, without those that were found to fail before they began."""
        for number in numbers:
            if str(works[number].folder) not in self.failed:
                self.begun.add(works[number].folder)
                yield number

    def _tell(self, works: list[Work], number: int, failure: Failure | None) -> None:
        """What came of a run. What fails is told, and does not end the study."""
        work = works[number]
        name = f"{number + 1}/{len(works)} {work.folder.relative_to(self.folder / 'runs')}"
        if failure is None:
            self.say(f"{name}: {summary(self._outcome(work), self.measure)}")
            return
        words = work.in_the_file(failure.words)
        if failure.is_of_memory and self.jobs > 1:
            words += ", or fewer --jobs"
        vain = self._in_vain(works, work, failure)
        self.failed |= {str(one.folder): words for one in (work, *vain)}
        untried = f"; not tried: {len(vain)} more, of other seeds or learning rates" if vain else ""
        self.say(f"{name}: failed: {words}{untried}")

    def _in_vain(self, works: list[Work], failed: Work, failure: Failure) -> list[Work]:
        """What has not begun and would fail likewise: no other of its kind came to an end, and what failed was not
        short of what others took at the time."""
        alike = [work for work in works if work.kind == failed.kind]
        crowded = failure.is_of_memory and self.jobs > 1
        if crowded or not failure.is_of_any_seed or any(is_complete(work.folder) for work in alike):
            return []
        return [work for work in alike if work.folder not in self.begun]

    def _outcome(self, work: Work) -> Outcome:
        facts = Run.open(work.folder).facts
        place = str(work.folder.relative_to(self.folder))
        val, test = (facts.get(part, {}).get(self.measure) for part in ("scores", "test"))
        return Outcome(work.seed, place, val, test, facts["steps"], facts["seconds"], facts.get("threads"))

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
            if vals := tuple(val for val in own if val is not None):
                yield Tried(choice.value, statistics.fmean(vals), deviation(vals), vals)


def _about(works: list[Work]) -> dict[str, Any]:
    """Where it was trained, by the first run that is complete."""
    facts = next(Run.open(work.folder).facts for work in works if is_complete(work.folder))
    return {key: facts[key] for key in ("device", "versions")}
