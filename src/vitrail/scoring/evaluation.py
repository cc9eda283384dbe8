"""`vitrail.evaluate`: how good a model is on data, the same number for any batch size and number of processes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from vitrail.classifier import Classifier, placed
from vitrail.data.batch import Bad, Batch
from vitrail.data.loading import EvaluationLoader
from vitrail.data.opening import open_source
from vitrail.data.samples import SPLITS, Integers
from vitrail.data.schedule import ALONE, Share
from vitrail.data.source import Source, Subset
from vitrail.errors import DataError, VitrailError
from vitrail.scoring.matching import UNKNOWN, is_imagenet, match_classes, unknown_classes
from vitrail.scoring.metrics import Tally
from vitrail.scoring.real_labels import RealLabels
from vitrail.scoring.report import Report

Progress = Callable[[int, int], None]

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def evaluate(
    model: Classifier | str | os.PathLike[str],
    data: Source | Subset | str | os.PathLike[str],
    *,
    split: str | None = None,
    batch_size: int = 64,
    device: str | torch.device | None = None,
    workers: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    flip: bool = False,
    real: str | os.PathLike[str] | None = None,
    precision: str = "fp32",
    strict: bool = False,
    ignore_unknown: bool = False,
    in_order: bool = False,
    share: Share | None = None,
    name: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Scores a model on every picture of a split, each exactly once. See `Scores` for what is measured.

    model: a classifier, or whatever `vitrail.load` takes.
    data: a source, a part of one, or whatever `vitrail.data.open_source` takes; `options` go there too.
    split: train, val, test or all; by default val if the source says one, else test, else all.
    device: by default where a given classifier is, or the fastest there is; a given classifier is moved.
    img_size: read the pictures at another size; only for a model that is loaded here.
    flip: the mean of the probabilities of each picture and its mirror image.
    real: `real.json`, ImageNet's reassessed labels.
    precision: fp32, or bf16 or fp16 by autocast; scores are computed in float64.
    strict: an unreadable picture is an error; else it is named in the report, and not scored.
    ignore_unknown: leave out pictures of classes that the model does not know; else they are an error.
    in_order: match classes to outputs by position, not by name.
    share: this process's part; by default as `torch.distributed` says, where it is initialised. All processes get the
        report of all.
    name: what the report calls the model.
    progress: called with (done, of how many) batches of this process.
    """
    if batch_size < 1 or precision not in PRECISIONS:
        raise VitrailError(f"batch_size must be at least 1, and precision one of {', '.join(PRECISIONS)}")
    share = _share(share)
    subset = chosen_subset(data, split, options)
    classifier = placed(model, img_size, device)
    if not classifier.model.config.num_classes:
        raise VitrailError("the model is an encoder without a head: probe it, or train one on it (train --from)")
    judged = judged_part(subset, classifier.classes, ignore_unknown, in_order)
    labels = None if real is None else RealLabels(real)
    if labels is not None:
        if not is_imagenet(classifier.classes) or judged.multi_label:
            raise DataError("ReaL labels are ImageNet's: the model must have its 1,000 classes")
        labels.check(judged.subset)
    runner = _Runner(classifier, judged, precision, flip)
    tally, bad = runner.run(batch_size, workers, share, strict, progress)
    scores = tally.result(judged.class_names)
    return Report(
        model=name or (repr(model) if isinstance(model, Classifier) else os.fspath(model)),
        data=subset.source.name,
        split=subset.name,
        scores=scores,
        mistaken=tuple(judged.subset.name_of(mistake.sample) for mistake in scores.mistakes),
        skipped=tuple(bad),
        unlabelled=judged.unlabelled,
        ignored=judged.ignored,
        real=None if labels is None else labels.score(judged.subset, *tally.answers()),
        preprocessing=classifier.preprocessing.describe(),
        precision=precision,
        flip=flip,
    )


def _share(share: Share | None) -> Share:
    together = dist.is_available() and dist.is_initialized()
    world = Share(dist.get_rank(), dist.get_world_size()) if together else ALONE
    if share is None:
        return world
    if share.world != world.world:
        raise VitrailError(f"a share of {share.world} needs as many processes in torch.distributed, not {world.world}")
    return share


def chosen_subset(data: Source | Subset | str | os.PathLike[str], split: str | None, options: dict[str, Any]) -> Subset:
    """The pictures that are meant: val if the source says one, else test, else all, unless a split is named."""
    if isinstance(data, Subset):
        if split is not None:
            raise DataError("a part of a source was given, which has no splits of its own: leave split out")
        return data
    source = data if isinstance(data, Source) else open_source(data, **options)
    if split is None:
        there = [name for name in ("val", "test") if len(source.said(name))]
        split = there[0] if there else "all"
    if split not in (*SPLITS, "all"):
        raise DataError(f"{split!r} is no split: choose one of {', '.join(SPLITS)}, all")
    subset = source.all() if split == "all" else source.said(split)
    if not len(subset):
        said = [name for name in SPLITS if len(source.said(name))]
        raise DataError(f"{source.name} has no pictures in {split}: it has {', '.join([*said, 'all'])}")
    return subset


class Judged(NamedTuple):
    """What is scored: pictures with a label that the model knows."""

    subset: Subset
    outputs: Integers  # for each class of the data, the model's; -1 where it has none
    class_names: list[str]  # of the classes that are scored
    multi_label: bool
    unlabelled: int
    ignored: dict[str, int]  # pictures of classes that the model does not know


