"""Reading Google's `.npz`: vision_transformer's files, older and newer, with the hybrids, and big_vision's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import UnknownSizeError, WeightsError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.fields import Pair, pair
from vitrail.model.positions import sincos_2d
from vitrail.pictures import Preprocessing
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.customs import mlp_ratio
from vitrail.weights.files import State

# where the picture model may stand in a file, the deepest first
PREFIXES = ("opt/target/", "params/img/", "params/", "img/", "")
CUSTOMS: dict[str, Any] = {"norm_eps": 1e-6, "act": "gelu_tanh"}  # flax's LayerNorm and gelu, if not told otherwise
EMPTY_HEAD = "all zeros, as published for fine-tuning: its answers mean nothing"


def _unit(found: re.Match[str]) -> str:
    """Google counts stages and blocks of a ResNet from one."""
    return f"patch_embed.backbone.stages.{int(found[1]) - 1}.blocks.{int(found[2]) - 1}."


# theirs → ours, applied in this order to names without the prefix. Numbers say which call of its kind a part was:
# in older files (before Linen) of all calls, so the second norm is 2 there and 1 later
RULES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"^(?:Transformer/(?:posembed_input/)?)?pos_embedding$", "pos_embed"),
    (r"^cls$", "cls_token"),
    (r"^embedding/", "patch_embed.proj."),
    (r"^Transformer/encoderblock_(\d+)/", r"blocks.\1."),
    (r"^Transformer/encoder_norm/", "norm."),
    (r"^pre_logits/", "pre_logits.fc."),
    (r"^head/", "head."),
    (r"^(?:MAPHead_0/)?probe$", "attn_pool.latent"),
    (r"^(?:MAPHead_0/)?LayerNorm_0/", "attn_pool.norm."),
    (r"^(?:MAPHead_0/)?MultiHeadDotProductAttention_0/", "attn_pool."),
    (r"^(?:MAPHead_0/)?MlpBlock_0/", "attn_pool.MlpBlock_0/"),
    (r"\.LayerNorm_0/", ".norm1."),
    (r"\.LayerNorm_[12]/", ".norm2."),
    (r"\.MultiHeadDotProductAttention_[01]/", ".attn."),
    (r"\.MlpBlock_[03]/Dense_0/", ".mlp.fc1."),
    (r"\.MlpBlock_[03]/Dense_1/", ".mlp.fc2."),
    (r"\.(query|key|value|out)/", r".\1."),
    (r"^conv_root/", "patch_embed.backbone.stem.conv."),
    (r"^gn_root/", "patch_embed.backbone.stem.norm."),
    (r"^block(\d+)/unit(\d+)/", _unit),
    (r"\.conv(\d)/", r".conv\1."),
    (r"\.gn(\d)/", r".norm\1."),
    (r"\.conv_proj/", ".downsample.conv."),
    (r"\.gn_proj/", ".downsample.norm."),
    (r"\.(?:kernel|scale)$", ".weight"),
)
# theirs, its axes, and how they become ours
LAYOUTS: tuple[tuple[str, str, Callable[[Tensor], Tensor]], ...] = (
    (r"/(?:query|key|value)/kernel$", "width, heads, channels", lambda t: t.flatten(1).T),
    (r"/(?:query|key|value)/bias$", "heads, channels", lambda t: t.flatten()),
    (r"/out/kernel$", "heads, channels, width", lambda t: t.flatten(0, 1).T),
    (r"(?:^|/)(?:embedding|conv\w+)/kernel$", "height, width, in, out", lambda t: t.permute(3, 2, 0, 1)),
    (r"/kernel$", "in, out", lambda t: t.T),
    (r"(?:^|/)gn\w+/(?:scale|bias)$", "", lambda t: t.flatten()),  # (1, 1, 1, channels) in older files
)


def recognise(state: State) -> bool:
    """Whether these are Google's names."""
    prefix = _prefix(state)
    return prefix is not None and any(name.startswith(f"{prefix}Transformer/encoderblock") for name in state)


