"""What a model's thread computes: logits and features by an engine; what needs the model itself, by torch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.classifier import Classifier, load
from vitrail.model.devices import choose_device
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT
from vitrail.serving.looking import Look, Looked, look
from vitrail.serving.refusals import bad
from vitrail.serving.settings import Settings
from vitrail.shipping.engines import Engine, choose, open_engine

_EXPORTED = (".onnx", ".xml", ".pt2")
_ATTENDED = 4  # pictures whose attention is computed together: it takes far more memory than logits

Pixels = NDArray[np.uint8]  # (height, width, channels)


@dataclass(frozen=True)
class Plain:
    """Logits and features of pixels."""


@dataclass(frozen=True)
class FromValues:
    """The same of what the model itself takes: float32 (channels, height, width), normalised by the client."""


@dataclass(frozen=True)
class Seen:
    """The same with only some panes in the sequence: (pixels, which panes are seen)."""


@dataclass(frozen=True)
class Result:
    """What a model says of one picture."""

    logits: NDArray[np.float32]
    scores: NDArray[np.float64]  # softmax of the logits
    features: NDArray[np.float32]
    finite: bool
    looked: Looked | None = None


class Loaded:
    """A model that is ready to compute, of one loading of its files. Called by its batcher's thread alone."""

    def __init__(self, source: str | Path | Classifier, settings: Settings) -> None:
        self._batch_size = settings.batch_size
        self.classifier: Classifier | None = None
        self.engine: Engine
        if isinstance(source, str | Path) and Path(source).suffix in _EXPORTED:
            self.engine = open_engine(source)
        else:
            self.classifier = _classifier(source, settings)
            self.engine = choose(self.classifier, settings.engine)
        self.preprocessing, self.classes = self.engine.preprocessing, self.engine.classes
        self.width = 0  # of the features
        self._warm_up()

    def _warm_up(self) -> None:
        """The first pass of a size is slow: it is done before anybody waits for it."""
        for count in sorted({1, self._batch_size}):
            pixels = np.zeros((count, *self.preprocessing.size, self.preprocessing.channels), np.uint8)
            self.width = self.engine.both(pixels)[1].shape[1]

    @property
    def model(self) -> ViT | ResNet | None:
        return None if self.classifier is None else self.classifier.model

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of panes; of a ResNet, of its last feature map."""
        if isinstance(self.model, ViT):
            return self.model.config.grid
        return None if self.model is None else self.model.config.feature_size(self.model.config.img_size)

    def largest(self, task: Hashable) -> int:
        return min(_ATTENDED, self._batch_size) if isinstance(task, Look) else self._batch_size

    def __call__(self, task: Hashable, contents: Sequence[Any]) -> Sequence[Result]:
        if isinstance(task, Plain):
            return _rows(*self.engine.both(np.stack(contents)))
        model = self._vit()
        if isinstance(task, Look):
            assert self.classifier is not None
            found = look(self.classifier, task, contents)
            rows = _rows(np.stack([logits for logits, _ in found]))
            return [replace(row, looked=looked) for row, (_, looked) in zip(rows, found, strict=True)]
        if isinstance(task, Seen):
            values = torch.from_numpy(self.preprocessing.normalise(np.stack([pixels for pixels, _ in contents])))
            return self._masked(model, values, torch.from_numpy(np.stack([seen for _, seen in contents])))
        return self._masked(model, torch.from_numpy(np.stack(contents)), None)

    def _vit(self) -> ViT | ResNet:
        if self.model is None:
            raise bad("this server has an exported file, without the model itself: it gives logits and features alone")
        return self.model

    def _masked(self, model: ViT | ResNet, values: torch.Tensor, seen: torch.Tensor | None) -> list[Result]:
        weight = next(model.parameters())
        values = values.to(weight.device, weight.dtype)
        with torch.inference_mode():
            if isinstance(model, ViT):
                mask = None if seen is None else seen.to(weight.device)
                tokens = model.forward_features(values, mask=mask)
                logits = model.forward_head(tokens, mask)
            else:
                logits = model(values)
        return _rows(logits.float().cpu().numpy())

    def close(self) -> None:
        self.engine.close()


def _classifier(source: str | Path | Classifier, settings: Settings) -> Classifier:
    if isinstance(source, Classifier):
        classifier = source
    else:
        classifier = load(source, **({} if settings.img_size is None else {"img_size": settings.img_size}))
    classifier.model.eval()
    return classifier.to(choose_device(settings.device))


def _rows(logits: NDArray[np.float32], features: NDArray[np.float32] | None = None) -> list[Result]:
    """Of each picture; here, since whole batches are quick, and the event loop has no time to lose."""
    if features is None:
        features = np.empty((len(logits), 0), np.float32)
    scores, finite = softmax(logits), [bool(row.all()) for row in np.isfinite(logits)]
    return [Result(*row) for row in zip(logits, scores, features, finite, strict=True)]


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):  # what is not finite is told elsewhere
        values = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True, initial=-np.inf))
        return values / values.sum(axis=-1, keepdims=True)
