"""What all maps share: a model at rest, pictures in chunks that fit into memory, and which tokens the head reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.model.attention import Seen
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT

Target = int | Sequence[int] | Tensor | None

_ROOM = 512 * 2**20  # bytes for what a chunk of pictures needs beside the model
_COPIES = 4  # of one block's weights that are alive at a time: logits, softmax, their gradient, the product
_KEPT = 18  # floats that a block keeps for the way back, for each token and channel


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards it is as it was."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def chunks(model: ViT | ResNet, pixels: Tensor, *, backward: bool) -> Iterator[Tensor]:
    """The pictures where the model is, as many at a time as there is room for."""
    if pixels.ndim != 4 or not len(pixels):
        raise VitrailError(f"pixels must be (batch, channels, height, width), not {tuple(pixels.shape)}")
    size = max(1, _ROOM // _bytes_per_picture(model, (pixels.shape[-2], pixels.shape[-1]), backward))
    for start in range(0, len(pixels), size):
        yield place(model, pixels[start : start + size])


def place(model: nn.Module, pixels: Tensor) -> Tensor:
    """The pixels where the model is, and in its numbers."""
    weight = next(model.parameters())
    return pixels.detach().to(weight.device, weight.dtype)


def _bytes_per_picture(model: ViT | ResNet, size: tuple[int, int], backward: bool) -> int:
    config = model.config
    if isinstance(model, ResNet):
        return 4 * 64 * config.in_chans * size[0] * size[1]
    rows, columns = model.config.grid_of(size)
    tokens = model.config.num_prefix + rows * columns
    weights = _COPIES * model.config.num_heads * tokens**2
    activations = _KEPT * tokens * model.config.embed_dim
    return 4 * (weights + activations * (model.config.depth if backward else 1))


def need_vit(model: ViT | ResNet, what: str) -> ViT:
    """The model, if it has attention at all."""
    if not isinstance(model, ViT):
        raise VitrailError(f"{what} needs attention, which a ResNet has not: use grad_cam")
    return model


def readers(model: ViT, pixels: Tensor) -> Tensor:
    """How much of each token the head reads, (1 or batch, tokens), which adds up to one: the class token (with the
    distillation token, half of each); all patches alike, for a mean; as the pooling by attention weighs them."""
    config = model.config
    rows, columns = config.grid_of((pixels.shape[-2], pixels.shape[-1]))
    prefix, patches = config.num_prefix, rows * columns
    if model.attn_pool is not None:
        seen: list[Seen] = []
        with torch.no_grad():
            model(pixels, watch={config.depth: seen.append})
            weights = seen[0].weights().mean(dim=1)[:, 0]  # (batch, patches)
        return nn.functional.pad(weights, (prefix, 0))
    share = torch.zeros(1, prefix + patches, device=pixels.device)
    if config.pool in ("mean", "token_mean"):
        share[:, prefix:] = 1 / patches
    if config.pool in ("token", "token_mean"):
        share[:, : 1 + config.distilled] = 1
    return share / share.sum()


def to_grid(model: ViT, tokens: Tensor, pixels: Tensor) -> Tensor:
    """(…, rows, columns) of the patches among (…, tokens)."""
    grid = model.config.grid_of((pixels.shape[-2], pixels.shape[-1]))
    return tokens[..., model.config.num_prefix :].reshape(*tokens.shape[:-1], *grid)


def targets(model: ViT | ResNet, target: Target, pictures: int) -> Tensor | None:
    """The class of each picture that is to be explained; None: what is predicted."""
    classes = model.config.num_classes
    if not classes:
        raise VitrailError("this model has no head, so there is no class to explain: train one, or use rollout")
    if target is None:
        return None
    chosen = torch.full((pictures,), target) if isinstance(target, int) else torch.as_tensor(target)
    if chosen.shape != (pictures,):
        raise VitrailError("give one class for all pictures, or one for each")
    wrong = chosen[(chosen < 0) | (chosen >= classes)]
    if len(wrong):
        raise VitrailError(f"there is no class {int(wrong[0])}: the model has classes 0 to {classes - 1}")
    return chosen


def score_of(logits: Tensor, chosen: Tensor | None, start: int) -> Tensor:
    """The logits of the classes that are explained, added up, for a chunk that begins at picture `start`."""
    own = slice(start, start + len(logits))
    index = logits.detach().argmax(dim=-1) if chosen is None else chosen[own].to(logits.device)
    return logits.gather(1, index[:, None]).sum()
