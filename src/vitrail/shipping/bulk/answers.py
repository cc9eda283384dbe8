"""What a model says of a batch, and of a part: a few arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitrail.shipping.engines import Bytes, Engine

_DIGITS = 6  # of a score: what lies behind them is noise of the arithmetic


@dataclass(frozen=True)
class Wanted:
    """What is asked of the model for each picture."""

    top: int  # so many of the best classes; 0: none, of a model without a head
    features: bool

    def __call__(self, engine: Engine, pixels: Bytes, size: int) -> Answers:
        """Of one batch. It is filled up to `size`: another shape may mean other kernels, and so other last bits."""
        n = len(pixels)
        if n < size:
            pixels = np.concatenate([pixels, np.zeros((size - n, *pixels.shape[1:]), np.uint8)])
        if not self.features:
            return Answers(*best_classes(engine.run(pixels)[:n], self.top))
        logits, vectors = engine.both(pixels)
        return Answers(*best_classes(logits[:n], self.top), vectors[:n])


@dataclass(frozen=True)
class Answers:
    """One row for each picture; rows of pictures that could not be read mean nothing."""

    classes: NDArray[np.int32]  # (n, top), best first
    scores: NDArray[np.float64]  # (n, top), probabilities
    vectors: NDArray[np.float32] | None = None  # (n, width)
    errors: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.classes)

    @classmethod
    def joined(cls, pieces: Sequence[Answers]) -> Answers:
        errors: dict[int, str] = {}
        before = 0
        for piece in pieces:
            errors |= {before + k: error for k, error in piece.errors.items()}
            before += len(piece)
        vectors = [piece.vectors for piece in pieces if piece.vectors is not None]
        return cls(
            np.concatenate([piece.classes for piece in pieces]),
            np.concatenate([piece.scores for piece in pieces]),
            np.concatenate(vectors) if vectors else None,
            errors,
        )


def best_classes(logits: NDArray[np.float32], top: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The best classes of each row and their probabilities; of equal ones, the first."""
    n, count = logits.shape
    top = min(top, count)
    if not top:
        return np.zeros((n, 0), np.int32), np.zeros((n, 0))
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    classes = np.argpartition(-values, top - 1, axis=1)[:, :top] if top < count else np.tile(np.arange(count), (n, 1))
    classes.sort(axis=1)
    order = np.argsort(-np.take_along_axis(values, classes, axis=1), axis=1, kind="stable")
    classes = np.take_along_axis(classes, order, axis=1)
    scores = np.exp(np.take_along_axis(values, classes, axis=1)) / np.exp(values).sum(axis=1, keepdims=True)
    return classes.astype(np.int32), scores.round(_DIGITS)
