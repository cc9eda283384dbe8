"""Where a patch is: fixed tables, rotations and relative biases, and how each is carried to another grid."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.model.config import ViTConfig
from vitrail.model.fields import Pair

Resampling = Literal["timm", "timm_npz", "google", "transformers", "torchvision", "dinov2", "dinov2_reg"]


def sincos_1d(length: int, width: int, device: torch.device | None = None) -> Tensor:
    """Sines and cosines of the index ("Attention is all you need"), interleaved: (length, width)."""
    kind: dict[str, Any] = {"dtype": torch.float64, "device": device}
    frequency = torch.exp(-math.log(10_000.0) * torch.arange(0, width, 2, **kind) / width)
    angle = torch.arange(length, **kind)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()


def sincos_2d(grid: Pair, width: int, device: torch.device | None = None) -> Tensor:
    """Sines and cosines of column and row, a quarter of the width each (big_vision's order): (patches, width)."""
    kind: dict[str, Any] = {"dtype": torch.float64, "device": device}
    y, x = torch.meshgrid(*(torch.arange(n, **kind) for n in grid), indexing="ij")
    frequency = 10_000.0 ** -(torch.arange(width // 4, **kind) / (width // 4 - 1))
    x, y = (axis.flatten()[:, None] * frequency for axis in (x, y))
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=-1).float()


def fixed_table(config: ViTConfig, grid: Pair, device: torch.device | None = None) -> Tensor:
    """The sines and cosines of a configuration, for this grid; zeros for the prefix: (1, prefix + patches, width).

    They are computed where they are wanted, so that no step waits for a copy; but Apple's GPUs have no float64."""
    where = None if device is None or device.type == "mps" else device
    if config.positions == "sincos_1d":
        table = sincos_1d(grid[0] * grid[1], config.embed_dim, where)
    else:
        table = sincos_2d(grid, config.embed_dim, where)
    return F.pad(table, (0, 0, config.num_positioned, 0))[None]


def frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Radians by which each pair of channels of one axis turns from one patch to the next: (head_dim / 4,)."""
    return theta ** -(torch.arange(head_dim // 4, dtype=torch.float32, device=device) / (head_dim // 4))


def rotations(grid: Pair, head_dim: int, theta: float, num_prefix: int, device: torch.device) -> Tensor:
    """Axial RoPE: cosines and sines of the angle by which each pair of channels turns: (2, tokens, head_dim / 2).

    A quarter of the channels turns with the column, a quarter with the row. Tokens before the patches do not turn.
    """
    y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float32, device=device) for n in grid), indexing="ij")
    frequency = frequencies(head_dim, theta, device)
    angle = torch.cat([x.flatten()[:, None] * frequency, y.flatten()[:, None] * frequency], dim=-1)
    angle = F.pad(angle, (0, 0, num_prefix, 0))
    return torch.stack([angle.cos(), angle.sin()])


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turns neighbouring channels of `x` (batch, heads, tokens, head_dim) by `turn` (2, …, tokens, head_dim / 2)."""
    if x.is_cpu and not torch.compiler.is_compiling():
        return _rotate_as_complex(x, turn)
    cos, sin = turn.to(x.dtype)
    both, opposite = torch.stack([cos, cos], dim=-1).flatten(-2), torch.stack([-sin, sin], dim=-1).flatten(-2)
    # neighbours exchanged in place, not even and odd ones apart: a compiler then reads memory in one stream
    exchanged = x.reshape(*x.shape[:-1], -1, 2).flip(-1).flatten(-2)
    return x * both + exchanged * opposite


def _rotate_as_complex(x: Tensor, turn: Tensor) -> Tensor:
    """The same as one product: a CPU without a compiler passes over its memory once, not four times."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    pairs = torch.view_as_complex(wide.view(*wide.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.complex(*turn.to(wide.dtype))).flatten(-2).to(x.dtype)


def relative_index(grid: Pair, has_prefix: bool, num_prefix: int, device: torch.device) -> Tensor:
    """Which row of a bias table holds for each pair of tokens: (tokens, tokens).

    The table has one row for every offset between two patches and, if there are tokens before the patches, three
    more: from such a token to a patch, from a patch to such a token, and between two of them.
    """
    h, w = grid
    y, x = torch.meshgrid(torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij")
    y, x = y.flatten(), x.flatten()
    index = (y[:, None] - y + h - 1) * (2 * w - 1) + (x[:, None] - x + w - 1)
    if not has_prefix:
        return index
    offsets = (2 * h - 1) * (2 * w - 1)
    index = F.pad(index, (num_prefix, 0, num_prefix, 0))
    index[:num_prefix, :] = offsets
    index[:, :num_prefix] = offsets + 1
    index[:num_prefix, :num_prefix] = offsets + 2
    return index


def resize_map(values: Tensor, size: Pair, how: Resampling) -> Tensor:
    """Resizes (1, channels, h, w) as the named library does it."""
    if values.requires_grad and torch.are_deterministic_algorithms_enabled():
        return _resize_by_products(values, size, how)
    if how == "google":  # scipy's zoom, which computes in float64
        return F.interpolate(values.double(), size=size, mode="bilinear", align_corners=True).to(values.dtype)
    if how == "torchvision":
        return F.interpolate(values, size=size, mode="bicubic", align_corners=True)
    if how == "dinov2":
        scale = [(n + 0.1) / old for n, old in zip(size, values.shape[-2:], strict=True)]
        return F.interpolate(values, scale_factor=scale, mode="bicubic")
    mode = "bilinear" if how == "timm_npz" else "bicubic"
    return F.interpolate(values, size=size, mode=mode, antialias=how in ("timm", "dinov2_reg"))


def _resize_by_products(values: Tensor, size: Pair, how: Resampling) -> Tensor:
    """The same to rounding, as two matrix products: on a GPU the gradients of a resize add up in any order."""
    rows, columns = (
        resize_map(torch.eye(old, device=values.device)[None, :, None], (1, new), how)[0, :, 0]  # (old, new)
        for old, new in zip(values.shape[-2:], size, strict=True)
    )
    return rows.T @ (values @ columns)


def resize_positions(table: Tensor, old: Pair, new: Pair, num_prefix: int, how: Resampling = "timm") -> Tensor:
    """Position embeddings (1, prefix + patches, width) for another grid of patches; those of the prefix are kept.

    What counts is the shape of the grid, not the number of patches: 14 x 14 to 7 x 28 is resized too.
    """
    if old == new:
        return table
    prefix, patches = table[:, :num_prefix], table[:, num_prefix:]
    image = patches.reshape(1, *old, -1).permute(0, 3, 1, 2).float()
    image = resize_map(image, new, how)
    return torch.cat([prefix, image.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)], dim=1)


def resize_line(table: Tensor, new: int, how: Resampling = "timm") -> Tensor:
    """Position embeddings of one axis (1, length, width) for another length."""
    if table.shape[1] == new:
        return table
    line = table.transpose(1, 2)[..., None, :].float()  # (1, width, 1, length)
    return resize_map(line, (1, new), "timm" if how == "dinov2" else how)[:, :, 0].transpose(1, 2).to(table.dtype)


def resize_bias_table(table: Tensor, old: Pair, new: Pair) -> Tensor:
    """A table of relative biases (rows, heads) for another grid, bicubic over the offsets."""
    if old == new:
        return table
    (h, w), (new_h, new_w) = ((2 * g[0] - 1, 2 * g[1] - 1) for g in (old, new))
    image = table[: h * w].T.reshape(1, -1, h, w).float()
    image = F.interpolate(image, size=(new_h, new_w), mode="bicubic")
    return torch.cat([image.flatten(2)[0].T.to(table.dtype), table[h * w :]])


def resample_patches(weight: Tensor, size: Pair) -> Tensor:
    """A patch projection (width, channels, h, w) for another patch size (FlexiViT, Beyer et al. 2022).

    The new weights give, on a resized patch, what the old ones gave on the patch, as nearly as can be: the
    pseudo-inverse of the resize.
    """
    old = (weight.shape[-2], weight.shape[-1])
    if old == size:
        return weight
    # in float64, or the pseudo-inverse would take rounding errors for singular values
    basis = torch.eye(old[0] * old[1], dtype=torch.float64, device=weight.device).reshape(-1, 1, *old)
    resize = F.interpolate(basis, size=size, mode="bicubic", antialias=True).flatten(1).T  # (new pixels, old pixels)
    inverse = torch.linalg.pinv(resize.T).to(torch.float32)
    return (weight.float().flatten(2) @ inverse.T).reshape(*weight.shape[:2], *size).to(weight.dtype)
