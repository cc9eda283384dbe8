"""The initialisations: the paper's, one for short trainings, the truncated normal of DeiT's line, PyTorch's own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitrail.model.attention import Attention, AttentionPool, RelativeBias
from vitrail.model.config import ViTConfig
from vitrail.model.layers import LayerScale
from vitrail.model.positions import frequencies
from vitrail.model.resnet import StdConv

LOCAL = 8.0  # how strongly heads that begin local look at places, against what they see there
LONGEST = 3.0  # patches in a radian: channels that turn more slowly do not tell neighbours apart
NEIGHBOURS = ((1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))  # columns, rows
TOKENS = ("cls_token", "dist_token", "reg_token")
POSITIONS = ("pos_embed", "pos_embed_rows", "pos_embed_cols", "pos_embed_prefix")


def initialise(model: nn.Module, config: ViTConfig) -> None:
    """Fills a freshly made ViT with random numbers, as its configuration says."""
    for name, parameter in model.named_parameters(recurse=False):
        if name in POSITIONS:
            nn.init.normal_(parameter, std=0.02)
        if name in TOKENS:
            # the paper starts the class token at zero; several registers must differ, or they would stay equal
            paper = config.init in ("paper", "identity", "local") and name == "cls_token"
            nn.init.zeros_(parameter) if paper else nn.init.normal_(parameter, std=0.02)
    for module in model.modules():
        if isinstance(module, LayerScale):
            nn.init.constant_(module.gamma, module.value)
        elif isinstance(module, RelativeBias):
            nn.init.trunc_normal_(module.relative_position_bias_table, std=0.02)
        elif isinstance(module, StdConv):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, AttentionPool):
            nn.init.trunc_normal_(module.latent, std=module.latent.shape[-1] ** -0.5)
    if config.init in ("paper", "identity", "local"):
        _paper(model)
    if config.init in ("identity", "local"):
        _identity(model, tied=config.init == "identity")
    if config.init == "local":
        _local(model, config)
    elif config.init == "trunc_normal":
        _trunc_normal(model)


def _paper(model: nn.Module) -> None:
    """Flax's: Glorot matrices, biases of the MLP of 1e-6, LeCun's patch projection and pre-logits."""
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            for part in module.qkv.weight.chunk(3):  # each of the three is a matrix of its own
                _glorot(part)
        elif isinstance(module, AttentionPool):
            for part in module.kv.weight.chunk(2):
                _glorot(part)
        if isinstance(module, nn.Linear):
            if name == "pre_logits.fc":
                _lecun(module.weight)
            elif not name.endswith((".qkv", ".kv")):
                _glorot(module.weight)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=1e-6) if ".mlp." in name else nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d) and name == "patch_embed.proj":
            _lecun(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _identity(model: nn.Module, tied: bool) -> None:
    """The paper's, but every block begins as the identity, and keys equal to queries: patches attend to their like."""
    for name, module in model.named_modules():
        if isinstance(module, Attention) and tied:
            q, k, _ = module.qkv.weight.data.chunk(3)
            k.copy_(q)
        if name.startswith("blocks.") and name.endswith((".attn.proj", ".mlp.fc2")) and isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)


def _local(model: nn.Module, config: ViTConfig) -> None:
    """Heads begin as soft shifts, each towards one of eight neighbours, like the taps of a convolution.

    Rotations make it possible: where queries and keys are each the same everywhere, their product depends on the offset
    of two patches alone, as a sum of cosines; a query's that is turned by an offset puts the peak there. So biases
    do it, and training may undo it.
    """
    bands = frequencies(config.key_dim, config.rope_theta, torch.device("cpu"))
    bands = bands[bands * LONGEST >= 1]
    size = math.sqrt(LOCAL * config.key_dim / (2 * len(bands)))
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    for block, attention in enumerate(attentions):
        q, k, _ = attention.qkv.bias.data.view(3, config.num_heads, 2, -1, 2)  # heads, columns and rows, pairs, 2
        distance = 1 if block < len(attentions) / 2 else 2  # as if there had been a pooling between
        for head in range(config.num_heads):
            for axis, offset in enumerate(NEIGHBOURS[(block * config.num_heads + head) % len(NEIGHBOURS)]):
                angles = bands * distance * offset
                q[head, axis, : len(bands)] = size * torch.stack([angles.cos(), angles.sin()], -1)
                k[head, axis, : len(bands), 0] = size


def _trunc_normal(model: nn.Module) -> None:
    """Linear maps .02, the heads .01, convolutions as Kaiming has them."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.01 if name in ("head", "head_dist") else 0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d) and not isinstance(module, StdConv):
            nn.init.kaiming_uniform_(module.weight, nonlinearity="linear")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _glorot(weight: Tensor) -> None:
    bound = math.sqrt(6 / sum(weight.shape))
    nn.init.uniform_(weight, -bound, bound)


def _lecun(weight: Tensor) -> None:
    """Variance 1 / fan-in, cut off at two standard deviations of the normal distribution, as Flax has it."""
    std = math.sqrt(1 / weight[0].numel()) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def initialise_head(head: nn.Module | None, config: ViTConfig) -> None:
    """Zero weights and a chosen bias, if the configuration asks for them."""
    if not isinstance(head, nn.Linear):
        return
    if config.zero_head:
        nn.init.zeros_(head.weight)
    nn.init.constant_(head.bias, -math.log(config.num_classes) if config.head_bias == "prior" else config.head_bias)
