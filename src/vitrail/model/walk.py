"""A walk through a model without running it: every shape on the way, with parameters and arithmetic in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vitrail.model.config import ResNetConfig, ViTConfig


@dataclass(frozen=True)
class Step:
    """One stop of the walk. Shapes are of one picture, channels last."""

    name: str
    shape: tuple[int, ...]
    parameters: int = 0
    flops: int = 0  # 2 x multiply-accumulate of the matrix products and convolutions; norms and the like not counted
    times: int = 1  # how often the step is there


def walk(config: ViTConfig | ResNetConfig) -> list[Step]:
    """Every step from the picture to the logits. The sums over all steps are exact."""
    return list(_resnet(config) if isinstance(config, ResNetConfig) else _vit(config))


def parameters(config: ViTConfig | ResNetConfig) -> int:
    """Number of learned parameters."""
    return sum(step.parameters * step.times for step in walk(config))


def flops(config: ViTConfig | ResNetConfig) -> int:
    """Floating-point operations for one picture: 2 x multiply-accumulate, every token through every block."""
    return sum(step.flops * step.times for step in walk(config))


def tokens(config: ViTConfig | ResNetConfig) -> int:
    """Length of the sequence in the encoder; 0 for a ResNet."""
    return config.num_prefix + config.num_patches if isinstance(config, ViTConfig) else 0


def _linear(rows: int, into: int, out: int, bias: bool = True) -> tuple[int, int]:
    return into * out + out * bias, 2 * rows * into * out


def _vit(config: ViTConfig) -> Iterator[Step]:
    width, (h, w) = config.embed_dim, config.grid
    norm = width * (1 if config.norm == "rms" else 2)
    yield Step("picture", (*config.img_size, config.in_chans))

    chans, size = config.in_chans, config.img_size
    if config.backbone is not None:
        yield from _stages(config.backbone, size)
        chans = config.backbone.out_chans
    for i, out in enumerate(config.conv_stem):
        size = (-(-size[0] // 2), -(-size[1] // 2))
        count = 9 * chans * out
        yield Step(f"conv_stem {i}", (*size, out), count + 2 * out, 2 * count * size[0] * size[1])
        chans = out
    pixels = chans * config.patch_size[0] * config.patch_size[1]
    count, work = _linear(h * w, pixels, width, config.patch_bias)
    if config.patch_norm in ("before", "both"):
        count += pixels * (1 if config.norm == "rms" else 2)
    if config.patch_norm in ("after", "both"):
        count += norm
    yield Step("patches, projected", (h, w, width), count, work)

    count = config.num_prefix * width
    if config.positions == "learned":
        count += (config.num_positioned + h * w) * width
    elif config.positions == "learned_2d":
        count += (h + w) * (width // 2) + config.num_positioned * width
    names = ["class token"] * config.class_token + ["distillation token"] * config.distilled
    names += [f"{config.registers} registers"] * (config.registers > 0)
    names += [f"{config.positions} positions"] * (config.positions != "none")
    n = config.num_prefix + h * w
    yield Step(f"tokens: {' + '.join([*names, 'patches'])}", (n, width), count + norm * config.pre_norm)

    yield from _block(config, n, norm)
    yield from _head(config, norm)


def _block(config: ViTConfig, n: int, norm: int) -> Iterator[Step]:
    width, heads, d = config.embed_dim, config.num_heads, config.key_dim
    count, work = _linear(n, width, 3 * heads * d, config.qkv_bias)
    if config.qk_norm:
        count += 2 * d * (1 if config.norm == "rms" else 2)
    yield Step("block: norm, queries, keys, values", (3, heads, n, d), norm + count, work, config.depth)
    h, w = config.grid
    bias = ((2 * h - 1) * (2 * w - 1) + 3 * (config.num_prefix > 0)) * heads * config.relative_bias
    yield Step("block: attention weights", (heads, n, n), bias, 2 * heads * n * n * d, config.depth)
    scale = 0 if config.layer_scale is None else width
    count, work = _linear(n, heads * d, width)
    work += 2 * heads * n * n * d
    yield Step("block: weighted values, projected, added", (n, width), count + scale, work, config.depth)
    hidden = config.mlp_dim
    count, work = _linear(n, width, hidden)
    yield Step("block: norm, MLP's hidden layer", (n, hidden), norm + count, work, config.depth)
    count, work = _linear(n, hidden // 2 if config.mlp == "swiglu" else hidden, width)
    yield Step("block: MLP's output, added", (n, width), count + scale, work, config.depth)


def _head(config: ViTConfig, norm: int) -> Iterator[Step]:
    width, patches = config.embed_dim, config.num_patches
    count, work = (0 if config.final_norm == "none" else norm), 0
    if config.pool == "map":
        hidden = config.mlp_dim
        for rows, into, out in ((1, width, width), (patches, width, 2 * width), (1, width, width)):
            count, work = count + _linear(rows, into, out)[0], work + _linear(rows, into, out)[1]
        count, work = count + width + norm, work + 4 * patches * width  # the query; its attention
        for into, out in ((width, hidden), (hidden, width)):
            count, work = count + _linear(1, into, out)[0], work + _linear(1, into, out)[1]
    levels = f", {len(config.levels)} levels" if config.levels else ""
    yield Step(f"norm, pooled by {config.pool}{levels}", (config.pooled_dim,), count, work)
    into = config.pooled_dim
    if config.pre_logits is not None:
        yield Step("pre_logits, tanh", (config.pre_logits,), *_linear(1, into, config.pre_logits))
        into = config.pre_logits
    if config.num_classes:
        heads = 2 if config.distilled else 1
        yield Step("logits", (config.num_classes,), *_linear(1, into, config.num_classes), heads)


def _conv(chans: int, out: int, kernel: int, size: tuple[int, int]) -> tuple[int, int]:
    count = chans * out * kernel**2
    return count, 2 * count * size[0] * size[1]


def _stages(config: ResNetConfig, img_size: tuple[int, int]) -> Iterator[Step]:
    h, w = img_size if config.small_stem else (-(-img_size[0] // 2), -(-img_size[1] // 2))
    count, work = _conv(config.in_chans, config.width, 3 if config.small_stem else 7, (h, w))
    if not config.small_stem:
        h, w = -(-h // 2), -(-w // 2)
    yield Step("resnet: stem", (h, w, config.width), count + (0 if config.preact else 2 * config.width), work)
    chans = config.width
    for stage, depth in enumerate(config.layers):
        out = config.width * 4 * 2**stage
        inner, before = out // 4, (h, w)
        if stage:
            h, w = -(-h // 2), -(-w // 2)
        total, effort = 0, 0
        for block in range(depth):
            into = out if block else chans
            parts = [
                _conv(into, inner, 1, (h, w) if block else before),
                _conv(inner, inner, 3, (h, w)),
                _conv(inner, out, 1, (h, w)),
            ]
            total += 2 * (into + 2 * inner) if config.preact else 2 * (2 * inner + out)
            if not block:
                parts.append(_conv(into, out, 1, (h, w)))
                total += 0 if config.preact else 2 * out
            total, effort = total + sum(p[0] for p in parts), effort + sum(p[1] for p in parts)
        yield Step(f"resnet: stage {stage + 1}, {depth} bottlenecks", (h, w, out), total, effort)
        chans = out
    if config.preact:
        yield Step("resnet: norm", (h, w, chans), 2 * chans)


def _resnet(config: ResNetConfig) -> Iterator[Step]:
    yield Step("picture", (*config.img_size, config.in_chans))
    yield from _stages(config, config.img_size)
    yield Step("mean over the map", (config.out_chans,))
    if config.num_classes:
        yield Step("logits", (config.num_classes,), *_linear(1, config.out_chans, config.num_classes))