def read(
    state: State, hub: Mapping[str, Any] | None = None, processor: Mapping[str, Any] | None = None, **known: Any
) -> Checkpoint:
    """Understands Google's flat tree of arrays. `known` are fields that the caller is sure of."""
    prefix = _prefix(state) or ""
    tree = _unstack({name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)})
    ours = _pack(_rename(tree))
    config, assumed = _infer(tree, ours, known)
    if config.positions == "sincos_2d":  # computed by big_vision, kept here
        ours["pos_embed"] = sincos_2d(config.grid, config.embed_dim)[None]
    if "head.weight" in ours and not ours["head.weight"].any():
        assumed["head"] = EMPTY_HEAD
    preprocessing = None
    if config.in_chans in (1, 3):
        two_towers = prefix.endswith("img/")
        preprocessing = _preprocessing(config, crops=_is_big_vision(tree) and not two_towers)
        assumed["preprocessing"] = preprocessing.describe()
    return Checkpoint("google", config, ours, preprocessing, resampling="google", assumed=assumed)


def _prefix(state: State) -> str | None:
    return next((prefix for prefix in PREFIXES if f"{prefix}embedding/kernel" in state), None)


def _is_big_vision(tree: State) -> bool:
    return "Transformer/posembed_input/pos_embedding" not in tree


def _preprocessing(config: ViTConfig, crops: bool) -> Preprocessing:
    """vision_transformer and the image-text models of big_vision resize; its classifiers resize and crop."""
    half = (0.5,) * config.in_chans
    if crops:
        return Preprocessing(size=config.img_size, crop_pct=0.875, interpolation="box", mean=half, std=half)
    return Preprocessing(
        size=config.img_size, fit="squash", crop_pct=1.0, interpolation="bilinear", mean=half, std=half
    )


def _unstack(tree: State) -> State:
    """Blocks that were scanned over are stacked into one, with their depth as the first axis."""
    stacked = "Transformer/encoderblock/"
    depths = {tensor.shape[:1] for name, tensor in tree.items() if name.startswith(stacked)}
    if len(depths) > 1 or () in depths:
        raise WeightsError("the google checkpoint stacks its blocks, but not equally many of each part: it is damaged")
    found: State = {}
    for name, tensor in tree.items():
        if not name.startswith(stacked):
            found[name] = tensor
            continue
        for i, part in enumerate(tensor.unbind()):
            found[f"Transformer/encoderblock_{i}/{name.removeprefix(stacked)}"] = part
    return found


def _rename(tree: State) -> State:
    has_stages = any(name.startswith("block1/") for name in tree)
    found: State = {}
    for theirs, tensor in tree.items():
        name = theirs
        for pattern, to in RULES:
            name = re.sub(pattern, to, name)
        if not has_stages:  # a stem alone has no parts
            name = name.replace(".backbone.stem.", ".backbone.")
        if name in found:
            raise WeightsError(f"the google checkpoint has {name} twice, under older and newer names: it is mixed")
        found[name] = _lay_out(theirs, tensor)
    return found


def _lay_out(name: str, tensor: Tensor) -> Tensor:
    """The tensor with its axes in our order, in memory of its own."""
    for pattern, axes, turn in LAYOUTS:
        if re.search(pattern, name):
            if axes and tensor.ndim != axes.count(",") + 1:
                raise WeightsError(f"the google checkpoint has {name} of shape {tuple(tensor.shape)}, not ({axes})")
            tensor = turn(tensor)
            break
    return tensor.clone(memory_format=torch.contiguous_format)


def _pack(state: State) -> State:
    """Queries, keys and values as one matrix; the pooling's query stays by itself."""
    for name in [name for name in state if ".query." in name]:
        parts = [name.replace(".query.", f".{part}.") for part in ("query", "key", "value")]
        if any(part not in state for part in parts):
            raise WeightsError(f"{name} has no key and value beside it: the google checkpoint is not whole")
        shapes = [tuple(state[part].shape) for part in parts]
        if len(set(shapes)) > 1:
            raise WeightsError(f"the google checkpoint has {name} with a key and value of other shapes: {shapes}")
        tensors = [state.pop(part) for part in parts]
        if name.startswith("attn_pool."):
            state[name.replace(".query.", ".q.")] = tensors[0]
            state[name.replace(".query.", ".kv.")] = torch.cat(tensors[1:])
        else:
            state[name.replace(".query.", ".qkv.")] = torch.cat(tensors)
    return {name.replace(".out.", ".proj."): tensor for name, tensor in state.items()}