def judged_part(subset: Subset, model: list[str], ignore_unknown: bool, in_order: bool) -> Judged:
    """The pictures of a subset that can be scored by a model with these classes."""
    samples, counts = subset.source.samples, subset.counts()
    if not counts.any():
        raise DataError(f"{subset.name} of {subset.source.name} has no labels: it cannot be scored")
    outputs = match_classes(subset.classes, model, in_order=in_order)
    unknown = [k for k in np.flatnonzero(outputs == UNKNOWN).tolist() if counts[k]]
    ignored = {subset.classes[k]: int(counts[k]) for k in unknown}
    if unknown and not ignore_unknown:
        raise DataError(unknown_classes(list(ignored), subset.classes, model))
    if len(unknown) == np.count_nonzero(counts):
        raise DataError(f"the model knows no class of {subset.source.name}: nothing can be scored")
    if samples.multi_label:
        # outputs of which the data says nothing are not judged
        names = [model[output] for output in outputs if output != UNKNOWN]
        return Judged(subset, outputs, names, True, 0, ignored)
    labels = subset.labels
    labelled = labels >= 0
    known = labelled & (outputs[labels] != UNKNOWN)
    kept = Subset(subset.source, subset.name, subset.rows[known])
    return Judged(kept, outputs, model, False, int(len(labels) - labelled.sum()), ignored)


class _Runner:
    """The model over a subset."""

    def __init__(self, classifier: Classifier, judged: Judged, precision: str, flip: bool) -> None:
        self.classifier = classifier
        self.judged = judged
        self.device = next(classifier.model.parameters()).device
        self.precision = PRECISIONS[precision]
        self.flip = flip
        self.outputs = torch.from_numpy(judged.outputs).to(self.device)
        known = np.flatnonzero(judged.outputs != UNKNOWN)
        self.columns = torch.from_numpy(known).to(self.device)  # of the data's targets

    def run(
        self, batch_size: int, workers: int | None, share: Share, strict: bool, progress: Progress | None
    ) -> tuple[Tally, list[Bad]]:
        judged, model = self.judged, self.classifier.model
        size = min(batch_size, len(judged.subset))
        loader = EvaluationLoader(
            judged.subset,
            self.classifier.preprocessing,
            batch_size=size,
            workers=workers,
            share=share,
            strict=strict,
            pin_memory=self.device.type == "cuda",
        )
        tally = Tally(len(judged.class_names), judged.multi_label)
        bad: list[Bad] = []
        trouble: VitrailError | None = None
        was_training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                for number, batch in enumerate(loader, 1):
                    self._add(tally, batch.to(self.device), size)
                    bad += batch.bad
                    if progress is not None:
                        progress(number, len(loader))
        except VitrailError as error:
            trouble = error
        finally:
            model.train(was_training)
        if share.world > 1:
            tally, bad, trouble = _together(tally, bad, trouble)
        if trouble is not None:
            raise trouble
        return tally, bad

    def _add(self, tally: Tally, batch: Batch, size: int) -> None:
        inputs = batch.inputs(self.classifier.preprocessing)
        # a last batch is filled up: another shape may mean other kernels, and so other last bits
        logits = self._logits(pad(inputs, (0, 0, 0, 0, 0, 0, 0, size - len(inputs))))[: len(inputs)]
        if self.judged.multi_label:
            logits, labels = logits[:, self.outputs[self.columns].to(logits.device)], batch.labels[:, self.columns]
        else:
            labels = self.outputs[batch.labels]
        tally.add(logits, labels, batch.valid, batch.samples)

    def _logits(self, inputs: Tensor) -> Tensor:
        model = self.classifier.model
        inputs = inputs.to(next(model.parameters()).dtype)
        context: AbstractContextManager[Any] = nullcontext()
        if self.precision is not None:
            context = torch.autocast(self.device.type, dtype=self.precision)
        with context:
            one: Tensor = model(inputs)
            other: Tensor | None = model(inputs.flip(-1)) if self.flip else None
        return one if other is None else mean_of_probabilities(one, other, self.judged.multi_label)


def mean_of_probabilities(one: Tensor, other: Tensor, multi_label: bool) -> Tensor:
    """Logits, in float64, whose probabilities are the mean of those of two."""
    one, other = (t.double() if t.device.type != "mps" else t.cpu().double() for t in (one, other))
    if not multi_label:
        return torch.logaddexp(one.log_softmax(dim=1), other.log_softmax(dim=1)) - math.log(2)
    yes = torch.logaddexp(logsigmoid(one), logsigmoid(other))
    return yes - torch.logaddexp(logsigmoid(-one), logsigmoid(-other))


def _together(
    tally: Tally, bad: list[Bad], trouble: VitrailError | None
) -> tuple[Tally, list[Bad], VitrailError | None]:
    """What all processes have found. The trouble of one is that of all, so that none waits for it in vain."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (tally.state(), [tuple(one) for one in bad], trouble and str(trouble)))
    states, lists, troubles = zip(*parts, strict=True)
    words = next((words for words in troubles if words is not None), None)
    everyones = [Bad(*one) for part in lists for one in part]
    return Tally.joined(states), everyones, None if words is None else VitrailError(words)
