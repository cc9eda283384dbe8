"""Reading checkpoints of timm, DeiT, MAE and DINOv2. Names are the same here, so reading is inferring the rest."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrail.errors import ConfigError, UnknownSizeError, WeightsError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.fields import Pair, pair
from vitrail.model.positions import Resampling
from vitrail.model.zoo import zoo
from vitrail.pictures import Preprocessing
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.customs import IMAGENET, custom_heads, mlp_ratio
from vitrail.weights.files import State

# what a state dict does not hold, by the name of the architecture: the custom of each line of models
CUSTOMS: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"clip|beit3", {"norm_eps": 1e-5}),
    (r"quickgelu", {"act": "quick_gelu"}),
    (r"patch32_siglip|giantopt|large_patch16_siglip_(gap_)?512|so400m_patch16_siglip", {"act": "gelu_tanh"}),
    (r"giantopt|^vit_base_patch16_gap", {"num_heads": 16}),
    (r"_rope_", {"rope": True}),
)
# older and sister spellings: DeiT-III's LayerScale; DINOv2's SwiGLU, and its chunks, which count blocks throughout
RENAMED = (
    (r"\.gamma_(\d)$", r".ls\1.gamma"),
    (r"^head\.fc\.", "head."),
    (r"^register_tokens$", "reg_token"),
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
)
DROPPED = re.compile(r"mask_token|decoder_.+")  # of pretraining
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "relu": "relu"}


def recognise(state: State) -> bool:
    """Whether these are timm's names."""
    vit = "patch_embed.proj.weight" in state and any(name.startswith("blocks.0.") for name in state)
    return vit or ("stem.conv.weight" in state and "stages.0.blocks.0.conv1.weight" in state)


def read(
    state: State, hub: Mapping[str, Any] | None = None, processor: Mapping[str, Any] | None = None, **known: Any
) -> Checkpoint:
    """Understands a timm state dict. `hub` is its config.json, `known` are fields that the caller is sure of."""
    hub = hub or {}
    pretrained = hub.get("pretrained_cfg") or {}
    classes = _labels(hub)
    preprocessing = Preprocessing.from_timm(pretrained) if pretrained else None
    if preprocessing is None and processor:
        preprocessing = Preprocessing.from_transformers(processor)
    if "stem.conv.weight" in state:
        return Checkpoint("timm", _infer_resnet(state, hub, known), dict(state), preprocessing, classes)
    family, resampling = _author(state)
    if "register_tokens" in state:  # DINOv2 adds positions before it adds registers
        known = {"prefix_positions": "class", **known}
    state = rename(state)
    config, assumed = _infer(state, hub, known)
    if preprocessing is None and family != "timm" and config.in_chans == 3:
        preprocessing = Preprocessing(config.img_size, "crop", 0.875, "bicubic", **IMAGENET)
        assumed["preprocessing"] = preprocessing.describe()
    return Checkpoint(family, config, state, preprocessing, classes, resampling, assumed)


def _author(state: State) -> tuple[str, Resampling]:
    """Who wrote it, where what is left of pretraining tells, and how its authors resize positions."""
    if "decoder_embed.weight" in state:
        return "MAE", "transformers"
    if "register_tokens" in state:
        return "DINOv2", "dinov2_reg"
    return ("DINOv2", "dinov2") if "mask_token" in state and state["mask_token"].ndim == 2 else ("timm", "timm")


def rename(state: State) -> State:
    """Today's names, without what only pretraining needs."""
    renamed: State = {}
    for old, tensor in state.items():
        name = old
        for pattern, to in RENAMED:
            name = re.sub(pattern, to, name)
        if name in renamed:
            raise WeightsError(f"the checkpoint has two tensors for {name}, of which one is {old}: two are mixed")
        if not DROPPED.fullmatch(name):
            renamed[name] = tensor
    return renamed


def _labels(hub: Mapping[str, Any]) -> list[str] | None:
    labels = hub.get("label_names")
    if isinstance(labels, Mapping):
        labels = [labels[key] for key in sorted(labels, key=int)]
    return [str(label) for label in labels] if labels else None


