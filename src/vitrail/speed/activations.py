"""What a training step keeps for its backward pass, in closed form: bytes for one picture, part by part.

Counted is what autograd saves as the model computes in training: each tensor once, however many operations need it.
`compile` keeps about as much (measured within 6%), so there is one count for both. Kernels of our own, which a GPU
has in half precision, keep less: they compute some of it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.kernel_sizes import SHORT, SHORT_WIDTHS, is_large
from vitrail.model.walk import walk
from vitrail.speed.maps import kept_of_maps

Precision = Literal["fp32", "bf16", "bf16_residual", "fp16", "fp8"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "bf16_residual", "fp16", "fp8")
FULL = 4  # bytes of a float32


@dataclass(frozen=True)
class Kept:
    """One part of the model, in bytes for one picture."""

    name: str
    saved: int  # for the backward pass
    working: int = 0  # beside it, at the part's fullest moment in the backward pass
    entrance: int = 0  # what comes in: all that is kept of a part that is computed again


def size_of(precision: Precision) -> int:
    """Bytes of a number inside the blocks; eight bits, which some of them have, are counted as sixteen."""
    return 4 if precision == "fp32" else 2


def stream_of(precision: Precision) -> int:
    """Bytes of a number of the residual stream, between the blocks."""
    return 2 if precision in ("bf16_residual", "fp8") else FULL


def _out_of_block(config: ViTConfig, precision: Precision) -> int:
    """The same after a sum: LayerScale's factors are float32, and so is what they make."""
    return stream_of(precision) if config.layer_scale is None else FULL


def has_kernels(config: ViTConfig | ResNetConfig, pictures: int) -> bool:
    """Whether a GPU that has so many pictures at once does enough for kernels of our own."""
    if isinstance(config, ResNetConfig):
        return False
    tokens = pictures * (config.num_prefix + config.num_patches)
    return is_large(tokens * config.embed_dim, config.embed_dim)


def kept(config: ViTConfig | ResNetConfig, precision: Precision, *, kernels: bool) -> list[Kept]:
    """From the pictures to the logits; `kernels`: by those of our own, where the numbers are those they know."""
    if isinstance(config, ResNetConfig):
        maps, last = kept_of_maps(config, config.img_size, precision)
        head = config.out_chans * size_of(precision)
        return [Kept("stages", maps, last), Kept("head", head + _loss(config.num_classes))]
    fused = kernels and precision != "fp32"
    blocks = [_block(config, precision, _read(config, i), fused) for i in range(config.depth)]
    return [_embedding(config, precision), *blocks, _head(config, precision)]


def _read(config: ViTConfig, block: int) -> int:
    """Tokens that come out of a block: the last one computes only what the head reads."""
    tokens = config.num_prefix + config.num_patches
    only = block == config.depth - 1 and config.pool == "token" and not config.levels
    return 1 + config.distilled if only else tokens


