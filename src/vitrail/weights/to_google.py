"""Writing Google's `.npz`: the tree of names that its published files have, or why there is none.

The parts of a block are `LayerNorm_0`, `MultiHeadDotProductAttention_1`, `LayerNorm_2` and `MlpBlock_3`: the numbers of
the files that Google published, which its own code and everybody else's read; Linen's own (0, 0, 1, 0) are read by few.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import WeightsError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.zoo import create
from vitrail.weights.checkpoint import check_fit
from vitrail.weights.files import State
from vitrail.whole import written_whole

Arrays = dict[str, NDArray[Any]]


def _unit(found: re.Match[str]) -> str:
    """Google counts stages and blocks of a ResNet from one."""
    return f"block{int(found[1]) + 1}/unit{int(found[2]) + 1}/"


# ours → theirs, applied in this order
RULES = (
    (r"^patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.", _unit),
    (r"^patch_embed\.backbone\.(?:stem\.)?conv\.", "conv_root/"),
    (r"^patch_embed\.backbone\.(?:stem\.)?norm\.weight$", "gn_root/scale"),
    (r"^patch_embed\.backbone\.(?:stem\.)?norm\.", "gn_root/"),
    (r"/downsample\.conv\.", "/conv_proj/"),
    (r"/downsample\.norm\.weight$", "/gn_proj/scale"),
    (r"/downsample\.norm\.", "/gn_proj/"),
    (r"(unit\d+)/norm(\d)\.weight$", r"\1/gn\2/scale"),
    (r"(unit\d+)/norm(\d)\.", r"\1/gn\2/"),
    (r"/conv(\d)\.", r"/conv\1/"),
    (r"^patch_embed\.proj\.", "embedding/"),
    (r"^cls_token$", "cls"),
    (r"^pos_embed$", "Transformer/posembed_input/pos_embedding"),
    (r"^blocks\.(\d+)\.", r"Transformer/encoderblock_\1/"),
    (r"^norm\.weight$", "Transformer/encoder_norm/scale"),
    (r"^norm\.", "Transformer/encoder_norm/"),
    (r"/norm1\.weight$", "/LayerNorm_0/scale"),
    (r"/norm1\.", "/LayerNorm_0/"),
    (r"/norm2\.weight$", "/LayerNorm_2/scale"),
    (r"/norm2\.", "/LayerNorm_2/"),
    (r"/attn\.(query|key|value)\.", r"/MultiHeadDotProductAttention_1/\1/"),
    (r"/attn\.proj\.", "/MultiHeadDotProductAttention_1/out/"),
    (r"/mlp\.fc1\.", "/MlpBlock_3/Dense_0/"),
    (r"/mlp\.fc2\.", "/MlpBlock_3/Dense_1/"),
    (r"^pre_logits\.fc\.", "pre_logits/"),
    (r"^head\.", "head/"),
    (r"/weight$", "/kernel"),
)


def write(config: ViTConfig | ResNetConfig, state: State) -> Arrays:
    """The arrays by Google's names, in float32; a WeightsError says what Google's tree cannot hold."""
    if isinstance(config, ResNetConfig):
        raise WeightsError("Google's tree cannot hold a ResNet without a transformer")
    reason = _why_not(config)
    if reason:
        raise WeightsError(f"Google's tree cannot hold {reason}")
    with torch.device("meta"):
        expected = create(config).state_dict()
    check_fit({name: tuple(tensor.shape) for name, tensor in expected.items()}, state, "vitrail")
    arrays: Arrays = {}
    for name, tensor in _unpack(config, state).items():
        for pattern, to in RULES:
            name = re.sub(pattern, to, name)
        tensor = tensor.detach().to("cpu", torch.float32)
        arrays[name] = tensor.clone(memory_format=torch.contiguous_format).numpy()
    return arrays


def save(path: Path, arrays: Arrays) -> None:
    """Writes the file, whole or not at all."""
    with written_whole(path) as new, new.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _unpack(config: ViTConfig, state: State) -> State:
    """Every tensor with its axes in Google's order; queries, keys and values apart."""
    heads = (config.num_heads, config.key_dim)
    found: State = {}
    for name, tensor in state.items():
        if name == "pos_embed" and config.class_token and not config.num_positioned:
            tensor = F.pad(tensor, (0, 0, 1, 0))  # Google's class token has a position: zero adds nothing
        elif ".attn.qkv." in name:
            for part, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                piece = piece.T.reshape(-1, *heads) if piece.ndim == 2 else piece.reshape(heads)
                found[name.replace(".qkv.", f".{part}.")] = piece
            continue
        elif name.endswith(".attn.proj.weight"):
            tensor = tensor.T.reshape(*heads, -1)
        else:
            tensor = _turn(tensor)
        found[name] = tensor
    return found


def _turn(tensor: Tensor) -> Tensor:
    if tensor.ndim == 4:
        return tensor.permute(2, 3, 1, 0)
    return tensor.T if tensor.ndim == 2 else tensor


def _why_not(config: ViTConfig) -> str | None:
    """The first thing that Google's tree, or the code that reads it, has no place for."""
    checks = (
        (config.stride is None, "overlapping patches (stride)"),
        (not config.conv_stem, "a convolutional stem"),
        (config.backbone is None or _is_google(config.backbone), "a ResNet with other choices than Google's hybrids"),
        (config.patch_bias, "patches without a bias"),
        (config.patch_norm == "none", "a norm around the patch projection"),
        (not config.distilled, "a distillation token"),
        (not config.registers, "registers"),
        (config.positions in ("learned", "sincos_2d", "sincos_1d"), f"positions={config.positions!r}"),
        (not config.rope, "rope"),
        (not config.relative_bias, "a relative bias"),
        (config.norm == "layer", "RMSNorm"),
        (config.norm_eps == 1e-6, f"norm_eps={config.norm_eps:g}: its code has 1e-6"),
        (config.mlp == "plain", "SwiGLU"),
        (config.act == "gelu_tanh", f"act={config.act!r}: its code has gelu_tanh"),
        (config.qkv_bias, "queries, keys and values without a bias"),
        (not config.qk_norm, "a norm of queries and keys"),
        (config.head_dim is None, "a head_dim other than embed_dim / num_heads"),
        (config.attn_scale is None, "an attention scale of its own"),
        (config.layer_scale is None, "LayerScale"),
        (not config.pre_norm, "a norm before the blocks"),
        (config.pool in ("token", "mean"), f"pool={config.pool!r}: it has the class token or the mean"),
        (config.pool != "mean" or not config.class_token, "a class token beside the mean"),
        (config.final_norm == "tokens", f"final_norm={config.final_norm!r}: its norm stands before the pooling"),
        (not config.levels, "several levels before the head"),
    )
    return next((reason for ok, reason in checks if not ok), None)


def _is_google(resnet: ResNetConfig) -> bool:
    ours = ResNetConfig(
        layers=resnet.layers,
        width=resnet.width,
        in_chans=resnet.in_chans,
        preact=False,
        padding="same",
        norm_eps=1e-6,
        weight_eps=1e-5,
        weight_eps_on="deviation",
    )
    free = ("img_size", "num_classes", "zero_head")
    return replace(resnet, **{name: getattr(ours, name) for name in free}) == ours