def _infer(tree: State, state: State, known: Mapping[str, Any]) -> tuple[ViTConfig, dict[str, Any]]:
    blocks = {int(name.split(".")[1]) for name in state if name.startswith("blocks.")}
    lost = sorted(set(range(max(blocks) + 1)) - blocks)
    if lost:
        raise WeightsError(
            f"the google checkpoint lacks {len(lost)} of {max(blocks) + 1} blocks"
            f" ({', '.join(map(str, lost[:8]))}{', …' if len(lost) > 8 else ''}): it is not whole"
        )
    for name in ("mlp.fc1.weight", "attn.qkv.weight", "attn.proj.weight"):
        if f"blocks.0.{name}" not in state:
            raise WeightsError(f"the google checkpoint has no blocks.0.{name}: it is not whole")
    weight = state["patch_embed.proj.weight"]
    width = weight.shape[0]
    query = next(t for name, t in tree.items() if name.endswith("/query/kernel") and "/encoderblock_0/" in name)
    heads, head_dim = query.shape[1], query.shape[2]
    pool = "map" if "attn_pool.latent" in state else "token" if "cls_token" in state else "mean"
    fields: dict[str, Any] = {
        "embed_dim": width,
        "depth": len(blocks),
        "num_heads": heads,
        "head_dim": None if heads * head_dim == width else head_dim,
        "mlp_ratio": mlp_ratio(width, state["blocks.0.mlp.fc1.weight"].shape[0]),
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
        "in_chans": weight.shape[1],
        "patch_size": (weight.shape[2], weight.shape[3]),
        "patch_bias": "patch_embed.proj.bias" in state,
        "class_token": "cls_token" in state,
        "pool": pool,
        "pre_logits": state["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in state else None,
        "num_classes": state["head.weight"].shape[0] if "head.weight" in state else 0,
        **CUSTOMS,
    }
    backbone = _backbone(tree)
    if backbone is not None:
        fields |= {"backbone": backbone, "in_chans": backbone.in_chans}
    fields |= _positions(tree, state, fields, known.get("img_size"))
    guesses = ["img_size", *CUSTOMS]
    guesses += ["positions"] * ("pos_embed" not in state) + ["pool"] * (pool == "mean")
    fields |= dict(known)
    return ViTConfig(**fields), {name: fields[name] for name in guesses if name not in known}


def _backbone(tree: State) -> ResNetConfig | None:
    """A hybrid's ResNet, with Google's epsilons."""
    if "conv_root/kernel" not in tree:
        return None
    root = tree["conv_root/kernel"]
    units = {(int(m[1]), int(m[2])) for name in tree if (m := re.match(r"block(\d+)/unit(\d+)/", name))}
    stages = range(1, 1 + max((stage for stage, _ in units), default=0))
    return ResNetConfig(
        layers=tuple(max((unit for s, unit in units if s == stage), default=0) for stage in stages),
        width=root.shape[3],
        in_chans=root.shape[2],
        num_classes=0,
        preact=False,
        padding="same",
        norm_eps=1e-6,
        weight_eps=1e-5,
        weight_eps_on="deviation",
    )


def _positions(tree: State, state: State, fields: Mapping[str, Any], known: Any) -> dict[str, Any]:
    """Picture size, and whether the class token has a position, from the length of the table."""
    size = pair("img_size", known) if known else None
    table = state.get("pos_embed")
    if table is None:
        return {"positions": "sincos_2d", "prefix_positions": "none", "img_size": size or (224, 224)}
    if table.ndim != 3:
        raise WeightsError(f"the google checkpoint has positions of shape {tuple(table.shape)}, not (1, tokens, width)")
    scale = fields["backbone"].reduction if fields.get("backbone") else 1
    cell: Pair = (fields["patch_size"][0] * scale, fields["patch_size"][1] * scale)
    slots = (0,) if not fields["class_token"] else (0, 1) if _is_big_vision(tree) else (1, 0)
    for slot in slots:
        patches = table.shape[1] - slot
        side = math.isqrt(max(patches, 0) * cell[0] * cell[1])
        found = size or (side, side)
        fits = found[0] % cell[0] == found[1] % cell[1] == 0
        if patches and fits and (found[0] // cell[0]) * (found[1] // cell[1]) == patches:
            return {"positions": "learned", "prefix_positions": "all" if slot else "none", "img_size": found}
    which = f"picture of {size[0]} x {size[1]}" if size else "square picture"
    raise UnknownSizeError(
        f"the google checkpoint has {table.shape[1]} positions, which no {which} in cells of {cell[0]} x {cell[1]} has:"
        " give the img_size that it was trained with"
    )
