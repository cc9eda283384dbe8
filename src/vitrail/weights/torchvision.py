"""Reading torchvision's VisionTransformer: one table of names serves both ways."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vitrail.errors import WeightsError
from vitrail.model.config import ViTConfig
from vitrail.model.fields import pair
from vitrail.pictures import Preprocessing
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.customs import IMAGENET, check_whole, custom_heads, mlp_ratio, renamed, square_size
from vitrail.weights.files import State

OUTSIDE = {
    "patch_embed.proj": "conv_proj",
    "norm": "encoder.ln",
    "pre_logits.fc": "heads.pre_logits",
    "head": "heads.head",
}
INSIDE = {
    "norm1": "ln_1",
    "norm2": "ln_2",
    "attn.proj": "self_attention.out_proj",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.3",
}
OLDER = (
    (r"\.mlp\.linear_1\.", ".mlp.0."),
    (r"\.mlp\.linear_2\.", ".mlp.3."),
    (r"^heads\.(weight|bias)$", r"heads.head.\1"),  # a linear map put in the place of all heads
)
# width and size of the published weights that came from SWAG: their pictures are resized bicubically, without a margin
SWAG = {(768, 384), (1024, 512), (1280, 518), (1280, 224)}
BLOCK = re.compile(r"encoder\.layers\.encoder_layer_(\d+)\.")


def names(depth: int) -> dict[str, str]:
    """Our names, with theirs."""
    table = {"cls_token": "class_token", "pos_embed": "encoder.pos_embedding"}
    for leaf in ("weight", "bias"):
        table |= {f"{ours}.{leaf}": f"{theirs}.{leaf}" for ours, theirs in OUTSIDE.items()}
        for i in range(depth):
            block = f"encoder.layers.encoder_layer_{i}"
            table |= {f"blocks.{i}.{ours}.{leaf}": f"{block}.{theirs}.{leaf}" for ours, theirs in INSIDE.items()}
            table[f"blocks.{i}.attn.qkv.{leaf}"] = f"{block}.self_attention.in_proj_{leaf}"
    return table


def recognise(state: State) -> bool:
    """Whether these are torchvision's names."""
    return any(BLOCK.match(name) for name in state)


def read(state: State, hub: Mapping[str, Any] | None = None, processor: Mapping[str, Any] | None = None,
         **known: Any) -> Checkpoint:  # fmt: skip
    """Understands a state dict of torchvision's VisionTransformer, which has no configuration beside it."""
    if any(name.startswith("conv_proj.conv_") for name in state):
        raise WeightsError("the torchvision checkpoint has convolutions with batch norm before its patches: not known")
    depth = 1 + max(int(found[1]) for name in state if (found := BLOCK.match(name)))
    ours = {theirs: name for name, theirs in names(depth).items()}
    state = renamed(state, {name: ours[new] for name in state if (new := _newer(name)) in ours}, "torchvision")
    config, assumed = _infer(state, depth, known)
    if processor:
        preprocessing: Preprocessing | None = Preprocessing.from_transformers(processor)
    else:
        preprocessing = _custom_preprocessing(config)
        assumed |= {"preprocessing": preprocessing.describe()} if preprocessing else {}
    return Checkpoint("torchvision", config, state, preprocessing, resampling="torchvision", assumed=assumed)


def _newer(name: str) -> str:
    for pattern, to in OLDER:
        name = re.sub(pattern, to, name)
    return name


def _infer(state: State, depth: int, known: Mapping[str, Any]) -> tuple[ViTConfig, dict[str, Any]]:
    needed = ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight", "blocks.0.attn.qkv.weight")
    check_whole(state, needed, "torchvision")
    weight = state["patch_embed.proj.weight"]
    width, patch = weight.shape[0], (weight.shape[2], weight.shape[3])
    size = known.get("img_size")
    fields: dict[str, Any] = {
        "img_size": pair("img_size", size) if size else square_size(state["pos_embed"].shape[1] - 1, patch),
        "patch_size": patch,
        "in_chans": weight.shape[1],
        "embed_dim": width,
        "depth": depth,
        "num_heads": custom_heads(width),
        "mlp_ratio": mlp_ratio(width, state["blocks.0.mlp.fc1.weight"].shape[0]),
        "norm_eps": 1e-6,
        "pre_logits": state["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in state else None,
        "num_classes": state["head.weight"].shape[0] if "head.weight" in state else 0,
    }
    assumed = {name: fields[name] for name in ("num_heads", "norm_eps") if name not in known}
    return ViTConfig(**(fields | dict(known))), assumed


def _custom_preprocessing(config: ViTConfig) -> Preprocessing | None:
    """What torchvision's published weights were evaluated with."""
    if config.in_chans != 3:
        return None
    if (config.embed_dim, config.img_size[0]) in SWAG:
        return Preprocessing(config.img_size, "crop", 1.0, "bicubic", **IMAGENET)
    resized = 242 if (config.embed_dim, config.patch_size) == (1024, (16, 16)) else 256
    return Preprocessing(config.img_size, "crop", 224 / resized, "bilinear", **IMAGENET)
