"""Reading the checkpoints of vit-pytorch (lucidrains): `ViT` and `SimpleViT`, of recent releases and older ones."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from vitrail.errors import WeightsError
from vitrail.model.config import ViTConfig
from vitrail.model.fields import Pair, pair
from vitrail.model.positions import sincos_2d
from vitrail.pictures import Preprocessing
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.customs import check_whole, mlp_ratio, renamed, square_size
from vitrail.weights.files import State

FAMILY = "vit-pytorch"
HEAD_DIM = 64  # by default, whatever the width
EXAMPLE_SIZE = 256  # of the pictures in its examples

# theirs → ours; older releases wrap a norm around each part (`fn`) and norm again in the head
RULES: tuple[tuple[str, str], ...] = (
    (r"to_patch_embedding\.1\.(weight|bias)", r"patch_embed.norm_pixels.\1"),
    (r"to_patch_embedding\.2\.(weight|bias)", r"patch_embed.proj.\1"),
    (r"to_patch_embedding\.3\.(weight|bias)", r"patch_embed.norm.\1"),
    (r"cls_token", "cls_token"),
    (r"register_tokens", "reg_token"),
    (r"pos_embedding", "pos_embed"),
    (r"transformer\.layers\.(\d+)\.0\.norm\.(weight|bias)", r"blocks.\1.norm1.\2"),
    (r"transformer\.layers\.(\d+)\.0\.(?:fn\.)?to_qkv\.weight", r"blocks.\1.attn.qkv.weight"),
    (r"transformer\.layers\.(\d+)\.0\.(?:fn\.)?to_out\.(?:0\.)?(weight|bias)", r"blocks.\1.attn.proj.\2"),
    (r"transformer\.layers\.(\d+)\.1\.(?:net\.0|norm)\.(weight|bias)", r"blocks.\1.norm2.\2"),
    (r"transformer\.layers\.(\d+)\.1\.(?:net\.1|fn\.net\.0)\.(weight|bias)", r"blocks.\1.mlp.fc1.\2"),
    (r"transformer\.layers\.(\d+)\.1\.(?:net\.[34]|fn\.net\.3)\.(weight|bias)", r"blocks.\1.mlp.fc2.\2"),
    (r"transformer\.norm\.(weight|bias)", r"norm.\1"),
    (r"(?:mlp|linear)_head\.0\.(weight|bias)", r"fc_norm.\1"),
    (r"(?:mlp|linear)_head\.(?:1\.)?(weight|bias)", r"head.\1"),
)


def recognise(state: State) -> bool:
    """Whether these are vit-pytorch's names."""
    return any(name.startswith("to_patch_embedding.") for name in state) and any(
        name.startswith("transformer.layers.0.0.") for name in state
    )


def read(state: State, hub: Mapping[str, Any] | None = None, processor: Mapping[str, Any] | None = None,
         **known: Any) -> Checkpoint:  # fmt: skip
    """Understands a state dict of vit-pytorch's, which has no configuration beside it."""
    ours = _rename(state)
    is_simple = "pos_embed" not in ours and "cls_token" not in ours
    needed = ["patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight"]
    check_whole(ours, needed + ["pos_embed"] * (not is_simple), FAMILY)
    patch, chans, guessed = _patches(ours["patch_embed.proj.weight"].shape[1], known)
    assumed: dict[str, Any] = {"patch_size": patch, "in_chans": chans} if guessed else {}
    _turn_pixels(ours, patch, chans)
    assumed |= _tokens(ours, known)
    heads, head_dim, guessed = _heads(ours, known)
    assumed |= {"num_heads": heads} if guessed else {}
    _complete_projections(ours)
    size = _size(ours, patch, known)
    assumed["img_size"] = size

    width = ours["patch_embed.proj.weight"].shape[0]
    fields: dict[str, Any] = {
        "img_size": size,
        "patch_size": patch,
        "in_chans": chans,
        "patch_norm": "both" if "patch_embed.norm_pixels.weight" in ours else "none",
        "class_token": "cls_token" in ours,
        "registers": ours["reg_token"].shape[1] if "reg_token" in ours else 0,
        "positions": "sincos_2d" if is_simple else "learned",
        "prefix_positions": "none" if is_simple else "all",
        "embed_dim": width,
        "depth": 1 + max(int(name.split(".")[1]) for name in ours if name.startswith("blocks.")),
        "num_heads": heads,
        "head_dim": head_dim,
        "mlp_ratio": mlp_ratio(width, ours["blocks.0.mlp.fc1.weight"].shape[0]),
        "norm_eps": 1e-5,
        "qkv_bias": False,
        "pool": "token" if "cls_token" in ours else "mean",
        "final_norm": "tokens" if "norm.weight" in ours else "pooled" if "fc_norm.weight" in ours else "none",
        "num_classes": ours["head.weight"].shape[0] if "head.weight" in ours else 0,
    }
    config = ViTConfig(**(fields | dict(known)))
    if config.positions == "sincos_2d":  # it computes them, and keeps them out of its state dict
        ours["pos_embed"] = sincos_2d(config.grid, width)[None]
    preprocessing = Preprocessing.from_transformers(processor) if processor else None
    assumed = {name: value for name, value in assumed.items() if name not in known}
    return Checkpoint(FAMILY, config, ours, preprocessing, assumed=assumed)


