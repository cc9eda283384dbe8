"""What a prediction rests on: patches go, or come, in the order of a map, and the class's probability is watched
(Petsiuk et al., 2018). A good map takes it away soon (deletion) and brings it back soon (insertion)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.figures.watching import Target, at_rest, place, targets
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT


@dataclass(frozen=True)
class Curves:
    """The probability of a class along the way; areas are of trapezoids, so from 0 to 1."""

    fractions: Tensor  # of patches that went (deletion) or came (insertion), from 0 to 1: (steps + 1,)
    deletion: Tensor  # (batch, steps + 1)
    insertion: Tensor  # (batch, steps + 1)
    classes: Tensor  # which class it is: (batch,)

    @property
    def deletion_area(self) -> Tensor:
        """Less is better: (batch,)."""
        return torch.trapezoid(self.deletion, self.fractions)

    @property
    def insertion_area(self) -> Tensor:
        """More is better: (batch,)."""
        return torch.trapezoid(self.insertion, self.fractions)


@torch.no_grad()
def removal_curves(
    model: ViT | ResNet, pixels: Tensor, maps: Tensor, target: Target = None, *, steps: int = 20, batch_size: int = 16
) -> Curves:
    """Deletion and insertion by the order of `maps`, (batch, rows, columns), the largest first. What is removed has
    the colour of the mean: zero, as the model reads pixels."""
    chosen = targets(model, target, len(pixels))
    if maps.ndim != 3 or len(maps) != len(pixels):
        raise VitrailError(f"maps must be (batch, rows, columns) for {len(pixels)} pictures, not {tuple(maps.shape)}")
    if steps < 1 or batch_size < 1:
        raise VitrailError("steps and batch_size must be at least 1")
    count = maps[0].numel()
    removed = torch.arange(steps + 1) * count // steps  # patches, at each step
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1).reshape(maps.shape)  # 0: the most salient
    rows: list[tuple[Tensor, Tensor]] = []
    with at_rest(model):
        pixels = place(model, pixels)
        if chosen is None:
            parts = (pixels[start : start + batch_size] for start in range(0, len(pixels), batch_size))
            chosen = torch.cat([model(part).argmax(dim=-1) for part in parts])
        for picture, ranks, index in zip(pixels, rank.to(pixels.device), chosen.tolist(), strict=True):
            gone = ranks[None] < removed.to(ranks)[:, None, None]  # (steps + 1, rows, columns)
            both = torch.cat([~gone, gone])  # what stays: all but the first patches, then they alone
            scores = [
                _shown(model, picture, both[start : start + batch_size]).float().softmax(dim=-1)[:, index]
                for start in range(0, len(both), batch_size)
            ]
            deletion, insertion = torch.cat(scores).chunk(2)
            rows.append((deletion, insertion))
    deletions, insertions = (torch.stack(part).cpu() for part in zip(*rows, strict=True))
    return Curves(removed / count, deletions, insertions, chosen.cpu())


def _shown(model: ViT | ResNet, picture: Tensor, stays: Tensor) -> Tensor:
    """Logits of the picture with only those cells of a grid that stay."""
    size = (picture.shape[-2], picture.shape[-1])
    cells = F.interpolate(stays[:, None].to(picture.dtype), size=size, mode="nearest-exact")
    return model(picture * cells)


def random_maps(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Patches in random order, to compare with."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))
