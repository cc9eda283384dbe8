"""What can be seen without asking for a class: filters, positions, and how far heads look (figure 7 of the paper)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.figures.watching import at_rest, chunks, need_vit
from vitrail.model.attention import RelativeBias, Seen
from vitrail.model.positions import relative_index, rotations
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT


class Components(NamedTuple):
    """Principal components, the strongest first."""

    filters: Tensor  # (count, channels, height, width), each of length one
    share: Tensor  # of the variance of all filters that each explains: (count,)


@torch.no_grad()
def filter_components(model: ViT | ResNet, count: int = 28) -> Components:
    """Principal components of the filters that read pixels: the patch projection, or the first convolution of what
    stands before it."""
    weight = _first_filters(model).float().cpu()  # (filters, channels, height, width)
    flat = weight.flatten(1).double()
    _, strength, directions = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    share = strength**2 / (strength**2).sum().clamp(min=torch.finfo(torch.float64).tiny)
    kept = min(count, len(share))
    shape = (kept, *weight.shape[1:])
    return Components(directions[:kept].reshape(shape).float(), share[:kept].float())


def _first_filters(model: ViT | ResNet) -> Tensor:
    if isinstance(model, ViT) and model.patch_embed.backbone is None:
        return model.patch_embed.proj.weight
    before = model if isinstance(model, ResNet) else model.patch_embed.backbone
    assert before is not None
    return next(module.weight for module in before.modules() if isinstance(module, nn.Conv2d))


@torch.no_grad()
def position_similarity(model: ViT) -> dict[str, Tensor]:
    """For each kind of position that the model has, how alike two places are: (rows, columns, rows, columns).

    "learned" or "fixed": the cosine of two position embeddings. "rope": the cosine of a vector's turns at two places,
    all its frequencies weighing alike. "bias": what is added to the attention between them, the mean over heads and
    blocks, which has no bound.
    """
    config, grid = need_vit(model, "positions").config, model.config.grid
    found: dict[str, Tensor] = {}
    table = model.position_table(grid)
    if table is not None:
        vectors = table[0, config.num_positioned :].float()
        found["learned" if config.positions.startswith("learned") else "fixed"] = _cosines(vectors)
    if config.rope:
        turns = rotations(grid, config.key_dim, config.rope_theta, 0, torch.device("cpu"))  # (2, patches, pairs)
        found["rope"] = _cosines(torch.cat([turns[0], turns[1]], dim=-1))
    if config.relative_bias:
        index = relative_index(grid, config.num_prefix > 0, config.num_prefix, torch.device("cpu"))
        modules = [module for module in model.modules() if isinstance(module, RelativeBias)]
        tables = torch.stack([module.relative_position_bias_table.float().cpu() for module in modules])
        patches = index[config.num_prefix :, config.num_prefix :]
        found["bias"] = tables.mean(dim=(0, 2))[patches]
    return {kind: values.cpu().reshape(*grid, *grid) for kind, values in found.items()}


def _cosines(vectors: Tensor) -> Tensor:
    unit = F.normalize(vectors, dim=-1)
    return unit @ unit.T


def patch_distances(model: ViT, size: tuple[int, int]) -> Tensor:
    """Pixels between the centres of every two patches of a picture of this size: (patches, patches)."""
    config = model.config
    step = [side * config.reduction for side in config.stride or config.patch_size]
    rows, columns = config.grid_of(size)
    y, x = torch.meshgrid(torch.arange(rows) * step[0], torch.arange(columns) * step[1], indexing="ij")
    centres = torch.stack([y.flatten(), x.flatten()], dim=-1).double()
    return (centres[:, None] - centres).norm(dim=-1).float()


@torch.no_grad()
def attention_distance(model: ViT, pixels: Tensor) -> Tensor:
    """How far each head looks, in pixels of the model's input: (batch, depth, heads).

    The distance between two patches, weighted by the attention that one pays the other, the mean over all patches
    that look. What goes to tokens that are nowhere (class token, registers) is left out of the weights.
    """
    config = need_vit(model, "attention distance").config
    distances = patch_distances(model, (pixels.shape[-2], pixels.shape[-1]))
    found = []
    with at_rest(model):
        for chunk in chunks(model, pixels, backward=False):
            seen = _Far(distances.to(chunk.device), config.num_prefix)
            model(chunk, watch=dict.fromkeys(range(config.depth), seen.measure))
            found.append(torch.stack(seen.means, dim=1))
    return torch.cat(found)


class _Far:
    """Mean distances of every head, layer after layer."""

    def __init__(self, distances: Tensor, num_prefix: int) -> None:
        self.distances, self.num_prefix = distances, num_prefix
        self.means: list[Tensor] = []

    def measure(self, seen: Seen) -> None:
        weights = seen.weights()[:, :, self.num_prefix :, self.num_prefix :]
        total = weights.sum(dim=-1).clamp(min=1e-12)
        far = weights.mul_(self.distances).sum(dim=-1) / total
        self.means.append(far.mean(dim=-1))
