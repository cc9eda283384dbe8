"""Reading transformers' checkpoints: ViT, DeiT, DINOv2 (with and without registers) and CLIP's vision tower."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from vitrail.errors import WeightsError
from vitrail.model.config import ViTConfig
from vitrail.model.fields import pair
from vitrail.pictures import Preprocessing
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.customs import custom_heads, mlp_ratio, square_size
from vitrail.weights.files import State

PREFIXES = ("vit.", "deit.", "dinov2.", "dinov2_with_registers.", "clip.")
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}

# theirs → ours, applied in this order to names without the model's prefix; spellings on disk and in memory differ
RULES: tuple[tuple[str, str], ...] = (
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.distillation_token$", "dist_token"),
    (r"^embeddings\.register_tokens$", "reg_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^(?:vision_model\.)?embeddings\.class_embedding$", "cls_token"),
    (r"^(?:vision_model\.)?embeddings\.patch_embedding\.", "patch_embed.proj."),
    (r"^(?:vision_model\.)?embeddings\.position_embedding\.weight$", "pos_embed"),
    (r"^(?:vision_model\.)?pre_layrnorm\.", "norm_pre."),
    (r"^(?:vision_model\.)?post_layernorm\.", "norm."),
    (r"^(?:vision_model\.)?(?:encoder\.layers?|layers)\.(\d+)\.", r"blocks.\1."),
    (r"\.(?:layernorm_before|layer_norm1)\.", ".norm1."),
    (r"\.(?:layernorm_after|layer_norm2)\.", ".norm2."),
    (r"\.(?:attention\.attention\.(query|key|value)|(?:attention|self_attn)\.([qkv])_proj)\.", r".attn.\1\2."),
    (r"\.attn\.(?:query)\.", ".attn.q."),
    (r"\.attn\.(?:key)\.", ".attn.k."),
    (r"\.attn\.(?:value)\.", ".attn.v."),
    (r"\.(?:attention\.output\.dense|attention\.o_proj|self_attn\.out_proj)\.", ".attn.proj."),
    (r"\.(?:intermediate\.dense|mlp\.weights_in)\.", ".mlp.fc1."),
    (r"\.(?:output\.dense|mlp\.weights_out|mlp\.down_proj)\.", ".mlp.fc2."),
    (r"\.layer_scale(\d)\.lambda1$", r".ls\1.gamma"),
    (r"^layernorm\.", "norm."),
    (r"^pooler\.dense\.", "pre_logits.fc."),
    (r"^(?:classifier|cls_classifier|visual_projection)\.", "head."),
    (r"^distillation_classifier\.", "head_dist."),
)
# not part of the picture model: mask tokens of pretraining, CLIP's text side, tables of indices
DROPPED = re.compile(r"(^|\.)(mask_token|position_ids|logit_scale|text_model\..*|text_projection\..*|decoder\..*)$")


def recognise(state: State) -> bool:
    """Whether these are transformers' names."""
    return any(
        name.endswith(("embeddings.patch_embeddings.projection.weight", "embeddings.patch_embedding.weight"))
        for name in state
    )


def read(state: State, hub: Mapping[str, Any] | None = None, processor: Mapping[str, Any] | None = None,
         **known: Any) -> Checkpoint:  # fmt: skip
    """Understands a transformers state dict. `hub` is its config.json, `processor` its preprocessor_config.json."""
    hub = dict(hub or {})
    hub = {**hub, **hub["vision_config"]} if isinstance(hub.get("vision_config"), Mapping) else hub
    is_clip = any("patch_embedding.weight" in name for name in state)
    is_teacher = any(name.startswith("distillation_classifier.") for name in state)
    ours = rename(state)
    if "pos_embed" in ours and ours["pos_embed"].ndim == 2:
        ours["pos_embed"] = ours["pos_embed"][None]
    if is_clip and ours["cls_token"].ndim == 1:
        ours["cls_token"] = ours["cls_token"][None, None]
    if "dist_token" in ours and not is_teacher:
        ours["reg_token"] = ours.pop("dist_token")  # it takes part, but no head reads it: a register
    has_classifier = any(name.startswith("classifier.") for name in state)
    if is_clip and has_classifier:  # CLIPForImageClassification reads the patches before the last norm
        ours.pop("norm.weight", None)
        ours.pop("norm.bias", None)
    if "head.weight" in ours and "head.bias" not in ours:
        ours["head.bias"] = torch.zeros(ours["head.weight"].shape[0])
    config, assumed = _infer(ours, hub, is_clip, has_classifier, known)
    labels = hub.get("id2label")
    classes = [str(labels[key]) for key in sorted(labels, key=int)] if labels else None
    if classes and (len(classes) != config.num_classes or classes == [f"LABEL_{i}" for i in range(len(classes))]):
        classes = None
    registers = hub.get("model_type") == "dinov2_with_registers"
    return Checkpoint(
        "transformers",
        config,
        ours,
        Preprocessing.from_transformers(processor) if processor else None,
        classes,
        resampling="dinov2_reg" if registers else "transformers",
        assumed=assumed,
    )


