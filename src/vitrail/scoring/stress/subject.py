"""A model under stress: its pictures, read once, and what it answers when they are changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.classifier import Classifier
from vitrail.data.batch import Bad, Batch
from vitrail.data.loading import EvaluationLoader
from vitrail.data.source import Subset
from vitrail.errors import DataError
from vitrail.figures.watching import at_rest
from vitrail.model.fields import Pair
from vitrail.model.vit import ViT
from vitrail.scoring.evaluation import Judged
from vitrail.scoring.metrics import Tally
from vitrail.scoring.stress.dice import Dice
from vitrail.scoring.stress.plan import Trial

_KEPT = 2 * 2**30  # bytes of pixels that stay in memory; more are read anew for each trial


@dataclass(frozen=True)
class Outcome:
    """What came of one trial."""

    right: int
    pictures: int
    loss: float  # mean cross-entropy

    @property
    def accuracy(self) -> float:
        return self.right / self.pictures


@dataclass(frozen=True)
class Seen:
    """Some pictures where they are changed: where the model is, if it can be done there."""

    samples: Tensor  # (n,): places in the subset
    rows: Tensor  # (n,): rows of the source, on which random numbers depend
    pixels: Tensor  # (n, channels, height, width), uint8
    inputs: Tensor  # normalised
    labels: Tensor  # (n,): outputs of the model
    valid: Tensor  # (n,): false for what could not be read

    def dice(self, trial: Trial) -> Dice:
        return Dice(self.rows, trial.seed, trial.test)


@dataclass
class Subject:
    """A model with the pictures that it is judged on."""

    name: str
    classifier: Classifier
    judged: Judged
    batch_size: int
    workers: int | None = None
    bad: list[Bad] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = next(self.classifier.model.parameters()).device
        # where pictures are changed: random numbers are float64, which Apple's GPUs do not have
        self.desk = torch.device("cpu") if self.device.type == "mps" else self.device
        self.dtype = next(self.classifier.model.parameters()).dtype
        self.size = min(self.batch_size, len(self.subset))
        self._batches: list[Batch] | None = None

    @property
    def subset(self) -> Subset:
        return self.judged.subset

    @property
    def picture_size(self) -> Pair:
        return self.classifier.preprocessing.size

    @property
    def own_grid(self) -> Pair | None:
        """Of the patches in the sequence; a ResNet has none."""
        model = self.classifier.model
        return model.config.grid_of(self.picture_size) if isinstance(model, ViT) else None

    def __len__(self) -> int:
        """Batches of one trial."""
        return -(-len(self.subset) // self.size)

    def normalised(self, pixels: Tensor) -> Tensor:
        """What the model takes, from uint8."""
        return (pixels.float() / 255 - self.mean) / self.std

    @cached_property
    def mean(self) -> Tensor:
        return torch.tensor(self.classifier.preprocessing.mean, device=self.desk).view(-1, 1, 1)

    @cached_property
    def std(self) -> Tensor:
        return torch.tensor(self.classifier.preprocessing.std, device=self.desk).view(-1, 1, 1)

    def seen(self) -> Iterator[Seen]:
        rows = torch.from_numpy(self.subset.rows)
        outputs = torch.from_numpy(self.judged.outputs)
        for stored in self._stored():
            batch = stored.to(self.desk)
            samples = stored.samples
            labels = outputs[stored.labels].to(self.desk)
            assert batch.valid is not None
            inputs = batch.inputs(self.classifier.preprocessing)
            yield Seen(samples, rows[samples].to(self.desk), batch.pixels, inputs, labels, batch.valid)

    def _stored(self) -> Iterator[Batch]:
        if self._batches is not None:
            yield from self._batches
            return
        preprocessing, found = self.classifier.preprocessing, []
        room = len(self.subset) * preprocessing.channels * self.picture_size[0] * self.picture_size[1]
        bad: list[Bad] = []
        for batch in EvaluationLoader(self.subset, preprocessing, batch_size=self.size, workers=self.workers):
            bad += batch.bad
            if room <= _KEPT:
                found.append(batch.clone())  # out of the memory that workers share
            yield batch
        self.bad = bad
        self._batches = found if room <= _KEPT else None

    def logits(self, inputs: Tensor, keep: Tensor | None = None) -> Tensor:
        """A last batch is filled up, as `evaluate` does, so that without a change the answers are those to the bit."""
        missing = self.size - len(inputs)
        inputs = F.pad(inputs.to(self.device, self.dtype), (0, 0, 0, 0, 0, 0, 0, missing))
        model = self.classifier.model
        if keep is None:
            return model(inputs)[: self.size - missing]
        return model(inputs, keep=F.pad(keep.to(self.device), (0, 0, 0, missing)))[: self.size - missing]

    def run(self, answer: Callable[[Seen], Tensor], done: Callable[[], None]) -> Outcome:
        """All pictures once. `answer` gives the logits of some; `done` is called after each batch."""
        tally = Tally(len(self.judged.class_names))
        with at_rest(self.classifier.model), torch.no_grad():
            for seen in self.seen():
                tally.add(answer(seen), seen.labels, seen.valid, seen.samples)
                done()
        state = tally.state()
        if not len(state.get("samples", ())):
            raise DataError(f"none of the {len(self.subset):,} pictures of {self.subset.source.name} can be read")
        right = int((state["answer"] == state["label"]).sum())
        return Outcome(right, len(state["samples"]), float(state["loss"].numpy().mean()))

    def table(self, make: Callable[[Seen], Tensor]) -> Tensor:
        """A row for each picture, on the CPU, by its place in the subset."""
        rows: Tensor | None = None
        with at_rest(self.classifier.model), torch.no_grad():
            for seen in self.seen():
                some = make(seen).cpu()
                if rows is None:
                    rows = some.new_zeros(len(self.subset), *some.shape[1:])
                rows[seen.samples] = some
        assert rows is not None
        return rows


def limited(subset: Subset, pictures: int) -> Subset:
    """So many of the pictures, drawn by their rows: a larger number has all of a smaller one."""
    if len(subset) <= pictures:
        return subset
    place = Dice(torch.from_numpy(subset.rows), 0, "pictures").uniform(1)[:, 0].numpy()
    chosen = np.sort(np.argsort(place, kind="stable")[:pictures])
    return Subset(subset.source, subset.name, subset.rows[chosen])
