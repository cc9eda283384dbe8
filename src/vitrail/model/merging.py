"""Token merging, after Bolya et al. 2023 (arXiv:2210.09461): tokens that are alike become one on the way, without any
training, so that later blocks have less to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import ConfigError
from vitrail.model.layers import twin
from vitrail.model.vit import ViT

_AFTER = (4, 8)  # of twelve blocks; earlier, tokens are less alike, and accuracy suffers
_PART = 4  # one in so many patches goes each time
_TINY = 1e-12  # so that a token of zeros has a direction


def merge(x: Tensor, size: Tensor, count: int, prefix: int) -> tuple[Tensor, Tensor]:
    """`count` tokens fewer: those that are most like another become one with it, their mean.

    x: (batch, tokens, width). size: how many patches each token stands for, (batch, tokens, 1).
    prefix: so many of the first tokens stay by themselves. The others are dealt to two sides in turn, and those of
        the first side that have the nearest neighbours, by cosine, go over to them.
    """
    first, patches, sizes = x[:, :prefix], x[:, prefix:], size[:, prefix:]
    here, there = patches[:, ::2], patches[:, 1::2]
    here_size, there_size = sizes[:, ::2], sizes[:, 1::2]
    unit = patches * (patches * patches).sum(dim=-1, keepdim=True).clamp(min=_TINY).rsqrt()
    nearest, target = (unit[:, ::2] @ unit[:, 1::2].transpose(1, 2)).max(dim=-1)
    staying = nearest.topk(here.shape[1] - count, largest=False).indices
    # whole matrices of zeros and ones: quicker than gathering in every runtime that was tried
    stay = F.one_hot(staying, here.shape[1]).to(x.dtype)  # (batch, staying, here)
    go = F.one_hot(target, there.shape[1]).to(x.dtype) * (1 - stay.sum(dim=1))[..., None]  # (batch, here, there)
    go = go.transpose(1, 2)
    sum_size = there_size + go @ here_size
    merged = (there * there_size + go @ (here * here_size)) / sum_size
    tokens = torch.cat([first, stay @ here, merged], dim=1)
    return tokens, torch.cat([size[:, :prefix], stay @ here_size, sum_size], dim=1)


class MergingBlocks(nn.Module):
    """All blocks of a model, for prediction: after some, tokens are merged. Attention counts a token as often as the
    patches that it stands for."""

    def __init__(self, blocks: Sequence[nn.Module], counts: Mapping[int, int], prefix: int, read: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.counts, self.prefix, self.read = dict(counts), prefix, read

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        size, seen = x.new_ones(x.shape[0], x.shape[1], 1), None
        for number, block in enumerate(self.blocks):
            x = block(x, None, None, seen, self.read if number == len(self.blocks) - 1 else None)
            if number in self.counts:
                x, size = merge(x, size, self.counts[number], self.prefix)
                seen = size.log().transpose(1, 2)[:, None]  # (batch, 1, 1, tokens)
        return x


def can_merge(model: nn.Module) -> bool:
    """Whether a model reads a token of its own and knows its patches' places from the start alone."""
    if not isinstance(model, ViT):
        return False
    config = model.config
    patches = config.grid[0] * config.grid[1]
    known = config.rope or config.relative_bias
    return config.pool == "token" and not known and not config.levels and patches >= 2 * _PART and config.depth > 2


def merged(model: ViT) -> ViT:
    """The same model, with the same weights, that merges half of its patches on the way; for logits alone."""
    if not can_merge(model):
        raise ConfigError("tokens can be merged where a class token is read, and positions are added at the start")
    config = model.config
    number = config.grid[0] * config.grid[1] // _PART
    after = {max(0, round(config.depth * twelfths / 12) - 1) for twelfths in _AFTER}
    other: Any = twin(model)
    blocks = MergingBlocks(list(model.blocks), dict.fromkeys(after, number), config.num_prefix, 1 + config.distilled)
    other.blocks = nn.ModuleList([blocks])
    return other