def _rename(state: State) -> State:
    first = state.get("to_patch_embedding.1.weight")
    is_bare = first is not None and first.ndim == 2  # older: a projection without norms
    table = {}
    for name in state:
        place = name.replace("to_patch_embedding.1.", "to_patch_embedding.2.") if is_bare else name
        for pattern, to in RULES:
            if found := re.fullmatch(pattern, place):
                table[name] = found.expand(to)
    return renamed(state, table, FAMILY)


def _patches(pixels: int, known: Mapping[str, Any]) -> tuple[Pair, int, bool]:
    """Patch size and channels from the length of a patch, and whether custom had to decide: square, RGB or grey."""
    if "patch_size" in known:
        patch = pair("patch_size", known["patch_size"])
        chans = pixels // (patch[0] * patch[1])
        if chans * patch[0] * patch[1] == pixels and chans == known.get("in_chans", chans) and chans:
            return patch, chans, False
        raise WeightsError(f"a patch has {pixels} values in the {FAMILY} checkpoint: {patch} pixels do not fit")
    for chans in (known["in_chans"],) if "in_chans" in known else (3, 1):  # no number is both 3 n² and m²
        side = math.isqrt(pixels // chans)
        if side and chans * side * side == pixels:
            return (side, side), chans, True
    raise WeightsError(f"patches of {pixels} values are not square pictures of 3 channels or 1: give patch_size")


def _turn_pixels(state: State, patch: Pair, chans: int) -> None:
    """They write a patch as rows, columns, channels; here it is channels, rows, columns."""
    for name in ("patch_embed.norm_pixels.weight", "patch_embed.norm_pixels.bias"):
        if name in state and state[name].numel() == patch[0] * patch[1] * chans:
            state[name] = state[name].reshape(*patch, chans).permute(2, 0, 1).flatten()
    weight = state["patch_embed.proj.weight"]
    state["patch_embed.proj.weight"] = weight.reshape(-1, *patch, chans).permute(0, 3, 1, 2).contiguous()


def _tokens(state: State, known: Mapping[str, Any]) -> dict[str, Any]:
    """Gives tokens and positions the first axis that some releases have; returns what is assumed of them."""
    assumed = {}
    token = state.get("cls_token")
    if token is not None and not token.numel():  # pooling by mean, in releases since then
        del state["cls_token"]
    elif token is not None and known.get("pool", "token") != "token":
        raise WeightsError(f"where {FAMILY} has a class token, its mean is over that token too: not known here")
    elif token is not None and token.ndim == 3:
        assumed["pool"] = "token"  # older releases have the token for both kinds of pooling
    for name in ("cls_token", "reg_token", "pos_embed"):
        if name in state and state[name].ndim == 2:
            state[name] = state[name][None]
        elif name in state and state[name].ndim != 3:
            raise WeightsError(f"{name} has {state[name].ndim} axes in the {FAMILY} checkpoint: no ViT for pictures")
    return assumed


def _heads(state: State, known: Mapping[str, Any]) -> tuple[int, int, bool]:
    """Heads, their width, and whether custom had to decide."""
    inner = state["blocks.0.attn.qkv.weight"].shape[0] // 3
    guessed = False
    if "num_heads" in known:
        heads = int(known["num_heads"])
    elif "head_dim" in known:
        heads = inner // int(known["head_dim"])
    elif not any(name.endswith(".attn.proj.weight") for name in state):
        heads = 1  # one head as wide as the model is not projected
    else:
        heads, guessed = inner // HEAD_DIM, True
    if heads < 1 or inner % heads or (guessed and inner % HEAD_DIM):
        raise WeightsError(f"the {FAMILY} checkpoint's heads are {inner} wide together: give num_heads")
    return heads, inner // heads, guessed


def _complete_projections(state: State) -> None:
    """A single head that is not projected, and SimpleViT's projections without bias."""
    blocks = [name.removesuffix("qkv.weight") for name in state if name.endswith(".attn.qkv.weight")]
    shape = state["blocks.0.attn.qkv.weight"].shape
    if shape[0] == 3 * shape[1] and not any(name.endswith(".attn.proj.weight") for name in state):
        state |= {f"{block}proj.weight": torch.eye(shape[1]) for block in blocks}
    if not any(name.endswith(".attn.proj.bias") for name in state):
        state |= {f"{block}proj.bias": torch.zeros(shape[1]) for block in blocks}


def _size(state: State, patch: Pair, known: Mapping[str, Any]) -> Pair:
    if known.get("img_size"):
        return pair("img_size", known["img_size"])
    if "pos_embed" in state:
        return square_size(state["pos_embed"].shape[1] - int("cls_token" in state), patch)
    return patch[0] * max(1, EXAMPLE_SIZE // patch[0]), patch[1] * max(1, EXAMPLE_SIZE // patch[1])
