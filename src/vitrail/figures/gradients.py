"""What speaks for a class: attribution by gradient-weighted attention (Chefer et al., 2021), attention x gradient of
one layer, and Grad-CAM (Selvaraju et al., 2017), which a ResNet has too.

The fused kernel has no attention weights that could be given a gradient. But it computes `weights @ values`, so the
gradient of the weights is the gradient of its result times the values, transposed: exact, with one layer at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import setitem

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.figures.watching import Target, at_rest, chunks, need_vit, readers, score_of, targets, to_grid
from vitrail.model.attention import Seen
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT


def attribution(model: ViT, pixels: Tensor, target: Target = None) -> Tensor:
    """How much each patch speaks for a class: (batch, rows, columns), none below zero.

    Relevance starts at the tokens that the head reads and goes back through the layers: each adds what its attention
    passes on, weighted by the gradient of the class, where that is positive, the mean over heads. The equal share that
    every patch begins with where the head reads their mean is left out: it says nothing about any of them.
    """
    chosen = targets(need_vit(model, "attribution"), target, len(pixels))
    config, found, done = model.config, [], 0
    with at_rest(model):
        for chunk in chunks(model, pixels, backward=True):
            blocks = range(config.depth + (model.attn_pool is not None))
            start = readers(model, chunk).expand(len(chunk), -1)[:, None]  # (batch, 1, tokens)
            relevance, own = torch.zeros_like(start), torch.zeros_like(start)
            for block, weights in _weighted(model, chunk, chosen, done, blocks):
                if block == config.depth:  # the pooling by attention sees the patches alone
                    start = F.pad(weights, (config.num_prefix, 0))
                    continue
                if block in (config.levels or (config.depth - 1,)):
                    relevance = relevance + start
                    own = own + start
                relevance = relevance + relevance @ weights
            if model.attn_pool is None:  # what that weighs is no equal share
                relevance = relevance - own
            found.append(to_grid(model, relevance[:, 0], chunk))
            done += len(chunk)
    return torch.cat(found)


def attention_gradient(model: ViT, pixels: Tensor, target: Target = None, layer: int = -1) -> Tensor:
    """Attention of the head's tokens in one layer times its gradient for a class, where that is positive, the mean
    over heads: (batch, rows, columns). Of a model that pools its patches: the sum over all that look."""
    chosen = targets(need_vit(model, "attention x gradient"), target, len(pixels))
    block = model.block_numbers(layer)
    found, done = [], 0
    with at_rest(model):
        for chunk in chunks(model, pixels, backward=True):
            read = (readers(model, chunk) > 0).float()[:, None]
            for _, weights in _weighted(model, chunk, chosen, done, block):
                found.append(to_grid(model, (read @ weights)[:, 0], chunk))
            done += len(chunk)
    return torch.cat(found)


def _weighted(
    model: ViT, pixels: Tensor, chosen: Tensor | None, start: int, blocks: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    """From the last of the blocks to the first: its attention x gradient, where positive, the mean over heads:
    (batch, tokens, tokens)."""
    seen: dict[int, Seen] = {}
    with torch.inference_mode(False), torch.enable_grad():
        pixels = pixels.clone().requires_grad_()
        logits = model(pixels, watch={block: partial(setitem, seen, block) for block in blocks})
        score = score_of(logits, chosen, start)
        gradients = dict(zip(seen, torch.autograd.grad(score, [one.mixed for one in seen.values()]), strict=True))
    for block in sorted(seen, reverse=True):
        yield block, _positive(seen.pop(block), gradients.pop(block))


@torch.no_grad()
def _positive(seen: Seen, gradient: Tensor) -> Tensor:
    weights = seen.weights()
    slope = gradient.float() @ seen.values.float().transpose(-2, -1)  # (batch, heads, read, tokens)
    read, tokens = slope.shape[-2], weights.shape[-2]
    positive = weights[:, :, :read].mul_(slope).clamp_(min=0).mean(dim=1)
    return F.pad(positive, (0, 0, 0, tokens - read))  # what the last block does not read has no effect


def grad_cam(model: ViT | ResNet, pixels: Tensor, target: Target = None) -> Tensor:
    """Features of each patch, or place of a ResNet's last map, in the direction of the class's mean gradient, where
    positive: (batch, rows, columns). A ViT's are those after the last block from which patches reach the head."""
    chosen = targets(model, target, len(pixels))
    found, done = [], 0
    with at_rest(model):
        for chunk in chunks(model, pixels, backward=True):
            with torch.inference_mode(False), torch.enable_grad():
                features, logits = _features(model, chunk.clone().requires_grad_())
                score = score_of(logits, chosen, done)
                (slope,) = torch.autograd.grad(score, features)
            maps, slope = (_as_map(model, x.detach(), chunk).float() for x in (features, slope))
            towards = slope.mean(dim=(2, 3), keepdim=True)
            found.append((maps * towards).sum(dim=1).clamp(min=0))
            done += len(chunk)
    return torch.cat(found)


def _features(model: ViT | ResNet, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens, or a map, and the logits that were made of them."""
    if isinstance(model, ResNet):
        maps = model.forward_features(pixels)
        return maps, model.forward_head(maps)
    config = model.config
    layer = config.depth - (2 if config.pool == "token" else 1)
    if layer < 0:
        raise VitrailError("grad_cam needs a block before the one that only the class token leaves: use attribution")
    out = model.forward_intermediates(pixels, layer)
    return out.tokens[layer], out.logits


def _as_map(model: ViT | ResNet, features: Tensor, pixels: Tensor) -> Tensor:
    """(batch, width, rows, columns)."""
    return features if isinstance(model, ResNet) else to_grid(model, features.transpose(1, 2), pixels)
