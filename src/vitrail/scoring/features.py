"""What a model makes of pictures before its head: computed once, and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from vitrail.classifier import Classifier
from vitrail.data.batch import Bad
from vitrail.data.loading import EvaluationLoader
from vitrail.data.source import Subset
from vitrail.errors import VitrailError
from vitrail.model.vit import ViT
from vitrail.scoring.evaluation import PRECISIONS
from vitrail.scoring.feature_cache import FeatureStore, mark_of

Kind = Literal["pooled", "cls", "mean", "cls+mean"]
Progress = Callable[[int, int], None]  # pictures done, of how many

KINDS: tuple[Kind, ...] = ("pooled", "cls", "mean", "cls+mean")


@dataclass(frozen=True)
class Features:
    """A vector for each sample of a subset; of a picture that could not be read, zeros."""

    vectors: NDArray[np.float32]  # (n, width)
    valid: NDArray[np.bool_]  # (n,): False where it could not be read
    bad: tuple[Bad, ...] = ()
    kept: bool = False  # they were computed earlier


@dataclass(frozen=True)
class Extractor:
    """A model as a function from pictures to vectors.

    kind: `pooled` is what the model's own head reads, `cls` the class token after the norm, `mean` the mean of the
        patches after it, `cls+mean` both, one after the other.
    blocks: with more than 1, class tokens of so many last blocks, each after the norm (DINOv2 takes 4).
    """

    classifier: Classifier
    kind: Kind = "pooled"
    blocks: int = 1
    precision: str = "fp32"

    def __post_init__(self) -> None:
        model = self.classifier.model
        if self.kind not in KINDS or self.precision not in PRECISIONS:
            raise VitrailError(f"features are one of {', '.join(KINDS)}, and precision one of {', '.join(PRECISIONS)}")
        token = self.kind in ("cls", "cls+mean")
        if token and not (isinstance(model, ViT) and model.config.class_token):
            raise VitrailError(f"the model has no class token: take the features 'pooled' or 'mean', not {self.kind!r}")
        if isinstance(model, ViT) and model.config.levels and self.kind != "pooled":
            raise VitrailError("the model joins several blocks by itself: take the features 'pooled'")
        if self.blocks != 1 and not token:
            raise VitrailError("class tokens of several blocks are for the features 'cls' and 'cls+mean'")
        if not 1 <= self.blocks <= (model.config.depth if isinstance(model, ViT) else 1):
            raise VitrailError(f"there are no {self.blocks} last blocks: the model has fewer")

    def describe(self) -> str:
        return self.kind if self.blocks == 1 else f"{self.kind} of {self.blocks} blocks"

    def __call__(self, pictures: Tensor) -> Tensor:
        """(batch, width), float32, where the model is."""
        context: AbstractContextManager[Any] = nullcontext()
        if (dtype := PRECISIONS[self.precision]) is not None:
            context = torch.autocast(pictures.device.type, dtype=dtype)
        with context:
            return self._vectors(pictures).float()

    def _vectors(self, pictures: Tensor) -> Tensor:
        model = self.classifier.model
        if self.kind == "pooled" or not isinstance(model, ViT):
            with headless(model):
                return model(pictures)
        depth = model.config.depth
        seen = model.forward_intermediates(pictures, range(depth - self.blocks, depth), norm=True).tokens
        last = seen[depth - 1]
        parts = [seen[i][:, 0] for i in sorted(seen)] if self.kind != "mean" else []
        if self.kind != "cls":
            parts.append(last[:, model.config.num_prefix :].mean(dim=1))
        return torch.cat(parts, dim=1)


@contextmanager
def headless(model: nn.Module) -> Iterator[None]:
    """As long as it lasts, the model gives what its head would read."""
    owner: Any = model if isinstance(model, ViT) else model.head
    name = "head" if isinstance(model, ViT) else "fc"
    head, other = getattr(owner, name), getattr(model, "head_dist", None)
    setattr(owner, name, nn.Identity())
    if other is not None:
        setattr(model, "head_dist", None)  # noqa: B010
    try:
        yield
    finally:
        setattr(owner, name, head)
        if other is not None:
            setattr(model, "head_dist", other)  # noqa: B010


def extract(
    subset: Subset,
    extractor: Extractor,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    cache: Path | bool = True,
    progress: Progress | None = None,
) -> Features:
    """The features of every sample of a subset, in its order.

    They are kept under a name that changes with the weights, the pictures and the preprocessing, and found there the
    next time; `cache` is the folder, or False. Sources that cannot tell whether a picture changed are not kept.
    """
    store = FeatureStore(cache if isinstance(cache, Path) else None) if cache is not False else None
    mark = None
    if store is not None:
        about = {"kind": extractor.kind, "blocks": extractor.blocks, "precision": extractor.precision}
        with headless(extractor.classifier.model):
            mark = mark_of(subset, extractor.classifier, about)
        if mark is not None and (found := store.read(mark)) is not None:
            return Features(*found, kept=True)
    made = _compute(subset, extractor, batch_size, workers, progress)
    if store is not None and mark is not None:
        store.write(mark, made.vectors, made.valid, made.bad)
    return made


def _compute(
    subset: Subset, extractor: Extractor, batch_size: int, workers: int | None, progress: Progress | None
) -> Features:
    model, preprocessing = extractor.classifier.model, extractor.classifier.preprocessing
    weight = next(model.parameters())
    size = min(batch_size, max(1, len(subset)))
    pin = weight.device.type == "cuda"
    loader = EvaluationLoader(subset, preprocessing, batch_size=size, workers=workers, pin_memory=pin)
    vectors, valid, bad = np.zeros((len(subset), 0), np.float32), np.zeros(len(subset), bool), []
    was_training, done = model.training, 0
    model.eval()
    try:
        with torch.inference_mode():
            for batch in loader:
                inputs = batch.to(weight.device).inputs(preprocessing).to(weight.dtype)
                # a last batch is filled up: another shape may mean other kernels, and so other last bits
                made = extractor(pad(inputs, (0, 0, 0, 0, 0, 0, 0, size - len(inputs))))[: len(inputs)].cpu().numpy()
                if not vectors.size:
                    vectors = np.zeros((len(subset), made.shape[1]), np.float32)
                assert batch.valid is not None
                at, good = batch.samples.numpy(), batch.valid.numpy()
                vectors[at[good]], valid[at] = made[good], good
                bad += batch.bad
                done += len(at)
                if progress is not None:
                    progress(done, len(subset))
    finally:
        model.train(was_training)
    return Features(vectors, valid, tuple(bad))
