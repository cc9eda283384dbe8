"""The initialisations: the paper's, one for short trainings, the truncated normal of DeiT's line, PyTorch's own."""

from __future__ import annotations

import math

from torch import Tensor, nn

from vitrail.model.attention import Attention, AttentionPool, RelativeBias
from vitrail.model.config import ViTConfig
from vitrail.model.layers import LayerScale
from vitrail.model.resnet import StdConv

TOKENS = ("cls_token", "dist_token", "reg_token")
POSITIONS = ("pos_embed", "pos_embed_rows", "pos_embed_cols", "pos_embed_prefix")


def initialise(model: nn.Module, config: ViTConfig) -> None:
    """Fills a freshly made ViT with random numbers, as its configuration says."""
    for name, parameter in model.named_parameters(recurse=False):
        if name in POSITIONS:
            nn.init.normal_(parameter, std=0.02)
        if name in TOKENS:
            # the paper starts the class token at zero; several registers must differ, or they would stay equal
            paper = config.init in ("paper", "identity") and name == "cls_token"
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
    if config.init in ("paper", "identity"):
        _paper(model)
    if config.init == "identity":
        _identity(model)
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


def _identity(model: nn.Module) -> None:
    """The paper's, but every block begins as the identity, and keys equal to queries: patches attend to their like."""
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            q, k, _ = module.qkv.weight.data.chunk(3)
            k.copy_(q)
        if name.startswith("blocks.") and name.endswith((".attn.proj", ".mlp.fc2")) and isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)


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