def _infer(state: State, hub: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[ViTConfig, dict[str, Any]]:
    args = dict(hub.get("model_args") or {})
    architecture = str(hub.get("architecture", ""))
    base = _zoo_config(architecture)
    for name in ("blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight", "blocks.0.attn.proj.weight"):
        if name not in state:
            raise WeightsError(f"the timm checkpoint has no {name}: its blocks are not those of a plain ViT")
    weight = state["patch_embed.proj.weight"]
    width, chans = weight.shape[0], weight.shape[1]
    depth = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))
    fields: dict[str, Any] = {
        "embed_dim": width,
        "depth": depth,
        "in_chans": chans,
        "patch_size": (weight.shape[2], weight.shape[3]),
        "patch_bias": "patch_embed.proj.bias" in state,
        "patch_norm": "after" if "patch_embed.norm.weight" in state else "none",
        "class_token": "cls_token" in state,
        "distilled": "dist_token" in state,
        "registers": state["reg_token"].shape[1] if "reg_token" in state else 0,
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
        "qk_norm": "blocks.0.attn.q_norm.weight" in state,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in state else None,
        "norm": "layer" if "blocks.0.norm1.bias" in state else "rms",
        "pre_norm": "norm_pre.weight" in state,
        "relative_bias": "blocks.0.attn.rel_pos.relative_position_bias_table" in state,
        "pre_logits": state["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in state else None,
        "num_classes": state["head.weight"].shape[0] if "head.weight" in state else 0,
    }
    hidden, back = state["blocks.0.mlp.fc1.weight"].shape[0], state["blocks.0.mlp.fc2.weight"].shape[1]
    fields["mlp"] = "swiglu" if hidden == 2 * back else "plain"
    fields["mlp_ratio"] = mlp_ratio(width, hidden)
    fields |= _pooling(state, args.get("global_pool") or hub.get("global_pool"))
    fields |= _backbone(state, chans)
    fields |= _noise(args)
    customs: dict[str, Any] = {"num_heads": _heads(state, width), "norm_eps": 1e-6, "act": "gelu"}
    for pattern, custom in CUSTOMS:
        if re.search(pattern, architecture):
            customs |= custom
    if base is not None:  # what the name of the architecture says
        customs |= {name: getattr(base, name) for name in ("num_heads", "norm_eps", "act") if base.embed_dim == width}
    if "num_heads" in args:
        customs["num_heads"] = args["num_heads"]
    if args.get("act_layer") in ACTIVATIONS:
        customs["act"] = ACTIVATIONS[args["act_layer"]]
    if args.get("use_rot_pos_emb"):
        customs["rope"] = True
    if customs.get("rope") and "rope_temperature" in args:
        customs["rope_theta"] = args["rope_temperature"]
    if "attn_head_dim" in args:
        raise WeightsError("attn_head_dim in model_args is not known: give num_heads and head_dim")
    fields |= customs | dict(known)
    inner = state["blocks.0.attn.proj.weight"].shape[1]
    if inner != width and "head_dim" not in known:
        fields["head_dim"] = inner // fields["num_heads"]
    size = known.get("img_size") or args.get("img_size")
    if size is None and (hub.get("pretrained_cfg") or {}).get("input_size"):
        size = tuple(hub["pretrained_cfg"]["input_size"][1:])
    fields |= _positions(state, fields, pair("img_size", size) if size else None)
    said = {*args, *known, *(("img_size",) if size else ())}
    assumed = {name: fields[name] for name in ("img_size", "num_heads", "norm_eps", "act") if name not in said}
    return ViTConfig(**fields), assumed if base is None else {}


def _zoo_config(architecture: str) -> ViTConfig | None:
    bare = architecture.split(".")[0]
    row = next((row for row in zoo().values() if row.timm == bare), None)
    return row.config if row is not None and isinstance(row.config, ViTConfig) else None


def _heads(state: State, width: int) -> int:
    if "blocks.0.attn.rel_pos.relative_position_bias_table" in state:
        return state["blocks.0.attn.rel_pos.relative_position_bias_table"].shape[1]
    if "blocks.0.attn.q_norm.weight" in state:
        return state["blocks.0.attn.proj.weight"].shape[1] // len(state["blocks.0.attn.q_norm.weight"])
    return custom_heads(width)


def _pooling(state: State, pool: Any) -> dict[str, Any]:
    names = {"avg": "mean", "token": "token", "map": "map"}
    if pool and pool not in names:
        raise WeightsError(f"the checkpoint pools by {pool!r}, which is not known here: known are avg, token, map")
    if "attn_pool.latent" in state:
        found = "map"
    else:
        is_mean = "cls_token" not in state or "fc_norm.weight" in state  # a norm after pooling goes with the mean
        found = names[pool] if pool else "mean" if is_mean else "token"
    norm = "tokens" if "norm.weight" in state else "pooled" if "fc_norm.weight" in state else "none"
    return {"pool": found, "final_norm": norm}


def _backbone(state: State, chans: int) -> dict[str, Any]:
    """A hybrid's ResNet, from the names of its parts."""
    prefix = "patch_embed.backbone."
    if not any(name.startswith(prefix) for name in state):
        return {}
    stem = "conv.weight" if f"{prefix}conv.weight" in state else "stem.conv.weight"
    if f"{prefix}{stem}" not in state:
        raise WeightsError("the hybrid's backbone is not a BiT ResNet, which is the only one known here")
    first: Tensor = state[f"{prefix}{stem}"]
    layers = _stage_layers(state, f"{prefix}stages.")
    config = ResNetConfig(
        layers=layers, width=first.shape[0], in_chans=first.shape[1], preact=False, padding="same", num_classes=0
    )
    return {"backbone": config, "in_chans": first.shape[1]}


def _stage_layers(state: State, prefix: str) -> tuple[int, ...]:
    found = re.compile(re.escape(prefix) + r"(\d+)\.blocks\.(\d+)\.")
    pairs = {(int(m[1]), int(m[2])) for name in state if (m := found.match(name))}
    stages = {stage for stage, _ in pairs}
    return tuple(1 + max(block for s, block in pairs if s == stage) for stage in sorted(stages))


def _infer_resnet(state: State, hub: Mapping[str, Any], known: Mapping[str, Any]) -> ResNetConfig:
    stem = state["stem.conv.weight"]
    size = (hub.get("pretrained_cfg") or {}).get("input_size") or (3, 224, 224)
    fields: dict[str, Any] = {
        "layers": _stage_layers(state, "stages."),
        "width": stem.shape[0],
        "in_chans": stem.shape[1],
        "small_stem": stem.shape[2] == 3,
        "preact": "stem.norm.weight" not in state,
        "num_classes": state["head.fc.weight"].shape[0] if "head.fc.weight" in state else 0,
        "img_size": tuple(size[1:]),
    }
    return ResNetConfig(**(fields | dict(known)))


def _noise(args: Mapping[str, Any]) -> dict[str, Any]:
    ours = {"proj_drop_rate": "dropout", "attn_drop_rate": "attn_dropout", "pos_drop_rate": "embed_dropout"}
    ours |= {"drop_rate": "head_dropout", "drop_path_rate": "drop_path", "patch_drop_rate": "patch_drop"}
    ours |= {"dynamic_img_size": "dynamic_img_size"}
    return {ours[name]: value for name, value in args.items() if name in ours}


def _positions(state: State, fields: Mapping[str, Any], size: Pair | None) -> dict[str, Any]:
    """Picture size and who has positions, from the length of the table."""
    prefix = int(fields["class_token"]) + int(fields["distilled"]) + int(fields["registers"])
    if "pos_embed" not in state:
        return {"positions": "none", "img_size": size or _bias_grid(state, fields)}
    length = state["pos_embed"].shape[1]
    said = fields.get("prefix_positions")
    holders = [who for who in (("all", prefix), ("none", 0), ("class", 1)) if said in (None, who[0])]
    probe = ViTConfig(**{**fields, "positions": "none", "relative_bias": False, "img_size": _any_size(fields)})
    if size is not None:
        try:
            patches = replace(probe, img_size=size).num_patches
        except ConfigError:
            patches = -1
        for name, count in holders:
            if length == patches + count:
                return {"positions": "learned", "prefix_positions": name, "img_size": size}
    for name, count in holders:
        side = math.isqrt(max(length - count, 0))
        if side and side * side == length - count:
            return {"positions": "learned", "prefix_positions": name, "img_size": _size_of_grid(probe, side)}
    raise UnknownSizeError(
        f"the checkpoint has {length} positions, which no square picture of {fields['patch_size']} patches has:"
        " give its img_size"
    )


def _any_size(fields: Mapping[str, Any]) -> Pair:
    """Some picture size that fits."""
    scale = 64 if fields.get("backbone") else 1
    return fields["patch_size"][0] * scale, fields["patch_size"][1] * scale


def _size_of_grid(config: ViTConfig, side: int) -> Pair:
    scale = 1
    if config.backbone is not None:
        scale = 2 ** (2 + max(len(config.backbone.layers) - 1, 0))
    return side * config.patch_size[0] * scale, side * config.patch_size[1] * scale


def _bias_grid(state: State, fields: Mapping[str, Any]) -> Pair:
    table = state.get("blocks.0.attn.rel_pos.relative_position_bias_table")
    if table is None:
        return 224, 224
    side = (math.isqrt(len(table)) + 1) // 2
    return side * fields["patch_size"][0], side * fields["patch_size"][1]
