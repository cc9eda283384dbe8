"""A picture as a window of panes: some are blanked, taken out of the sequence, or change places."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.figures.methods import saliency
from vitrail.model.fields import Pair
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT


def dropped(order: Tensor, share: float) -> Tensor:
    """Which panes go, (n, panes), true where they do: the first of each picture's order, a share of all to the nearest
    whole number. What goes at one share goes at every larger one."""
    count = round(share * order.shape[1])
    gone = torch.zeros_like(order, dtype=torch.bool)
    return gone.scatter_(1, order[:, :count], True)


def blanked(inputs: Tensor, gone: Tensor, grid: Pair) -> Tensor:
    """Normalised pictures with panes in the colour of the mean, which is 0. Where the sides are no multiples of the
    grid, panes differ by a pixel."""
    height, width = inputs.shape[-2:]
    rows = torch.arange(height, device=inputs.device) * grid[0] // height
    columns = torch.arange(width, device=inputs.device) * grid[1] // width
    hidden = gone.view(-1, 1, *grid)[:, :, rows][..., columns]  # (n, 1, height, width)
    return inputs.masked_fill(hidden, 0)


def kept(gone: Tensor) -> Tensor:
    """Indices of the panes that stay, in their order, (n, kept): equally many for each picture."""
    return torch.argsort(gone.int(), dim=1, stable=True)[:, : int((~gone[0]).sum())]


def shuffled(pictures: Tensor, order: Tensor, grid: Pair) -> Tensor:
    """Pictures, (n, channels, height, width), whose pane k is what pane `order[:, k]` was. The grid divides
    their sides."""
    n, channels, height, width = pictures.shape
    h, w = height // grid[0], width // grid[1]
    panes = (
        pictures.view(n, channels, grid[0], h, grid[1], w).permute(0, 2, 4, 1, 3, 5).reshape(n, -1, channels * h * w)
    )
    panes = panes.gather(1, order[..., None].expand_as(panes)).view(n, *grid, channels, h, w)
    return panes.permute(0, 3, 1, 4, 2, 5).reshape(pictures.shape)


def by_saliency(model: ViT | ResNet, inputs: Tensor, grid: Pair) -> Tensor:
    """The panes of each picture, (n, panes), the one that speaks most for the predicted class first."""
    maps = saliency(model, inputs)[:, None]
    if maps.shape[-2:] != grid:
        maps = F.interpolate(maps, grid, mode="bilinear" if isinstance(model, ResNet) else "area")
    return torch.argsort(maps.flatten(1), dim=1, descending=True, stable=True)
