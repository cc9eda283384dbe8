"""Writing for transformers: config.json and tensors for `from_pretrained`, or why it has no such model."""

from __future__ import annotations

import re
from typing import Any

import torch

from vitrail.errors import WeightsError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.weights.files import State

WRITTEN_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu", "relu": "relu"}


def write(
    config: ViTConfig | ResNetConfig, state: State, classes: list[str] | None = None
) -> tuple[dict[str, Any], State]:
    """config.json and tensors for `from_pretrained`; a WeightsError says what transformers cannot hold."""
    if isinstance(config, ResNetConfig):
        raise WeightsError("transformers has no architecture with BiT's ResNet in our form: save it for timm")
    kind = _kind(config)
    reason = _why_not(config, kind, state)
    if reason:
        raise WeightsError(f"transformers' {kind[1]} cannot hold {reason}")
    model_type, architecture = kind
    size: Any = config.img_size[0] if config.img_size[0] == config.img_size[1] else list(config.img_size)
    patch: Any = config.patch_size[0] if config.patch_size[0] == config.patch_size[1] else list(config.patch_size)
    hub: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "dtype": "float32",
        "hidden_size": config.embed_dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "hidden_act": WRITTEN_ACTIVATIONS[config.act],
        "layer_norm_eps": config.norm_eps,
        "image_size": size,
        "patch_size": patch,
        "num_channels": config.in_chans,
    }
    if model_type == "clip_vision_model":
        hub |= {"intermediate_size": config.mlp_dim, "projection_dim": config.num_classes}
        hub |= {"attention_dropout": config.attn_dropout}
    else:
        hub |= {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.attn_dropout}
        hub |= {"qkv_bias": config.qkv_bias}
    if model_type in ("vit", "deit"):
        hub |= {"intermediate_size": config.mlp_dim}
        if config.head_dim is not None:
            hub |= {"head_dim": config.head_dim}
        if config.pre_logits is not None:
            hub |= {"pooler_output_size": config.pre_logits, "pooler_act": "tanh"}
    if model_type.startswith("dinov2"):
        hub |= {"mlp_ratio": _dinov2_ratio(config), "use_swiglu_ffn": config.mlp == "swiglu"}
        hub |= {"layerscale_value": config.layer_scale}
        if config.registers:
            hub |= {"num_register_tokens": config.registers}
    if config.num_classes and model_type != "clip_vision_model":
        names = classes or [f"LABEL_{i}" for i in range(config.num_classes)]
        hub |= {"id2label": {str(i): name for i, name in enumerate(names)}}
        hub |= {"label2id": {name: i for i, name in enumerate(names)}}
    return hub, _write_state(config, state, kind)


def _kind(config: ViTConfig) -> tuple[str, str]:
    """model_type and class in transformers."""
    if config.distilled:
        return "deit", "DeiTForImageClassificationWithTeacher"
    if config.pre_norm:
        return "clip_vision_model", "CLIPVisionModelWithProjection"
    if config.layer_scale is not None:
        kind, name = ("dinov2_with_registers", "WithRegisters") if config.registers else ("dinov2", "")
        return kind, f"Dinov2{name}" + ("ForImageClassification" if config.num_classes else "Model")
    if config.registers:
        return "deit", "DeiTForImageClassification"
    return "vit", "ViTForImageClassification" if config.num_classes else "ViTModel"


