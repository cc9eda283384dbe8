"""Writing for torchvision: the state dict of its VisionTransformer, or what it cannot hold."""

from __future__ import annotations

from torch.nn import functional as F

from vitrail.errors import WeightsError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.weights.files import State
from vitrail.weights.torchvision import names


def write(config: ViTConfig | ResNetConfig, state: State) -> State:
    """The tensors under torchvision's names; a WeightsError says what it cannot hold."""
    if isinstance(config, ResNetConfig):
        raise WeightsError("torchvision's ResNet is not BiT's: save it for timm")
    reason = _why_not(config)
    if reason:
        raise WeightsError(f"torchvision's VisionTransformer cannot hold {reason}")
    if config.prefix_positions == "none":  # there, the class token has a position: one that adds nothing
        state = {**state, "pos_embed": F.pad(state["pos_embed"], (0, 0, 1, 0))}
    theirs = names(config.depth)
    return {theirs[name]: tensor.contiguous().clone() for name, tensor in state.items()}


def _why_not(config: ViTConfig) -> str | None:
    """The first thing that torchvision does not have."""
    checks = (
        (config.img_size[0] == config.img_size[1], "pictures that are not square"),
        (config.patch_size[0] == config.patch_size[1], "patches that are not square"),
        (config.in_chans == 3, f"in_chans={config.in_chans}: it reads 3 channels"),
        (config.patch_bias, "patches without a bias"),
        (config.stride is None and config.patch_norm == "none", "overlapping or normed patches"),
        (config.backbone is None and not config.conv_stem, "such a network before the patches"),
        (config.class_token, "a model without class token"),
        (not config.registers, "registers"),
        (not config.distilled, "a distillation token"),
        (config.positions != "none", "a model without positions"),
        (config.positions != "learned_2d", "factorised 2-D positions"),
        (not config.rope and not config.relative_bias, "rope or relative_bias"),
        (config.head_dim is None, "a head_dim other than embed_dim / num_heads"),
        (config.mlp == "plain", "SwiGLU"),
        (config.act == "gelu", f"act={config.act!r}: its activation is the exact GELU"),
        (config.norm == "layer", "RMSNorm"),
        (config.norm_eps == 1e-6, f"norm_eps={config.norm_eps:g}: its epsilon is 1e-6"),
        (config.qkv_bias, "qkv_bias=False"),
        (not config.qk_norm, "QK-norm"),
        (config.attn_scale is None, "an attention scale of its own"),
        (config.layer_scale is None, "LayerScale"),
        (not config.pre_norm, "a norm before the blocks"),
        (config.pool == "token", f"pooling by {config.pool}"),
        (config.final_norm == "tokens", "this final norm"),
        (not config.levels, "several levels before the head"),
        (config.num_classes > 0, "a model without head"),
    )
    return next((reason for ok, reason in checks if not ok), None)
