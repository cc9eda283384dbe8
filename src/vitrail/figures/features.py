"""What the tokens hold: principal components as colours, likeness between patches, and lengths."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.figures.watching import at_rest, chunks, need_vit, to_grid
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT


@torch.no_grad()
def patch_features(model: ViT | ResNet, pixels: Tensor, layer: int = -1) -> Tensor:
    """What the model holds of each patch after a block, under its final norm: (batch, width, rows, columns). Of a
    ResNet: its last map."""
    found = []
    if isinstance(model, ViT):
        (layer,) = model.block_numbers(layer)
    elif layer != -1:
        raise VitrailError("a ResNet has no blocks of tokens to choose from: leave out the layer")
    with at_rest(model):
        for chunk in chunks(model, pixels, backward=False):
            if isinstance(model, ViT):
                found.append(model.forward_intermediates(chunk, layer, maps=True, norm=True).tokens[layer].float())
            else:
                found.append(model.forward_features(chunk).float())
    return torch.cat(found)


@torch.no_grad()
def patch_colours(features: Tensor) -> Tensor:
    """The three strongest components of (batch, width, rows, columns) as red, green and blue from 0 to 1: (batch,
    rows, columns, 3). The pictures share them, so that like parts have like colours."""
    batch, width, rows, columns = features.shape
    flat = features.permute(0, 2, 3, 1).reshape(-1, width).double().cpu()
    flat = flat - flat.mean(dim=0)
    kept = torch.linalg.eigh(flat.T @ flat).eigenvectors.T.flip(0)[:3]  # (up to 3, width), the strongest first
    # the sign of a component is arbitrary: the largest weight is made positive, so that colours stay the same
    signs = kept.gather(1, kept.abs().argmax(dim=1, keepdim=True)).sign()
    parts = flat @ (kept * signs).T  # (patches, up to 3)
    parts = F.pad(parts, (0, 3 - parts.shape[1]))
    low, high = parts.quantile(0.01, dim=0), parts.quantile(0.99, dim=0)
    scaled = ((parts - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return scaled.reshape(batch, rows, columns, 3).float()


@torch.no_grad()
def patch_similarity(features: Tensor, patch: tuple[int, int] | None = None) -> Tensor:
    """The cosine between one patch, by row and column, and all others: (batch, rows, columns); without a patch, between
    every two: (batch, rows, columns, rows, columns)."""
    batch, _, rows, columns = features.shape
    unit = F.normalize(features.float().flatten(2), dim=1)  # (batch, width, patches)
    if patch is None:
        return (unit.transpose(1, 2) @ unit).reshape(batch, rows, columns, rows, columns)
    row, column = patch
    if not (0 <= row < rows and 0 <= column < columns):
        raise VitrailError(f"there is no patch in row {row}, column {column}: the grid is {rows} x {columns}, from 0")
    one = unit[:, None, :, row * columns + column]  # (batch, 1, width)
    return (one @ unit).reshape(batch, rows, columns)


@torch.no_grad()
def token_norms(model: ViT, pixels: Tensor) -> Tensor:
    """The length of each patch's token after each block: (batch, depth, rows, columns). A few that are many times as
    long as the others are artifacts, which registers remove (Darcet et al., 2023)."""
    need_vit(model, "norms of tokens")
    found = []
    with at_rest(model):
        for chunk in chunks(model, pixels, backward=False):
            tokens = model.forward_intermediates(chunk, "all").tokens
            lengths = torch.stack([tokens[block].float().norm(dim=-1) for block in sorted(tokens)], dim=1)
            found.append(to_grid(model, lengths, chunk))
    return torch.cat(found)
