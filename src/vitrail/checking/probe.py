"""Predictions for every picture by models that have not seen it: a linear probe on a model's features, in folds."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.checking.survey import Progress, chunks_of
from vitrail.classifier import Classifier
from vitrail.data.samples import Integers, Names
from vitrail.data.source import Reader, Source
from vitrail.data.workers import in_order
from vitrail.errors import DataError
from vitrail.pictures import Preprocessing

FOLDS = 5
DECAY = 0.03  # L2 penalty on the probe's weights: strong, since some of the labels are wrong
_STEPS = 100


@dataclass(frozen=True)
class Preparer:
    """The pictures of some rows as a model reads them, in bytes."""

    reader: Reader
    names: Names
    preprocessing: Preprocessing

    def __call__(self, rows: Sequence[int]) -> NDArray[np.uint8]:
        return np.stack([self.preprocessing.pixels(readable) for readable in self.reader.read_many(rows)])

    def lost(self, row: int) -> NDArray[np.uint8]:
        raise DataError(f"{self.names[row]} could be read once and not again: is something changing the data?")


def features(
    source: Source,
    rows: Integers,
    classifier: Classifier,
    *,
    device: str,
    batch_size: int,
    workers: int,
    progress: Progress,
) -> NDArray[np.float32]:
    """What the model makes of each picture before its head: (rows, width)."""
    net = copy.deepcopy(classifier.model).to(device).eval()
    net.reset_head(0)
    pixels = classifier.preprocessing
    dtype = next(net.parameters()).dtype
    place = np.empty(len(source), np.int64)
    place[rows] = np.arange(len(rows))
    found: NDArray[np.float32] | None = None
    done = 0
    chunks = chunks_of(source, rows, batch_size)
    preparer = Preparer(source.reader, source.samples.names, pixels)
    with torch.inference_mode(), closing(in_order(preparer, chunks, workers)) as batches:
        for chunk, batch in batches:
            values = torch.from_numpy(pixels.normalise(batch)).to(device, dtype)
            vectors = net(values).float().cpu().numpy()
            if found is None:
                found = np.empty((len(rows), vectors.shape[1]), np.float32)
            found[place[list(chunk)]] = vectors
            done += len(chunk)
            progress("features", done, len(rows))
    return np.empty((0, 0), np.float32) if found is None else found


def folds_of(names: Sequence[str], labels: NDArray[np.integer], groups: Integers, seed: int) -> Integers:
    """A fold for each picture: every class is spread evenly, and pictures of one group are together, so that they
    cannot vouch for one another. It depends on the names and the seed alone, not on the order of the rows."""
    first: dict[int, int] = {}
    for row in sorted(range(len(names)), key=names.__getitem__):
        first.setdefault(int(groups[row]), row)
    ordered = sorted(first.items(), key=lambda item: (int(labels[item[1]]), _draw(names[item[1]], seed)))
    fold = {group: place % FOLDS for place, (group, _) in enumerate(ordered)}
    return np.array([fold[int(group)] for group in groups], np.int64)


def held_out_probabilities(
    vectors: NDArray[np.float32],
    labels: NDArray[np.integer],
    folds: Integers,
    classes: int,
    *,
    device: str,
    progress: Progress,
) -> NDArray[np.float32]:
    """For each picture the class probabilities of a probe that was fitted on the other folds."""
    points = torch.from_numpy(vectors).to(device)
    targets = torch.from_numpy(labels.astype(np.int64)).to(device)
    where = torch.from_numpy(folds).to(device)
    found = torch.empty(len(points), classes, device=device)
    for fold in range(FOLDS):
        seen, held = where != fold, where == fold
        mean, std = points[seen].mean(dim=0), points[seen].std(dim=0).clamp(min=1e-6)
        scaled = (points - mean) / std
        weight, bias = fit(scaled[seen], targets[seen], classes)
        found[held] = F.linear(scaled[held], weight, bias).softmax(dim=1)
        progress("probing", fold + 1, FOLDS)
    return found.cpu().numpy()


def fit(points: Tensor, targets: Tensor, classes: int, decay: float = DECAY) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression: the weight and bias that minimise the mean cross-entropy plus
    decay / 2 * |weight|²."""
    weight = torch.zeros(classes, points.shape[1], device=points.device, requires_grad=True)
    bias = torch.zeros(classes, device=points.device, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=_STEPS, line_search_fn="strong_wolfe", tolerance_grad=1e-5)

    def loss() -> float:
        optimiser.zero_grad()
        value = F.cross_entropy(F.linear(points, weight, bias), targets) + decay / 2 * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return float(value.detach())

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


def _draw(name: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}/".encode() + os.fsencode(name), digest_size=8).digest()