def _embedding(config: ViTConfig, precision: Precision) -> Kept:
    act, count = size_of(precision), config.num_patches
    chans, saved, working = config.in_chans, 0, 0
    if config.backbone is not None:
        saved, working = kept_of_maps(config.backbone, config.img_size, precision)
        chans = config.backbone.out_chans
    height, width = config.img_size
    for out in config.conv_stem:  # convolution (its input), norm (its input), ReLU (its output, the next one's input)
        saved += height * width * chans * act if chans == config.in_chans else 0
        height, width, chans = -(-height // 2), -(-width // 2), out
        saved += height * width * out * (FULL + FULL + (act if act != FULL else 0))
    pixels = chans * config.patch_size[0] * config.patch_size[1]
    saved += count * pixels * act
    if config.patch_norm in ("before", "both"):
        saved += count * (pixels * FULL + _norm_statistics(config))
    if config.patch_norm in ("after", "both"):
        saved += count * (config.embed_dim * act + _norm_statistics(config))
    tokens = config.num_prefix + count
    if config.embed_dropout:
        saved += tokens * config.embed_dim
    if config.pre_norm:
        saved += tokens * (config.embed_dim * FULL + _norm_statistics(config))
    return Kept("patches", saved, max(working, tokens * config.embed_dim * FULL))


def _norm_statistics(config: ViTConfig) -> int:
    """Of one token, in float32."""
    return FULL * (1 if config.norm == "rms" else 2)


def _block(config: ViTConfig, precision: Precision, read: int, fused: bool) -> Kept:
    act, stream, width, hidden = size_of(precision), stream_of(precision), config.embed_dim, config.mlp_dim
    inner, tokens = config.num_heads * config.key_dim, config.num_prefix + config.num_patches
    statistics = 0 if fused else _norm_statistics(config)
    # norm 1 keeps the residual stream, the projection its normed copy, attention queries, keys and values
    every = width * (stream + act) + 3 * inner * act + statistics
    attention = inner * act  # what it gives
    if not (fused and read == tokens and _is_short(config)):
        attention += config.num_heads * FULL  # the sums of its rows
        if config.qk_norm or config.rope:
            every += 2 * inner * act  # queries and keys once more, as attention reads them
        if config.qk_norm:
            every += 2 * config.num_heads * _norm_statistics(config)
    summed = stream if fused else _out_of_block(config, precision)  # our kernel leaves the stream's numbers as they are
    is_plain = fused and config.mlp == "plain" and config.act == "gelu" and not config.dropout
    mlp = width * (summed + act) + statistics + (hidden if is_plain else _hidden(config)) * act
    scales = 2 * width * act if config.layer_scale is not None else 0
    masks = 2 * width + (hidden // 2 if config.mlp == "swiglu" else hidden) if config.dropout else 0
    saved = tokens * every + read * (attention + mlp + scales + masks)
    # gradients on the way back: of the residual stream and the MLP's hidden layer, or of queries, keys and values; our
    # kernel has the hidden layer's gradient on both sides of the activation, and the activation again
    if read == tokens:
        working = tokens * (width * (summed + act * (act < summed)) + (3 if is_plain else 1) * hidden * act)
    else:
        working = tokens * 4 * inner * act
    return Kept("block", saved, working, tokens * width * stream)


def _is_short(config: ViTConfig) -> bool:
    """Whether one kernel does all of attention, norms and rotations too, and keeps none of it."""
    is_known = config.key_dim in SHORT_WIDTHS and (not config.qk_norm or config.norm == "rms")
    is_plain = not config.relative_bias and not config.attn_dropout
    return config.num_prefix + config.num_patches <= SHORT and is_known and is_plain


def _hidden(config: ViTConfig) -> int:
    """Numbers that the MLP keeps of one token beside its input."""
    hidden = config.mlp_dim
    if config.mlp == "swiglu":
        return 2 * hidden  # both halves, the gate, the product
    return {"relu": 1, "quick_gelu": 3}.get(config.act, 2) * hidden


def _head(config: ViTConfig, precision: Precision) -> Kept:
    act, width, tokens = size_of(precision), config.embed_dim, config.num_prefix + config.num_patches
    stream = _out_of_block(config, precision)
    saved = 0
    normed = 0 if config.final_norm == "none" else _read(config, config.depth - 1)
    if config.final_norm == "pooled":
        normed = 1
    levels = max(1, len(config.levels))
    saved += normed * (width * stream * (1 if not config.levels else 0) + levels * _norm_statistics(config))
    if config.levels:
        saved += tokens * width * stream * levels
    if config.pool == "map":
        saved += config.num_patches * 3 * width * act
    if config.pre_logits is not None:
        saved += config.pooled_dim * act + config.pre_logits * act
    saved += (config.pre_logits or config.pooled_dim) * act
    return Kept("head", saved + _loss(config.num_classes), 2 * config.num_classes * FULL)


def _loss(classes: int) -> int:
    """The logits in float32, as the loss keeps them, and a row of targets."""
    return 2 * classes * FULL


def kept_once(config: ViTConfig | ResNetConfig, parameters: int, precision: Precision) -> int:
    """Whatever the batch: copies of the weights in the numbers that are computed with, and standardised weights."""
    once = parameters * (0 if precision == "fp32" else 2)
    if isinstance(config, ViTConfig) and config.relative_bias:  # as GPUs' kernels have it: one for the whole batch
        tokens = config.num_prefix + config.num_patches
        once += config.depth * config.num_heads * tokens**2 * size_of(precision)
    steps = (step for step in walk(config) if step.name.startswith("resnet"))
    return once + 2 * FULL * sum(step.parameters * step.times for step in steps)
