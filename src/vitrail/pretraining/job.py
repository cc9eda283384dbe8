"""One pretraining: what is judged, drawn and saved otherwise than in training with labels."""

from __future__ import annotations

import math
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vitrail.data.batch import Batch
from vitrail.data.samples import UNSAID
from vitrail.model.vit import ViT
from vitrail.pretraining.dino import SelfDistillation
from vitrail.pretraining.drawing import crops_sheet, features_sheet, reconstruction_sheet, some_pictures
from vitrail.pretraining.mae import MaskedAutoencoder, Reconstruction
from vitrail.pretraining.masked import MaskedPrediction, MaskedPredictor
from vitrail.scoring.probing.knn import knn_answers
from vitrail.scoring.scores import Scores
from vitrail.training.compiling import uncompiled
from vitrail.training.job import Job
from vitrail.training.log import read_log
from vitrail.training.reporting.curves import History
from vitrail.training.spreading import is_sharded, whole_state
from vitrail.whole import written_whole

NEIGHBOURS = 20
JUDGED = 10_000  # validation pictures at most whose neighbours are looked at


class PretrainingJob(Job):
    """The encoder is saved. It is judged by the loss on validation pictures, whose masks are always the same, and where
    they have labels by whether neighbours among them have the same: labels have no part in learning."""

    def evaluate(self, step: int) -> float | None:
        figures = self._figures()
        self._draw(step)
        if not figures:
            return None
        loss = figures.get("loss")
        score = None if loss is None else -loss if math.isfinite(loss) else -math.inf
        best = score is not None and score > self.trainer.progress.best
        epoch = round(step / self.trainer.steps_per_epoch, 4)
        self.report({"kind": "eval", "step": step, "epoch": epoch, **figures, "best": best})
        if best:
            self._save_model("best")
        return score

    def _figures(self) -> dict[str, float]:
        if self.feeding.val is None:
            return {}
        figures = {} if self.recipe.dino is not None else {"loss": self._loss()}
        if self._has_labels():
            figures["knn"] = self._neighbours()
        return figures

    def _loss(self) -> float:
        sums = torch.zeros(2, dtype=torch.double, device=self.world.device)
        objective = self.trainer.objective
        assert isinstance(objective, Reconstruction | MaskedPrediction)

        def add(batch: Batch) -> None:
            inputs, targets = batch.inputs(self.classifier.preprocessing), objective.still(batch.samples)
            valid = torch.ones(len(batch), dtype=torch.bool) if batch.valid is None else batch.valid
            good = valid.nonzero()[:, 0] if bool(valid.any()) else valid[:0].long()
            some = good if len(good) else torch.zeros(1, dtype=torch.int64, device=inputs.device)
            loss, _ = objective(self.classifier.model, inputs[some], targets[some])
            sums.add_(torch.stack([loss.double() * len(good), sums.new_tensor(len(good))]))

        self.go_through(add)
        total, count = self.world.summed(sums).tolist()
        return total / count if count else math.nan

    def _has_labels(self) -> bool:
        val = self.feeding.val
        if val is None or val.source.samples.multi_label or len(val.classes) < 2:
            return False
        return int((val.labels != UNSAID).sum()) > NEIGHBOURS

    def _neighbours(self) -> float:
        """Every other validation picture votes for those between them."""
        most = -(-JUDGED // self.world.size)
        found: list[tuple[Tensor, Tensor]] = []

        def add(batch: Batch) -> None:
            features = self.classifier.model(batch.inputs(self.classifier.preprocessing)).float()
            if sum(len(rows) for rows, _ in found) < most:
                known = batch.labels != UNSAID
                known = known if batch.valid is None else known & batch.valid
                found.append((features[known].cpu(), batch.labels[known].cpu()))

        self.go_through(add)
        mine = tuple(torch.cat(column) for column in zip(*found, strict=True)) if found else None
        parts = [part for part in self.world.gathered(mine) if part is not None]
        features, labels = (torch.cat(column) for column in zip(*parts, strict=True))
        features = features.nan_to_num()
        answers = knn_answers(
            features[::2], labels[::2], features[1::2], len(self.feeding.train.classes), (NEIGHBOURS,)
        )[0]
        return float((answers == labels[1::2]).double().mean())

    def _draw(self, step: int) -> None:
        """`reconstruction.png` or `features.png`, and the same by its step in `progress`."""
        subset = self.feeding.val or self.feeding.train
        pictures = some_pictures(subset, self.classifier.preprocessing)
        if pictures is None:
            return
        drawn = self._sheet(pictures.to(self.world.device))
        if not self.world.is_first:
            return
        name = "features" if self.recipe.dino is not None else "reconstruction"
        (self.run.folder / "progress").mkdir(exist_ok=True)
        for path in (self.run.folder / f"{name}.png", self.run.folder / "progress" / f"{name}-{step:08}.png"):
            with written_whole(path, overwrite=True) as new:
                drawn.save(new, "PNG")

    def _sheet(self, pictures: Tensor) -> Image.Image:
        """All processes come here, as a model that is spread computes in all of them."""
        model, pixels, objective = self.classifier.model, self.classifier.preprocessing, self.trainer.objective
        if isinstance(model, SelfDistillation):
            state = whole_state(model, self.world)
            return (
                features_sheet(self._whole(state), pictures.cpu(), pixels)
                if self.world.is_first
                else Image.new("L", (1, 1))
            )
        assert isinstance(objective, Reconstruction | MaskedPrediction)
        model.eval()
        still = torch.no_grad() if is_sharded(model) else torch.inference_mode()
        targets = objective.still(torch.arange(len(pictures), device=pictures.device))
        with still, self.trainer.precision.autocast(), uncompiled(model):
            if isinstance(model, MaskedAutoencoder):
                masked, drawn = model.drawn(pictures, targets)
            else:
                assert isinstance(model, MaskedPredictor)
                masked, drawn = model.drawn(pictures, targets, pixels)
        model.train()
        return reconstruction_sheet(pictures, masked, drawn, pixels)

    def _show_batch(self) -> None:
        if self.recipe.dino is None:
            super()._show_batch()
            return
        loader, preprocessing, _ = self.feeding.loader(0)
        batch = next(iter(loader.batches(0, 1))).to("cpu")
        crops_sheet(batch, preprocessing).save(self.run.folder / "augmented.png")

    def _whole(self, state: dict[str, Tensor]) -> ViT:
        """The encoder alone; where there is a teacher, the teacher's."""
        config, prefix = self.classifier.model.config, ""
        if self.recipe.dino is not None:
            dynamic = bool(self.recipe.architecture.get("dynamic_img_size", False))
            config, prefix = config.replace(dynamic_img_size=dynamic), "teacher."
        with torch.device("meta"):
            whole = ViT(config)  # type: ignore[arg-type]
        whole.load_state_dict({name: state[prefix + name] for name in whole.state_dict()}, assign=True)
        return whole

    def _final_scores(self) -> Scores | None:
        return None

    def _headline(self, scores: Scores | None) -> dict[str, Any]:
        history = History.of(read_log(self.run.folder))
        row = history.best or (history.evaluations[-1] if history.evaluations else {})
        return {name: row[name] for name in ("loss", "knn") if name in row}
