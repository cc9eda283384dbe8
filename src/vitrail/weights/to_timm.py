"""Writing for timm: finding the architecture of timm's that computes the same, or saying why there is none."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

from vitrail.errors import VitrailError, WeightsError
from vitrail.model.config import NOISE, ResNetConfig, ViTConfig
from vitrail.model.fields import Pair
from vitrail.model.zoo import zoo
from vitrail.pictures import Preprocessing
from vitrail.weights.files import State

HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
# fields that change nothing once a model is trained
IRRELEVANT = (*NOISE, "init", "zero_head", "head_bias")


class Form(NamedTuple):
    """What timm needs to make the same model."""

    architecture: str
    model_args: dict[str, Any]
    state: State
    config: ViTConfig | ResNetConfig  # of that state: positions of the class token may have been folded into it


def write(config: ViTConfig | ResNetConfig, state: State) -> Form:
    """The timm architecture that computes the same, and its tensors; a WeightsError says why there is none."""
    if isinstance(config, ResNetConfig):
        return _write_resnet(config, state)
    config, state = fold_class_position(config, state)
    reason = _why_not(config)
    if reason:
        raise WeightsError(f"timm has no architecture with {reason}")
    args: dict[str, Any] = {
        "img_size": list(config.img_size),
        "patch_size": _short(config.patch_size),
        "in_chans": config.in_chans,
        "embed_dim": config.embed_dim,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": config.mlp_ratio,
        "qkv_bias": config.qkv_bias,
        # transformers leaves out what is None, and the architecture's own LayerScale would come in its place
        "init_values": 0.0 if config.layer_scale is None else config.layer_scale,
        "class_token": config.class_token,
        "global_pool": {"mean": "avg"}.get(config.pool, config.pool),
        "qk_norm": config.qk_norm,
    }
    if config.rope:
        return _write_rope(config, args, state)
    args["fc_norm"] = config.final_norm == "pooled"
    if config.relative_bias:
        args |= {"rel_pos_type": "bias"}
        return Form("vit_relpos_base_patch16_224", args, state, config)
    args |= {
        "pos_embed": "none" if config.positions == "none" else "learn",
        "no_embed_class": config.prefix_positions == "none",
        "reg_tokens": config.registers,
        "pre_norm": config.pre_norm,
        "final_norm": config.final_norm != "none",
        "dynamic_img_size": config.dynamic_img_size,
    }
    if config.mlp != "swiglu":
        args["act_layer"] = config.act
    if config.norm == "rms":
        args["norm_layer"] = "rmsnorm"
    if config.patch_norm == "after":
        args["embed_norm_layer"] = "rmsnorm" if config.norm == "rms" else "layernorm"
    named = _named(config)
    if named:
        return Form(named, {"img_size": list(config.img_size), "in_chans": config.in_chans}, state, config)
    architecture = "vit_base_patch16_224"
    if config.distilled:
        architecture = "deit_base_distilled_patch16_224"
    elif config.backbone is not None:
        architecture = HYBRIDS[config.backbone.layers]
    elif config.mlp == "swiglu":
        architecture = "vit_giant_patch14_dinov2"
    elif config.norm == "layer" and config.norm_eps == 1e-5:
        architecture = "vit_base_patch16_clip_224"
    return Form(architecture, args, state, config)


def fold_class_position(config: ViTConfig, state: State) -> tuple[ViTConfig, State]:
    """DINOv2 gives the class token a position but not the registers; timm adds it to the class token once and for all.
    The sum is the one that the forward pass would make, so no logit changes."""
    if config.prefix_positions != "class" or config.positions != "learned":
        return config, state
    state = dict(state)
    state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
    state["pos_embed"] = state["pos_embed"][:, 1:].contiguous()
    return replace(config, prefix_positions="none"), state


def _why_not(config: ViTConfig) -> str | None:
    """The first thing that no timm architecture has."""
    plain = config.backbone is None and not config.distilled and not config.rope and not config.relative_bias
    eps = config.norm_eps == 1e-6 or (
        config.norm_eps == 1e-5 and plain and config.norm == "layer" and config.mlp == "plain"
    )
    bias = config.patch_bias == (not config.pre_norm)
    resnet = config.backbone
    if resnet is not None:
        known = ResNetConfig(
            layers=resnet.layers, preact=False, padding="same", in_chans=config.in_chans, num_classes=0
        )
        if resnet.layers not in HYBRIDS or replace(resnet, img_size=known.img_size) != known:
            return "such a ResNet before the patches (timm's epsilons are norm_eps=1e-5, weight_eps=1e-8)"
    checks = (
        (config.stride is None, "overlapping patches"),
        (not config.conv_stem, "this convolutional stem"),
        (config.patch_norm in ("none", "after"), "a norm before the patch projection"),
        (config.patch_norm == "none" or plain, "a norm after the patch projection in this kind of model"),
        (bias, "a patch bias beside a norm before the blocks" if config.patch_bias else "patches without a bias"),
        (config.positions != "learned_2d", "factorised 2-D positions"),
        (config.prefix_positions != "class" or config.positions == "none", "positions of the class token alone"),
        (config.head_dim is None, "a head_dim other than embed_dim / num_heads"),
        (config.attn_scale is None, "an attention scale of its own"),
        (config.pre_logits is None, "pre_logits"),
        (not config.levels, "several levels before the head"),
        (config.pool != "token_mean", "pooling by class token and mean"),
        (eps, f"norm_eps={config.norm_eps:g} (load with norm_eps=1e-6 to save for timm)"),
        (not (config.pool == "map" and config.mlp == "swiglu"), "attention pooling beside SwiGLU"),
        (not (config.patch_norm == "after" and config.norm_eps != 1e-6), "this epsilon in a norm after the patches"),
        (not (config.rope and config.relative_bias), "both rope and relative_bias"),
        (not config.distilled or (not config.registers and config.prefix_positions == "all"), "such distilled tokens"),
        (not config.distilled or config.final_norm == "tokens", "this final norm in a distilled model"),
        (not config.distilled or config.positions != "none", "a distilled model without positions"),
        (not (config.distilled and config.backbone), "a distilled hybrid"),
        (config.mlp == "plain" or plain, "SwiGLU in this kind of model"),
    )
    for ok, reason in checks:
        if not ok:
            return reason
    if config.rope or config.relative_bias:
        return _why_not_sister(config)
    return None


def _why_not_sister(config: ViTConfig) -> str | None:
    """The same for RoPE and relative biases, which timm has as models of their own with fewer choices."""
    kind = "rope" if config.rope else "relative_bias"
    if config.backbone or config.distilled or config.dynamic_img_size:
        return f"{kind} in this kind of model"
    if config.norm != "layer" or config.act != "gelu" or config.final_norm == "none" or config.pool == "map":
        return f"{kind} beside this norm, activation or pooling"
    if config.relative_bias and (config.positions != "none" or config.registers or config.pre_norm):
        return "relative_bias beside other positions, registers or a norm before the blocks"
    return None


def _write_rope(config: ViTConfig, args: dict[str, Any], state: State) -> Form:
    args |= {
        "num_reg_tokens": config.registers,
        "no_embed_class": config.prefix_positions == "none",
        "use_abs_pos_emb": config.positions != "none",
        "rope_temperature": config.rope_theta,
        "use_pre_transformer_norm": config.pre_norm,
        "use_fc_norm": config.final_norm == "pooled",
    }
    state = {re.sub(r"\.ls(\d)\.gamma$", r".gamma_\1", name): tensor for name, tensor in state.items()}
    if config.layer_scale is not None:
        return Form("vit_base_patch16_rope_224", args, state, config)
    # that one would have a LayerScale for any number; this one has none unless it is asked for, and takes all the rest
    args |= {"attn_type": "rope", "use_rot_pos_emb": True, "rope_grid_indexing": "xy"}
    return Form("eva_giant_patch14_224", {k: v for k, v in args.items() if k != "init_values"}, state, config)


def _write_resnet(config: ResNetConfig, state: State) -> Form:
    known = ResNetConfig(layers=config.layers, in_chans=config.in_chans)
    relevant = replace(config, img_size=known.img_size, num_classes=known.num_classes, zero_head=known.zero_head)
    names = {(3, 4, 6, 3): "resnetv2_50x1_bit", (3, 4, 23, 3): "resnetv2_101x1_bit"}
    if relevant != known or config.layers not in names:
        raise WeightsError("timm has no architecture with this ResNet: it has BiT's R50 and R101")
    return Form(names[config.layers], {"in_chans": config.in_chans}, state, config)


def _named(config: ViTConfig) -> str | None:
    """A name of timm's that says it all, but for the size of the picture."""
    for row in zoo().values():
        other = row.config
        if row.timm is None or not isinstance(other, ViTConfig):
            continue
        same = {name: getattr(config, name) for name in (*IRRELEVANT, "num_classes", "img_size", "in_chans")}
        backbone = config.backbone if other.backbone and config.backbone else other.backbone
        try:
            if other.replace(**same, backbone=backbone and backbone.replace(in_chans=config.in_chans)) == config:
                return row.timm
        except VitrailError:
            continue
    return None


def _short(size: Pair) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def hub_config(form: Form, preprocessing: Preprocessing, classes: list[str] | None) -> dict[str, Any]:
    """The config.json that timm and transformers read."""
    config = form.config
    pool = {"token": "token", "mean": "avg", "map": "map"}.get(getattr(config, "pool", "mean"), "")
    plain: dict[str, Any] = {
        "architecture": form.architecture,
        "num_classes": config.num_classes,
        "num_features": config.embed_dim if isinstance(config, ViTConfig) else config.out_chans,
        "global_pool": pool,
        "model_args": form.model_args,
    }
    if classes:
        plain["label_names"] = list(classes)
    plain["pretrained_cfg"] = {
        "num_classes": config.num_classes,
        **preprocessing.to_timm(),
        "first_conv": "patch_embed.proj" if isinstance(config, ViTConfig) else "stem.conv",
        "classifier": "head" if isinstance(config, ViTConfig) else "head.fc",
    }
    return plain
