"""The loop: a batch, its gradients, a step; figures, evaluations and checkpoints at their times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vitrail.data.augmentation.draws import mixed
from vitrail.data.batch import Batch
from vitrail.errors import ShortMemoryError, VitrailError
from vitrail.model.halves import Halves
from vitrail.pictures import Preprocessing
from vitrail.training import sam
from vitrail.training.checkpoints import Checkpoints
from vitrail.training.ema import Ema
from vitrail.training.objective import Objective
from vitrail.training.optimisers import load_named_state, named_state, step
from vitrail.training.parallel import World
from vitrail.training.precision import Precision
from vitrail.training.progress import Progress, Stopwatch, count, figures, own_sums
from vitrail.training.recipe import Recipe
from vitrail.training.recording import REHEARSALS, NoRoomToRecordError, RecordedSteps, why_not
from vitrail.training.spreading import is_sharded
from vitrail.training.stopping import StoppedError, StopRequest

IN_A_ROW = 3  # non-finite steps after which training goes back to its last checkpoint


class Loader(Protocol):
    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]: ...


@dataclass
class Trainer:
    """One training. `model` computes (it may be compiled or spread over processes), `plain` holds the weights."""

    recipe: Recipe
    plain: nn.Module
    model: nn.Module
    optimiser: torch.optim.Optimizer
    objective: Objective
    schedule: Callable[[int], float]
    make_loader: Callable[[int], tuple[Loader, Preprocessing, int]]  # for a step: and until which step it is good
    total_steps: int
    steps_per_epoch: int
    world: World
    precision: Precision
    checkpoints: Checkpoints
    evaluate: Callable[[int], float | None]
    report: Callable[[dict[str, Any]], None]
    stop: StopRequest
    ema: Ema | None = None
    progress: Progress = field(default_factory=Progress)
    accumulate: int = 1
    halves: Halves = field(default_factory=Halves)  # of some weights, which the optimiser writes

    def __post_init__(self) -> None:
        device = self.world.device
        self.sums = torch.zeros(8, dtype=torch.double, device=device)  # see `count`
        self.count: Callable[..., None] = count
        self.factor = torch.zeros((), device=device)  # of the learning rates, in this step
        self.ema_weight = torch.zeros((), device=device)
        self.recorded = RecordedSteps(self._update) if why_not(self.recipe, self.world) is None else None
        self.watch = Stopwatch(device, first=REHEARSALS + 1)
        self.fresh_bad: dict[str, str] = {}  # pictures that the other processes do not know of yet
        self.log_steps = max(1, min(20, self.steps_per_epoch // 10))
        self.eval_steps = max(1, round(self.recipe.eval_epochs * self.steps_per_epoch))
        self.earlier = torch.zeros(1, dtype=torch.double, device=device)  # pictures since a report before a stop
        self.last_save = self.last_report = self.began = time.perf_counter()

    def run(self) -> None:
        """To the end, or to a stop."""
        self.began = self.last_save = self.last_report = time.perf_counter()
        self.earlier.copy_(self.sums[2:3])
        if self.progress.step == 0:
            self.save()  # there is always something to go back to
        while self.progress.step < self.total_steps and not self._is_enough():
            self._stage()
        self.save()
        self.checkpoints.wait()
        self.halves.release()

    def _stage(self) -> None:
        """The steps with one kind of pictures. What the last stage held is gone before there are others."""
        if self.recorded is not None:
            self.recorded.forget()
        loader, preprocessing, until = self.make_loader(self.progress.step)
        shift = self.progress.skipped_data
        self.watch.begin()
        for batch in loader.batches(self.progress.step + shift, until + shift):
            self._one(batch, preprocessing)
            if self.progress.skipped_data != shift or self._is_enough():
                break
        self.watch.pause()

    def _one(self, batch: Batch, preprocessing: Preprocessing) -> None:
        self.note_bad(batch)
        self.train_step(batch.to(self.world.device), preprocessing)
        done = self.progress.step
        last = done == self.total_steps
        if done % self.log_steps == 0 or last:
            self._report()
            if self._went_back():
                return
        if done % self.eval_steps == 0 or last:
            self._evaluate()
        if self.world.any(bool(self.stop)):
            self.save()
            self.checkpoints.wait()
            words = f"stopped after step {done:,} of {self.total_steps:,}, saved"
            run = self.checkpoints.folder.parent
            command = "train" if self.recipe.method is None else "pretrain"
            raise StoppedError(f"{words}: go on with vitrail {command} --resume {run}", self.stop.signal)
        is_due = time.perf_counter() - self.last_save > 60 * self.recipe.checkpoint_minutes
        if done % self.log_steps == 0 and self.world.agreed(is_due):
            self.save()

    def note_bad(self, batch: Batch) -> None:
        self.fresh_bad |= {name: reason for name, reason in batch.bad if name not in self.progress.bad}

    def share_bad(self) -> None:
        """All processes know what any of them could not read."""
        for others in self.world.gathered(self.fresh_bad):
            self.progress.bad |= others
        self.fresh_bad = {}

    def train_step(self, batch: Batch, preprocessing: Preprocessing) -> None:
        """One update of the weights, from one batch."""
        at = self.progress.step
        self.factor.fill_(self.schedule(at) * self.progress.lr_factor)
        if self.ema is not None:
            self.ema_weight.fill_(self.ema.weight_at(at))
        self.objective.begin(at)
        self._seed(at, 0)
        if self.recorded is None or self.accumulate > 1:
            self._update(batch, preprocessing)
        else:
            self._recorded_update(self.recorded, batch, preprocessing)
        self.progress.step += 1
        self.watch.step()

    def _recorded_update(self, recorded: RecordedSteps, batch: Batch, preprocessing: Preprocessing) -> None:
        try:
            recorded(batch, preprocessing)
            return
        except NoRoomToRecordError:
            recorded.forget()
            self.recorded = None
        self.optimiser.zero_grad(set_to_none=True)
        words = "memory is short: from here on steps are not recorded"
        self.report({"kind": "event", "step": self.progress.step, "text": words})
        self._seed(self.progress.step, 0)
        self._update(batch, preprocessing)

    def _update(self, batch: Batch, preprocessing: Preprocessing) -> None:
        """What a step does on the device; nothing here waits for it, so that all of it can be recorded."""
        inputs, targets = self.objective.prepare(batch, preprocessing)
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        loss, right = self._gradients_that_fit(inputs, targets)
        if self.recipe.optimiser.sam > 0:
            moved = sam.ascend(parameters, self.recipe.optimiser.sam)
            self.optimiser.zero_grad(set_to_none=True)
            loss, right = self._gradients_that_fit(inputs, targets)
            sam.descend(parameters, moved)
        norm = self.precision.unscaled_norm(parameters, self.recipe.optimiser.clip, self.halves)
        ok = torch.isfinite(norm)  # it is not where any process's loss is not, and all have the same
        step(self.optimiser, ok, self.factor)
        self.precision.update(ok)
        if self.ema is not None:
            self.ema.update(self.plain, ok, self.ema_weight)
        self.objective.finish(ok, self.world)
        self.optimiser.zero_grad(set_to_none=True)
        self.count(self.sums, loss, right, len(batch), norm, ok)

    def _seed(self, at: int, part: int) -> None:
        """Noise in the model is a function of the seed, the step, the part of the batch and the process."""
        if not _is_recording():
            torch.manual_seed(mixed(self.recipe.seed, at, part, self.world.rank))

    def _gradients_that_fit(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Where memory is short, the batch goes through the model in twice as many parts, from now on."""
        while True:
            try:
                return self._gradients(inputs, targets)
            except torch.OutOfMemoryError as error:
                if _is_recording():
                    raise
                # in other processes the step went on: only one that is alone can take it back
                if self.world.size > 1 or len(inputs) % (2 * self.accumulate):
                    hint = "choose a larger --accumulate, a smaller --batch-size or a smaller model"
                    raise ShortMemoryError(f"the memory of {self.world.device} is too small: {hint}") from error
            self.optimiser.zero_grad(set_to_none=True)
            self.halves.release()  # gradients of parts are added up in float32
            if self.world.device.type == "cuda":
                torch.cuda.empty_cache()
            self.accumulate *= 2
            words = f"memory is short: the batch of {len(inputs)} goes through in {self.accumulate} parts"
            self.report({"kind": "event", "step": self.progress.step, "text": words, "accumulate": self.accumulate})

    def _gradients(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Of the mean loss over the whole batch, which goes through the model in parts."""
        pairs = list(zip(inputs.chunk(self.accumulate), targets.chunk(self.accumulate), strict=True))
        parts = len(pairs)
        loss, right = torch.zeros((), device=inputs.device), torch.zeros((), device=inputs.device)
        for number, (x, y) in enumerate(pairs):
            self._seed(self.progress.step, number)
            with self._synced(number == parts - 1), self.precision.autocast():
                part, count = self.objective(self.model, x, y)
            share = len(x) / len(inputs)
            with self._synced(number == parts - 1):
                whole = torch.where(torch.isfinite(part.detach()), share, torch.nan)
                self.precision.scaled(part * whole).backward()  # type: ignore[no-untyped-call]
            loss, right = loss + part.detach() * share, right + count
        return loss, right

    def _synced(self, last: bool) -> AbstractContextManager[Any]:
        """Copies exchange gradients once a step. Shards do for every part: to wait they would need whole gradients."""
        silent = getattr(self.model, "no_sync", None)
        return nullcontext() if silent is None or last else silent()

    def _report(self) -> None:
        """Figures since the last report."""
        self.share_bad()
        counted = self.world.summed(torch.cat([self.sums[:6], self.sums[2:3] - self.earlier])).tolist()
        now, done = time.perf_counter(), self.progress.step
        row = {"kind": "train", "step": done, "epoch": round(done / self.steps_per_epoch, 4)}
        row |= figures(counted, now - self.last_report, self.world, answers=self.objective.answers)
        row |= {"lr": self.schedule(done - 1) * self.progress.lr_factor * self.recipe.optimiser.lr}
        self.report(row | {"bad_pictures": len(self.progress.bad)})
        self.last_report = now
        self.earlier.zero_()

    def seconds(self) -> float:
        """Of training so far, over all sessions."""
        return self.progress.seconds + time.perf_counter() - self.began

    def _went_back(self) -> bool:
        """After several non-finite steps in a row: the last checkpoint, past the batches that broke it, and half the
        learning rate; once."""
        longest = int(self.sums[7])
        self.sums[:6] = 0
        self.sums[7] = 0
        if longest < IN_A_ROW or self.precision.is_searching():
            return False
        broken = self.progress.step
        if self.progress.lr_factor < 1:
            raise VitrailError(
                f"the loss or the gradients were not finite {longest} steps in a row again, before step {broken:,}: "
                "lower the learning rate, clip gradients, or use --precision fp32"
            )
        self.checkpoints.wait()
        self.resume()
        self.sums[6:] = 0
        self.progress.skipped_data += broken - self.progress.step
        self.progress.lr_factor = 0.5
        words = f"{longest} steps in a row were not finite: back to step {self.progress.step:,}, half the learning rate"
        self.report({"kind": "event", "step": self.progress.step, "text": words, "back_to": self.progress.step})
        return True

    def _evaluate(self) -> None:
        average, began = self.ema.swapped(self.plain) if self.ema is not None else nullcontext(), time.perf_counter()
        with self.watch.paused(), average:
            score = self.evaluate(self.progress.step)
        self.last_report += time.perf_counter() - began  # which no step took
        if score is None:
            return
        if score > self.progress.best:
            self.progress.best, self.progress.best_step, self.progress.worse = score, self.progress.step, 0
        else:
            self.progress.worse += 1

    def _is_enough(self) -> bool:
        return 0 < self.recipe.patience <= self.progress.worse

    # --- state ---

    def _tensors(self) -> dict[str, Tensor]:
        """The state itself; of sharded weights each process has parts."""
        tensors = {f"model.{name}": tensor for name, tensor in self.plain.state_dict().items()}
        tensors |= {f"optimiser.{name}": t for name, t in named_state(self.optimiser, self.plain).items()}
        if self.ema is not None:
            tensors |= {f"ema.{name}": tensor for name, tensor in self.ema.state().items()}
        return tensors | self.precision.state()

    def save(self) -> None:
        self.share_bad()
        self.progress.seconds, self.began = self.seconds(), time.perf_counter()
        plain = {"progress": vars(self.progress), "sums": self.world.gathered(self.sums.tolist())}
        write = self.checkpoints.save_sharded if is_sharded(self.plain) else self.checkpoints.save
        with self.watch.paused():
            write(self.progress.step, self._tensors(), plain)
        self.last_save = time.perf_counter()

    def resume(self) -> bool:
        """From the newest whole checkpoint, if there is one, by whatever number of processes it was saved."""
        found = self.checkpoints.latest()
        if found is None:
            return False
        if is_sharded(self.plain):
            plain = self.checkpoints.load_sharded(found, self._tensors())
        else:
            tensors, plain = self.checkpoints.load(found)  # not on a GPU, which may have no room for it twice
            self.plain.load_state_dict(_below(tensors, "model."))
            load_named_state(self.optimiser, self.plain, _below(tensors, "optimiser."))
            if self.ema is not None:
                self.ema.load(_below(tensors, "ema."))
            self.precision.load(tensors)
            self.halves.refresh()
        self.sums.copy_(own_sums(plain["sums"], self.world))
        self.progress = Progress(**plain["progress"])
        return True


def _is_recording() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
