"""One training, put together: what the loop needs, and where what comes out of it goes."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vitrail.classifier import Classifier
from vitrail.data.batch import Batch
from vitrail.data.notes import write_bad
from vitrail.data.sheet import batch_sheet
from vitrail.errors import PictureError, VitrailError
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT
from vitrail.pictures import as_picture
from vitrail.scoring.metrics import Tally
from vitrail.scoring.scores import Scores
from vitrail.training.assembly import Plan, make_trainer
from vitrail.training.checkpoints import Checkpoints
from vitrail.training.compiling import uncompiled
from vitrail.training.live import Live
from vitrail.training.log import Log, read_log
from vitrail.training.parallel import World
from vitrail.training.recipe_files import to_toml
from vitrail.training.recording import why_not
from vitrail.training.reporting import ShownMistake, write_reports
from vitrail.training.run import Run
from vitrail.training.spreading import in_step, is_sharded, load_whole, whole_state
from vitrail.training.stages import work_until
from vitrail.training.stopping import StopRequest
from vitrail.training.trackers import make_trackers

SHOWN_MISTAKES = 48


class Job:
    """Rank 0 writes; the others compute."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        world: World,
        stop: StopRequest,
        trackers: Sequence[str],
        *,
        shard: bool,
        quiet: bool,
        resumed: bool,
    ) -> None:
        self.run, self.world = run, world
        self.recipe, self.classifier, self.feeding = plan.recipe, plan.classifier, plan.feeding
        folder, keep = run.folder / "checkpoints", plan.recipe.keep_checkpoints
        checkpoints = Checkpoints(folder, keep, rank=world.rank, world=world.size)
        began = time.perf_counter()
        made = make_trainer(plan, world, checkpoints, self.evaluate, self.report, stop, sharded=shard)
        self.trainer, self.why_not_compiled = made
        self.compile_seconds = time.perf_counter() - began
        if resumed:
            self.trainer.resume()
        at = self.trainer.progress.step if resumed else None
        self.log = Log(run.folder, resume_at=at) if world.is_first else None
        before = read_log(run.folder) if world.is_first and resumed else []
        total, steps = self.trainer.total_steps, self.trainer.steps_per_epoch
        options: dict[str, Any] = {"title": str(run.folder), "quiet": quiet or not world.is_first, "before": before}
        self.live = Live(total, steps, work=work_until(self.recipe, self.classifier.model.config, total), **options)
        names = trackers if world.is_first else ()
        self.trackers = make_trackers(names, run.folder, run.folder.name, resume_at=at)

    def note(self, text: str) -> None:
        self.live.note(text)

    def report(self, row: dict[str, Any]) -> None:
        if self.log is None:
            return
        if row["kind"] == "event" and "back_to" in row:
            self.log.cut(row["back_to"])
        if "accumulate" in row:
            self.recipe = replace(self.recipe, accumulate=row["accumulate"])
            self.run.write_recipe(self.recipe)
        written = self.log.write(row)
        self.live.update(written)
        for tracker in self.trackers:
            tracker.log(written)

    def run_all(self) -> None:
        feeding = self.feeding
        for line in feeding.notes:
            self.note(line)
        against = why_not(self.recipe, self.world)
        if self.recipe.record and against is not None:
            self.note(f"steps are not recorded: {against}")
        if (remark := self.trainer.precision.remark) is not None:
            self.note(remark)
        self.note(f"evaluation: {self.classifier.preprocessing.describe()}; pictures come through {feeding.engine}")
        if self.why_not_compiled is not None:
            words = f"torch.compile does not work here, so training goes on without it: {self.why_not_compiled}"
            self.report({"kind": "event", "step": self.trainer.progress.step, "text": words})
        if self.world.is_first and self.trainer.progress.step == 0:
            self._show_batch()
        self.trainer.run()
        self.finish()

    def _show_batch(self) -> None:
        """`augmented.png`: what the model is really shown."""
        loader, preprocessing, _ = self.feeding.loader(0)
        batch = next(iter(loader.batches(0, 1))).to("cpu")
        batch_sheet(batch, preprocessing, self.feeding.train.classes).save(self.run.folder / "augmented.png")

    def scores(self) -> Scores | None:
        """Of the model as it is now, on the validation part."""
        if self.feeding.val is None:
            return None
        tally = Tally(len(self.feeding.val.classes), self.feeding.val.source.samples.multi_label)

        def score(batch: Batch) -> None:
            logits = self.classifier.model(batch.inputs(self.classifier.preprocessing)).float()
            tally.add(logits, batch.labels, batch.valid, batch.samples)

        self.go_through(score)
        states = self.world.gathered({name: tensor.cpu() for name, tensor in tally.state().items()})
        return Tally.joined(states).result(self.feeding.val.classes, mistakes=SHOWN_MISTAKES)

    def go_through(self, work: Callable[[Batch], None]) -> None:
        """`work` on every batch of validation, with a model that is still. It calls the model once for each."""
        model, trainer, batches = self.classifier.model, self.trainer, self.feeding.evaluation
        model.eval()
        blank = torch.zeros(1, model.config.in_chans, *self.classifier.preprocessing.size, device=self.world.device)
        # shards keep what they gather, which in inference mode could not learn afterwards
        still = torch.no_grad() if is_sharded(model) else torch.inference_mode()
        together = in_step(model, self.world, len(batches), blank)
        with still, trainer.precision.autocast(), uncompiled(model), together:
            for batch in batches:
                trainer.note_bad(batch)
                work(batch.to(self.world.device))
        model.train()

    def evaluate(self, step: int) -> float | None:
        """Scores the weights that are in the model now, and keeps them if they are the best."""
        scores = self.scores()
        if scores is None:
            return None
        score = scores.score if math.isfinite(scores.loss) else -math.inf  # broken weights are never the best
        best = score > self.trainer.progress.best
        epoch = round(step / self.trainer.steps_per_epoch, 4)
        self.report({"kind": "eval", "step": step, "epoch": epoch, **scores.headline(), "best": best})
        if best:
            self._save_model("best")
        return score

    def _save_model(self, name: str) -> None:
        """A model folder of the weights that are in the model now. All processes come here, the first writes."""
        state = whole_state(self.classifier.model, self.world)
        if not self.world.is_first:
            return
        classifier = Classifier(self._whole(state), self.classifier.preprocessing, self.classifier.classes)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            classifier.save(self.run.folder / name, overwrite=True)
        if name == "last":  # the best is of the same kind
            for warning in said:
                self.note(str(warning.message))

    def _whole(self, state: dict[str, Tensor]) -> ViT | ResNet:
        """The model that is saved, of all weights of the one that learns."""
        model = self.classifier.model
        with torch.device("meta"):
            whole = type(model)(model.config)  # type: ignore[arg-type]
        whole.load_state_dict(state, assign=True)
        return whole

    def _load_model(self, name: str) -> None:
        """The other way: the first process reads, all get theirs."""
        folder = self.run.folder / name
        if self.world.agreed(folder.is_dir()):
            state = Classifier.load(folder).model.state_dict() if self.world.is_first else {}
            load_whole(self.classifier.model, state, self.world)

    def finish(self) -> None:
        """The last model, the figures of the best one, the report."""
        trainer, folder = self.trainer, self.run.folder
        with trainer.ema.swapped(trainer.plain) if trainer.ema is not None else nullcontext():
            self._save_model("last")
        scores = self._final_scores()
        trainer.share_bad()
        if self.log is None:
            return
        self.log.close()
        facts = {**self.run.facts, "complete": True, "steps": trainer.progress.step}
        facts["seconds"] = round(trainer.seconds(), 1)
        if (each := trainer.watch.each()) is not None:  # of the steps alone, as if none had had to compile
            facts["step_seconds"] = round(each * trainer.progress.step, 3)
            facts["setup_seconds"] = round(trainer.watch.setup + self.compile_seconds, 1)
        facts["notes"] = list(self.feeding.notes)
        facts["unreadable"] = len(trainer.progress.bad)
        if figures := self._headline(scores):
            facts["scores"] = figures
        if trainer.progress.bad:
            write_bad(trainer.progress.bad, folder / "bad_images.csv")
        self._write_report(scores, facts)
        self.run.write_facts(facts)
        for tracker in self.trackers:
            tracker.close(sorted(folder.glob("*.png")))
        self.trackers = []

    def _final_scores(self) -> Scores | None:
        self._load_model("best")
        return self.scores()

    def _headline(self, scores: Scores | None) -> dict[str, Any]:
        """The figures by which the run is known."""
        return {} if scores is None else scores.headline()

    def _write_report(self, scores: Scores | None, facts: dict[str, Any]) -> None:
        feeding = self.feeding
        hidden = ("classes", "samples", "model", "complete")
        shown = {name: value for name, value in facts.items() if name not in hidden}
        shown["bad"] = self.trainer.progress.bad
        shown["evaluation"] = self.classifier.preprocessing.describe()
        log = read_log(self.run.folder)
        toml = to_toml(self.recipe)
        write_reports(self.run.folder, log, scores, feeding.train.classes, toml, shown, self._mistakes(scores))

    def _mistakes(self, scores: Scores | None) -> list[ShownMistake]:
        """The most confident wrong answers, with their pictures."""
        found: list[ShownMistake] = []
        val = self.feeding.val
        if scores is None or val is None:
            return found
        for mistake in scores.mistakes:
            try:
                picture = as_picture(val.read(mistake.sample))
            except PictureError:
                continue
            picture.thumbnail((256, 256))
            if max(picture.size) <= 48:  # the pixels of small ones are worth seeing
                larger = 96 // max(picture.size)
                picture = picture.resize((picture.width * larger, picture.height * larger), Image.Resampling.NEAREST)
            name = val.name_of(mistake.sample)
            found.append(ShownMistake(picture, mistake.labels, mistake.answer, mistake.probability, name))
        return found

    def close(self) -> None:
        """However the training ended."""
        self.live.close()
        for part in (self.log, *self.trackers, self.trainer.checkpoints):
            with suppress(VitrailError, OSError):  # the first error is the one to show
                if part is not None:
                    part.close()
