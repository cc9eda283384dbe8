"""The antialiased resize as two matrix products, for formats that do not know it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from vitrail.shipping.export_graph import quiet


def resize(x: Tensor, height: Any, width: Any, cubic: bool) -> Tensor:
    """(batch, channels, old height, old width) to another size, as Pillow and torch define it."""
    rows = _weights(x.shape[-2], height, cubic, x)  # (height, old height)
    columns = _weights(x.shape[-1], width, cubic, x)
    return rows @ x @ columns.transpose(0, 1)


def without_antialias(graph: ExportedProgram) -> ExportedProgram:
    """The same graph with every antialiased resize written as products."""
    aten = torch.ops.aten
    table: Any = {
        aten._upsample_bicubic2d_aa.vec: lambda x, size, *_: resize(x, size[0], size[1], True),
        aten._upsample_bilinear2d_aa.vec: lambda x, size, *_: resize(x, size[0], size[1], False),
    }
    with quiet(), torch.no_grad():
        return graph.run_decompositions(table)


def _weights(old: Any, new: Any, cubic: bool, like: Tensor) -> Tensor:
    """How much each old pixel counts for each new one: (new, old); every row adds up to one."""
    before, after = (torch.arange(n, dtype=like.dtype, device=like.device) for n in (old, new))
    scale = torch.ones_like(before).sum() / torch.ones_like(after).sum()  # a graph has lengths only as shapes
    far = (before[None] + 0.5 - (after[:, None] + 0.5) * scale).abs() / scale.clamp(min=1)
    weights = _cubic(far) if cubic else (1 - far).clamp(min=0)
    return weights / weights.sum(dim=1, keepdim=True)


def _cubic(far: Tensor) -> Tensor:
    """Keys' kernel with a = -0.5."""
    near = (1.5 * far - 2.5) * far * far + 1
    beyond = ((-0.5 * far + 2.5) * far - 4) * far + 2
    return torch.where(far < 1, near, torch.where(far < 2, beyond, torch.zeros_like(far)))
