"""What the page shows of a model's thinking: attention of every layer, head and pane, rollout, and attribution."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.classifier import Classifier
from vitrail.figures import rollout, saliency
from vitrail.model.vit import ViT

MOST_BYTES = 16 * 2**20  # of attention weights in one answer, for each picture


@dataclass(frozen=True)
class Look:
    """What is wanted; each content is (pixels, class or None)."""

    weights: bool
    rollout: bool
    attribution: bool
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Looked:
    """Of one picture. Weights are uint8: a row's largest is 255 and stands for the row's `scale`."""

    layers: tuple[int, ...]
    weights: NDArray[np.uint8] | None  # (layers, heads, tokens, tokens)
    scale: NDArray[np.float32] | None  # (layers, heads, tokens)
    rollout: NDArray[np.float32] | None  # (rows, columns)
    target: int | None  # the class whose attribution it is
    attribution: NDArray[np.float32] | None  # (rows, columns)

    def to_json(self, classes: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.weights is not None and self.scale is not None:
            found["weights"] = {
                "layers": list(self.layers),
                "shape": list(self.weights.shape),
                "data": base64.b64encode(self.weights.tobytes()).decode(),
                "scale": base64.b64encode(self.scale.astype("<f4").tobytes()).decode(),
            }
        if self.rollout is not None:
            found["rollout"] = _map(self.rollout)
        if self.attribution is not None and self.target is not None:
            found["attribution"] = {
                "index": self.target,
                "label": classes[self.target],
                "values": _map(self.attribution),
            }
        return found


def most_layers(model: ViT) -> int:
    """So many layers' weights fit into one answer."""
    config = model.config
    tokens = config.num_prefix + config.grid[0] * config.grid[1]
    return min(config.depth, MOST_BYTES // (config.num_heads * tokens**2))


def look(
    classifier: Classifier, task: Look, contents: Sequence[tuple[NDArray[np.uint8], int | None]]
) -> list[tuple[NDArray[np.float32], Looked]]:
    """Logits, and what was asked for, of each picture."""
    model = classifier.model
    weight = next(model.parameters())
    values = torch.from_numpy(classifier.preprocessing.normalise(np.stack([pixels for pixels, _ in contents])))
    values = values.to(weight.device, weight.dtype)
    with torch.inference_mode():
        if isinstance(model, ViT):
            seen = model.forward_intermediates(values, attention=task.layers if task.weights else ())
            logits, attention = seen.logits.float().cpu(), [seen.attention[layer] for layer in sorted(seen.attention)]
        else:
            logits, attention = model(values).float().cpu(), []
    weights, scale = _reduced(torch.stack(attention, dim=1)) if attention else (None, None)
    rolled = rollout(model, values).float().cpu().numpy() if task.rollout and isinstance(model, ViT) else None
    targets = [
        int(row.argmax()) if wanted is None else wanted for row, (_, wanted) in zip(logits, contents, strict=True)
    ]
    speaks = saliency(model, values, target=targets).float().cpu().numpy() if task.attribution else None
    return [
        (
            logits[i].numpy(),
            Looked(
                task.layers,
                None if weights is None else weights[i],
                None if scale is None else scale[i],
                None if rolled is None else rolled[i],
                targets[i] if speaks is not None else None,
                None if speaks is None else speaks[i],
            ),
        )
        for i in range(len(contents))
    ]


def _reduced(attention: torch.Tensor) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """(pictures, layers, heads, tokens, tokens) as bytes, and the largest of each row."""
    scale = attention.amax(dim=-1)
    small = attention.mul(255).div_(scale.clamp(min=1e-12)[..., None]).round_().to(torch.uint8)
    return small.cpu().numpy(), scale.float().cpu().numpy()


def _map(values: NDArray[np.float32]) -> list[list[float]]:
    """To four digits, by rows."""
    return [[float(f"{value:.4g}") for value in row] for row in values.tolist()]