def _dinov2_ratio(config: ViTConfig) -> int | None:
    """The whole-numbered mlp_ratio from which transformers makes this hidden width."""
    for ratio in range(1, 17):
        hidden = config.embed_dim * ratio
        if config.mlp == "swiglu":
            hidden = 2 * ((int(hidden * 2 / 3) + 7) // 8 * 8)
        if hidden == config.mlp_dim:
            return ratio
    return None


def _why_not(config: ViTConfig, kind: tuple[str, str], state: State) -> str | None:
    model_type, architecture = kind
    dino, clip = model_type.startswith("dinov2"), model_type == "clip_vision_model"
    head_bias = state.get("head.bias")
    checks = (
        (config.class_token, "a model without class token"),
        (config.positions != "none", "a model without positions"),
        (config.positions != "learned_2d", "factorised 2-D positions"),
        (not config.rope and not config.relative_bias, "rope or relative_bias"),
        (config.backbone is None and not config.conv_stem, "a network before the patches"),
        (config.stride is None and config.patch_norm == "none", "overlapping or normed patches"),
        (config.norm == "layer", "RMSNorm"),
        (not config.qk_norm, "QK-norm"),
        (config.attn_scale is None, "an attention scale of its own"),
        (not config.levels, "several levels before the head"),
        (config.final_norm == "tokens", "this final norm"),
        (config.pool == ("token_mean" if dino and config.num_classes else "token"), f"pooling by {config.pool}"),
        (config.mlp == "plain" or dino, "SwiGLU"),
        (config.patch_bias != clip, "this patch bias"),
        (config.pre_logits is None or architecture == "ViTModel", "pre_logits together with a head"),
        (config.head_dim is None or model_type in ("vit", "deit"), "a head_dim other than embed_dim / num_heads"),
        (not dino or _dinov2_ratio(config) is not None, f"an MLP of width {config.mlp_dim}"),
        (not dino or config.img_size[0] == config.img_size[1], "pictures that are not square"),
        (not (dino and config.distilled), "LayerScale in a distilled model"),
        (config.layer_scale is None or dino, "LayerScale"),
        (not clip or config.num_classes > 0, "a model without projection"),
        (not clip or (head_bias is not None and not bool(head_bias.any())), "a bias in CLIP's projection"),
        (not clip or (config.qkv_bias and not config.registers), "qkv_bias=False or registers"),
        (not clip or config.img_size[0] == config.img_size[1], "pictures that are not square"),
        (model_type != "deit" or config.registers == 0 or config.registers == 1, "more than one register"),
        (model_type != "deit" or config.num_classes > 0, "a model without head"),
        (model_type == "dinov2_with_registers" or config.prefix_positions == "all", "tokens without positions"),
        (model_type != "dinov2_with_registers" or config.prefix_positions != "all", "registers with positions"),
    )
    return next((reason for ok, reason in checks if not ok), None)


def _write_state(config: ViTConfig, state: State, kind: tuple[str, str]) -> State:
    """Our tensors under their names, as they stand on disk."""
    model_type, architecture = kind
    clip, dino = model_type == "clip_vision_model", model_type.startswith("dinov2")
    prefix = "vision_model." if clip else "" if architecture.endswith("Model") else f"{model_type}."
    out: State = {}

    def put(name: str, tensor: torch.Tensor) -> None:
        out[name] = tensor.contiguous().clone()

    if config.prefix_positions == "none" and model_type == "dinov2_with_registers":
        state = dict(state)
        zero = torch.zeros_like(state["pos_embed"][:, :1])
        state["pos_embed"] = torch.cat([zero, state["pos_embed"]], dim=1)
    names = {
        "cls_token": "embeddings.cls_token",
        "dist_token": "embeddings.distillation_token",
        "reg_token": "embeddings.distillation_token" if model_type == "deit" else "embeddings.register_tokens",
        "pos_embed": "embeddings.position_embeddings",
        "patch_embed.proj": "embeddings.patch_embeddings.projection",
        "norm": "layernorm",
        "pre_logits.fc": "pooler.dense",
    }
    layer = "encoder.layer"
    inside = {
        "norm1": "norm1" if dino else "layernorm_before",
        "norm2": "norm2" if dino else "layernorm_after",
        "attn.proj": "attention.output.dense",
        "mlp.fc1": "mlp.fc1" if dino else "intermediate.dense",
        "mlp.fc2": "mlp.fc2" if dino else "output.dense",
    }
    qkv = [f"attention.attention.{part}" for part in ("query", "key", "value")]
    if config.mlp == "swiglu":
        inside |= {"mlp.fc1": "mlp.weights_in", "mlp.fc2": "mlp.weights_out"}
    if clip:
        names |= {
            "patch_embed.proj": "embeddings.patch_embedding",
            "norm_pre": "pre_layrnorm",
            "norm": "post_layernorm",
        }
        layer = "encoder.layers"
        inside = {"norm1": "layer_norm1", "norm2": "layer_norm2", "attn.proj": "self_attn.out_proj"}
        inside |= {"mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
        qkv = [f"self_attn.{part}_proj" for part in "qkv"]
    heads = {"head": "cls_classifier" if config.distilled else "classifier", "head_dist": "distillation_classifier"}
    for name, tensor in state.items():
        base, _, leaf = name.rpartition(".")
        if block := re.fullmatch(r"blocks\.(\d+)\.(.+)", base):
            where = f"{prefix}{layer}.{block[1]}"
            if block[2] == "attn.qkv":
                for part, piece in zip(qkv, tensor.chunk(3), strict=True):
                    put(f"{where}.{part}.{leaf}", piece)
            elif scale := re.fullmatch(r"ls(\d)", block[2]):
                put(f"{where}.layer_scale{scale[1]}.lambda1", tensor)
            else:
                put(f"{where}.{inside[block[2]]}.{leaf}", tensor)
        elif base in heads:
            if not clip:
                put(f"{heads[base]}.{leaf}", tensor)
            elif leaf == "weight":
                put("visual_projection.weight", tensor)
        elif clip and name == "cls_token":
            put(f"{prefix}embeddings.class_embedding", tensor.flatten())
        elif clip and name == "pos_embed":
            put(f"{prefix}embeddings.position_embedding.weight", tensor[0])
        elif name in names:
            put(f"{prefix}{names[name]}", tensor)
        else:
            put(f"{prefix}{names[base]}.{leaf}", tensor)
    if dino:
        put(f"{prefix}embeddings.mask_token", torch.zeros(1, config.embed_dim))
    return out
