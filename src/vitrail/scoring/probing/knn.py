"""Weighted nearest neighbours, as DINO judges features: cosine similarity, votes of exp(similarity / temperature)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vitrail.scoring.probing.heads import blocks

KS = (1, 5, 10, 20, 50, 100, 200)
TEMPERATURE = 0.07

_QUERIES_AT_ONCE = 1 << 16  # whose neighbours are kept at a time
_ROWS = 2048  # of queries in one product
_COLUMNS = 16384  # of pictures that vote, in one product
_VOTES_AT_ONCE = 1 << 25


def knn_answers(
    points: Tensor,
    labels: Tensor,
    queries: Tensor,
    classes: int,
    ks: Sequence[int] = KS,
    *,
    temperature: float = TEMPERATURE,
    device: torch.device | str = "cpu",
    rows: int = _ROWS,
    columns: int = _COLUMNS,
) -> Tensor:
    """What the k nearest say of each query, for every k: (ks, queries), on the CPU.

    Points stay where they are and come to the device in blocks, each once for 65,536 queries: memory on the device is
    that of a block of similarities, whatever their number. Of equal votes the first class wins.
    """
    found = []
    for some in blocks(queries, _QUERIES_AT_ONCE):
        near, whose = neighbours(points, some, max(ks), device=device, rows=rows, columns=columns)
        found.append(_voted(near, labels.to(device)[whose], classes, ks, temperature))
    return torch.cat(found, dim=1) if found else torch.empty(len(ks), 0, dtype=torch.int64)


def neighbours(
    points: Tensor,
    queries: Tensor,
    k: int,
    *,
    device: torch.device | str = "cpu",
    rows: int = _ROWS,
    columns: int = _COLUMNS,
) -> tuple[Tensor, Tensor]:
    """Similarities of the k nearest points to each query, the nearest first, and which points they are:
    (queries, k) each; fewer columns where there are fewer points."""
    asked = normalize(queries.to(device), dim=1)
    near = torch.empty(len(queries), 0, device=device, dtype=asked.dtype)
    whose = torch.empty(len(queries), 0, device=device, dtype=torch.int64)
    for start in range(0, len(points), columns):
        block = normalize(points[start : start + columns].to(device), dim=1).T
        parts = [_merged(asked, block, near, whose, k, start, slice(a, a + rows)) for a in range(0, len(asked), rows)]
        near, whose = (torch.cat(halves) for halves in zip(*parts, strict=True))
    return near, whose


def _merged(
    asked: Tensor, block: Tensor, near: Tensor, whose: Tensor, k: int, start: int, some: slice
) -> tuple[Tensor, Tensor]:
    """The best k of those before and of this block."""
    similar = asked[some] @ block
    own, places = similar.topk(min(k, similar.shape[1]), dim=1)
    both = torch.cat([near[some], own], dim=1)
    owners = torch.cat([whose[some], places + start], dim=1)
    best, order = both.topk(min(k, both.shape[1]), dim=1)
    return best, owners.gather(1, order)


def _voted(near: Tensor, labels: Tensor, classes: int, ks: Sequence[int], temperature: float) -> Tensor:
    rows = max(1, _VOTES_AT_ONCE // classes)
    parts = [slice(start, start + rows) for start in range(0, len(near), rows)]
    return torch.cat([_votes(near[some], labels[some], classes, ks, temperature) for some in parts], dim=1)


def _votes(near: Tensor, labels: Tensor, classes: int, ks: Sequence[int], temperature: float) -> Tensor:
    # relative to the nearest: no temperature is too low for the exponential
    weights = ((near - near[:, :1]) / temperature).exp()
    answers = []
    for k in ks:
        votes = torch.zeros(len(near), classes, device=near.device, dtype=near.dtype)
        answers.append(votes.scatter_add_(1, labels[:, :k], weights[:, :k]).argmax(dim=1).cpu())
    return torch.stack(answers)
