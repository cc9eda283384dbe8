"""timm's checkpoints. Parameters have the same names here, so reading is inferring the configuration, and writing is
finding the timm architecture that computes the same."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from vitrail.errors import ConfigError, VitrailError, WeightsError
from vitrail.model.config import Pair, ResNetConfig, ViTConfig, pair
from vitrail.model.zoo import zoo
from vitrail.pictures import Preprocessing
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.files import State

# what a state dict does not hold, by the name of the architecture: the custom of each line of models
CUSTOMS: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"clip|beit3", {"norm_eps": 1e-5}),
    (r"quickgelu", {"act": "quick_gelu"}),
    (r"patch32_siglip|giantopt|large_patch16_siglip_(gap_)?512|so400m_patch16", {"act": "gelu_tanh"}),
    (r"giantopt|^vit_base_patch16_gap", {"num_heads": 16}),
    (r"_rope_", {"rope": True}),
)
WIDE_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}  # heads by width, where they are not 64 channels each
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "relu": "relu"}
HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
# fields that change nothing once a model is trained
IRRELEVANT = ("dropout", "attn_dropout", "embed_dropout", "head_dropout", "drop_path", "init", "zero_head", "head_bias")


def recognise(state: State) -> bool:
    """Whether these are timm's names."""
    vit = "patch_embed.proj.weight" in state and any(name.startswith("blocks.0.") for name in state)
    return vit or ("stem.conv.weight" in state and "stages.0.blocks.0.conv1.weight" in state)


def read(state: State, hub: Mapping[str, Any] | None = None, **known: Any) -> Checkpoint:
    """Understands a timm state dict. `hub` is its config.json, `known` are fields that the caller is sure of."""
    hub = hub or {}
    pretrained = hub.get("pretrained_cfg") or {}
    classes = _labels(hub)
    preprocessing = Preprocessing.from_timm(pretrained) if pretrained else None
    if "stem.conv.weight" in state:
        return Checkpoint("timm", _infer_resnet(state, hub, known), dict(state), preprocessing, classes)
    state = rename(state)
    config, assumed = _infer(state, hub, known)
    return Checkpoint("timm", config, state, preprocessing, classes, assumed=assumed)


def rename(state: State) -> State:
    """Older and sister spellings: LayerScale as `gamma_1`, pre-logits that came with some files."""
    names = ((r"\.gamma_(\d)$", r".ls\1.gamma"), (r"^head\.fc\.", "head."))
    renamed = {}
    for name, tensor in state.items():
        for pattern, to in names:
            name = re.sub(pattern, to, name)
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
    assumed = {name: fields[name] for name in ("num_heads", "norm_eps", "act") if name not in args | dict(known)}
    return ViTConfig(**fields), assumed if base is None else {}


def _zoo_config(architecture: str) -> ViTConfig | None:
    bare = architecture.split(".")[0]
    row = next((row for row in zoo().values() if row.timm == bare), None)
    return row.config if row is not None and isinstance(row.config, ViTConfig) else None


def mlp_ratio(width: int, hidden: int) -> float:
    """The ratio that gives exactly this hidden width."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def custom_heads(width: int) -> int:
    """64 channels a head, but for the widths that are published otherwise."""
    return WIDE_HEADS.get(width, max(1, width // 64))


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
        found = names[pool] if pool else ("token" if "cls_token" in state else "mean")
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
    fields = {
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
    ours |= {"drop_rate": "head_dropout", "drop_path_rate": "drop_path", "dynamic_img_size": "dynamic_img_size"}
    return {ours[name]: value for name, value in args.items() if name in ours}


def _positions(state: State, fields: Mapping[str, Any], size: Pair | None) -> dict[str, Any]:
    """Picture size and who has positions, from the length of the table."""
    prefix = int(fields["class_token"]) + int(fields["distilled"]) + int(fields["registers"])
    if "pos_embed" not in state:
        return {"positions": "none", "img_size": size or _bias_grid(state, fields)}
    length = state["pos_embed"].shape[1]
    probe = ViTConfig(**{**fields, "positions": "none", "relative_bias": False, "img_size": _any_size(fields)})
    if size is not None:
        try:
            patches = replace(probe, img_size=size).num_patches
        except ConfigError:
            patches = -1
        for name, count in (("all", prefix), ("none", 0), ("class", 1)):
            if length == patches + count:
                return {"positions": "learned", "prefix_positions": name, "img_size": size}
    for name, count in (("all", prefix), ("none", 0), ("class", 1)):
        side = math.isqrt(max(length - count, 0))
        if side and side * side == length - count:
            return {"positions": "learned", "prefix_positions": name, "img_size": _size_of_grid(probe, side)}
    raise WeightsError(
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
        "init_values": config.layer_scale,
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
        known = ResNetConfig(layers=resnet.layers, preact=False, padding="same", in_chans=config.in_chans, num_classes=0)
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
    return Form("vit_base_patch16_rope_224", args, state, config)


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

