"""How good the file is: labelled pictures through PyTorch and through it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitrail.classifier import Classifier
from vitrail.errors import DataError
from vitrail.scoring.matching import UNKNOWN, match_classes
from vitrail.shipping.engines import Floats, TorchEngine, open_engine
from vitrail.shipping.export_pixels import Pictures, batches
from vitrail.shipping.export_report import Accuracy


def score(
    classifier: Classifier, file: Path, pictures: Pictures, progress: Callable[[str, int, int], None] | None = None
) -> Accuracy | None:
    """Top-1 and top-5 of both on what is to be scored; nothing where the pictures have no labels, or several each."""
    subset = pictures.scored
    if subset.source.samples.multi_label or not subset.counts().any():
        return None
    outputs = match_classes(subset.classes, classifier.classes)
    wanted: list[Floats] = []
    made: list[Floats] = []
    truth = []
    with TorchEngine(classifier) as reference, open_engine(file) as engine:
        done = 0
        for pixels, labels in batches(subset, classifier.preprocessing):
            known = (labels >= 0) & (outputs[labels] != UNKNOWN)
            done += len(labels)
            if known.any():
                wanted.append(reference.run(pixels[known]))
                made.append(engine.run(pixels[known]))
                truth.append(outputs[labels[known]])
            if progress is not None:
                progress("scored", done, len(subset))
    if not truth:
        raise DataError(f"the model knows no class of {subset.source.name}: nothing can be scored")
    labels, exact, near = np.concatenate(truth), np.concatenate(wanted), np.concatenate(made)
    return Accuracy(
        data=subset.source.name,
        pictures=len(labels),
        float_top1=_top(exact, labels, 1),
        float_top5=_top(exact, labels, 5),
        top1=_top(near, labels, 1),
        top5=_top(near, labels, 5),
        agreement=float((exact.argmax(axis=1) == near.argmax(axis=1)).mean()),
        calibrated_on_them=bool(np.isin(subset.rows, pictures.calibration.rows).any()),
    )


def _top(logits: Floats, labels: np.ndarray, count: int) -> float:
    """The part of the pictures whose class is among the best; of equal logits the lower class goes first."""
    best = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    return float((best == labels[:, None]).any(axis=1).mean())
