"""Where the head looks: attention of every layer and head, and attention rollout (Abnar and Zuidema, 2020), which is
how the paper made its figure 6."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from vitrail.figures.watching import at_rest, chunks, need_vit, readers, to_grid
from vitrail.model.attention import Seen
from vitrail.model.vit import ViT

Layers = int | Sequence[int] | Literal["all"]


@torch.no_grad()
def attention_maps(model: ViT, pixels: Tensor, layers: Layers = "all") -> Tensor:
    """How much the head's tokens look at each patch, in each of the layers and heads: (batch, layers, heads, rows,
    columns). Of a mean-pooled model: how much each patch is looked at by all patches, in the mean."""
    wanted = need_vit(model, "attention").block_numbers(layers)
    found = []
    with at_rest(model):
        for chunk in chunks(model, pixels, backward=False):
            share = readers(model, chunk)[:, None, None]  # (1 or batch, 1, 1, tokens)
            rows: dict[int, Tensor] = {}
            model(chunk, watch={block: partial(_read, rows, block, share) for block in wanted})
            found.append(to_grid(model, torch.stack([rows[block] for block in wanted], dim=1), chunk))
    return torch.cat(found)


def _read(rows: dict[int, Tensor], block: int, share: Tensor, seen: Seen) -> None:
    rows[block] = (share @ seen.weights())[:, :, 0]  # (batch, heads, tokens)


def rollout(model: ViT, pixels: Tensor) -> Tensor:
    """How much of each patch arrives at the head by attention through all layers: (batch, rows, columns)."""
    maps = rollout_by_layer(model, pixels)
    levels = list(model.config.levels) or [-1]
    return maps[:, levels].mean(dim=1)


@torch.no_grad()
def rollout_by_layer(model: ViT, pixels: Tensor) -> Tensor:
    """The same for the first layer, the first two, … up to all of them: (batch, depth, rows, columns).

    Each layer mixes the tokens by half its attention weights, the mean over heads, and half the identity, for the
    residual connection; so every row of the product adds up to one.
    """
    need_vit(model, "rollout")
    found = []
    with at_rest(model):
        for chunk in chunks(model, pixels, backward=False):
            rolling = _Rolling(readers(model, chunk)[:, None])
            model(chunk, watch=dict.fromkeys(range(model.config.depth), rolling.mix))
            found.append(to_grid(model, torch.stack(rolling.rows, dim=1), chunk))
    return torch.cat(found)


class _Rolling:
    """The product of the layers that were seen, and what the head's tokens have of it after each."""

    def __init__(self, share: Tensor) -> None:
        self.share = share  # (1 or batch, 1, tokens)
        self.product: Tensor | None = None  # (batch, tokens, tokens)
        self.rows: list[Tensor] = []

    def mix(self, seen: Seen) -> None:
        mixing = seen.weights().mean(dim=1).mul_(0.5)
        mixing.diagonal(dim1=1, dim2=2).add_(0.5)
        self.product = mixing if self.product is None else mixing @ self.product
        self.rows.append((self.share @ self.product)[:, 0])