def rename(state: State) -> State:
    """Their names as ours, with queries, keys and values in one matrix."""
    packed: State = {}
    for name, tensor in state.items():
        if DROPPED.search(name):
            continue
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        for pattern, to in RULES:
            name = re.sub(pattern, to, name)
        packed[name] = tensor
    for name in [name for name in packed if ".attn.q." in name]:
        parts = [name.replace(".attn.q.", f".attn.{part}.") for part in "qkv"]
        if any(part not in packed for part in parts):
            raise WeightsError(f"{name} has no key and value beside it: the checkpoint is not whole")
        packed[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat([packed.pop(part) for part in parts])
    for name in [name for name in packed if ".mlp.gate_proj." in name]:
        up = name.replace("gate_proj", "up_proj")
        packed[name.replace("gate_proj", "fc1")] = torch.cat([packed.pop(name), packed.pop(up)])
    return packed


def _infer(
    state: State, hub: Mapping[str, Any], is_clip: bool, has_classifier: bool, known: Mapping[str, Any]
) -> tuple[ViTConfig, dict[str, Any]]:
    weight = state["patch_embed.proj.weight"]
    width, patch = weight.shape[0], (weight.shape[2], weight.shape[3])
    depth = 1 + max((int(name.split(".")[1]) for name in state if name.startswith("blocks.")), default=0)
    if "blocks.0.mlp.fc1.weight" not in state:
        raise WeightsError("the transformers checkpoint has no blocks: it is not whole")
    hidden, back = state["blocks.0.mlp.fc1.weight"].shape[0], state["blocks.0.mlp.fc2.weight"].shape[1]
    registers = state["reg_token"].shape[1] if "reg_token" in state else 0
    distilled = "dist_token" in state
    customs = {
        "num_heads": hub.get("num_attention_heads", custom_heads(width)),
        "norm_eps": hub.get("layer_norm_eps", 1e-5 if is_clip else 1e-6 if "blocks.0.ls1.gamma" in state else 1e-12),
    }
    act = hub.get("hidden_act", "quick_gelu" if is_clip else "gelu")
    if act not in ACTIVATIONS:
        raise WeightsError(f"the activation {act!r} is not known here: known are {', '.join(ACTIVATIONS)}")
    inner = state["blocks.0.attn.proj.weight"].shape[1]
    positions = state["pos_embed"].shape[1]
    size = known.get("img_size") or hub.get("image_size")
    img_size = pair("img_size", size) if size else square_size(positions - 1 - distilled, patch)
    patches = (img_size[0] // patch[0]) * (img_size[1] // patch[1])
    pool, final_norm = "token", "tokens"
    if has_classifier and is_clip:
        pool, final_norm = "mean", "none"
    elif "head.weight" in state and state["head.weight"].shape[1] == 2 * width:
        pool = "token_mean"
    fields: dict[str, Any] = {
        **customs,
        "act": ACTIVATIONS[act],
        "img_size": (img_size[0] // patch[0] * patch[0], img_size[1] // patch[1] * patch[1]),
        "patch_size": patch,
        "in_chans": weight.shape[1],
        "patch_bias": "patch_embed.proj.bias" in state,
        "embed_dim": width,
        "depth": depth,
        "head_dim": None if inner == width else inner // customs["num_heads"],
        "mlp": "swiglu" if hidden == 2 * back else "plain",
        "mlp_ratio": mlp_ratio(width, hidden),
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
        "layer_scale": hub.get("layerscale_value", 1.0) if "blocks.0.ls1.gamma" in state else None,
        "pre_norm": "norm_pre.weight" in state,
        "registers": registers,
        "distilled": distilled,
        "prefix_positions": "all" if positions == patches + 1 + distilled + registers else "class",
        "pool": pool,
        "final_norm": final_norm,
        "pre_logits": state["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in state else None,
        "num_classes": state["head.weight"].shape[0] if "head.weight" in state else 0,
        "dropout": hub.get("hidden_dropout_prob", 0.0),
        "attn_dropout": hub.get("attention_probs_dropout_prob", hub.get("attention_dropout", 0.0)),
        "drop_path": hub.get("drop_path_rate", 0.0),
    }
    fields["embed_dropout"] = fields["dropout"]
    assumed = {} if hub else {**customs, "act": fields["act"]}
    return ViTConfig(**(fields | dict(known))), assumed
