"""Which parameters learn, how fast, and with how much weight decay: the parameter groups of an optimiser."""

from __future__ import annotations

import difflib
import re
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from vitrail.errors import ConfigError
from vitrail.model.attention import Attention
from vitrail.model.layers import SwiGLU
from vitrail.training.recipe import Group, Optimiser

_BLOCK = re.compile(r"blocks\.(\d+)\.")
_FIRST = ("patch_embed.", "cls_token", "dist_token", "reg_token", "pos_embed", "norm_pre.")
_MATRIX = re.compile(r"(decoder_)?blocks\.\d+\.")
_NEVER_DECAYED = (
    "cls_token",
    "dist_token",
    "reg_token",
    "mask_token",
    "pos_embed",
    "last_layer",
    "latent",
    "relative_position_bias_table",
)


def parameter_groups(model: nn.Module, optimiser: Optimiser, *, split: bool = True) -> list[dict[str, Any]]:
    """torch's parameter groups; what a rule freezes is frozen here, and is in none of them.

    Each has `params`, their `names`, `weight_decay`, `base_lr` (the peak) and `lr_scale` (layer decay times the rules'
    factors): the learning rate of a step is the schedule's factor times both. Muon's groups say their `kind`, "matrix"
    or "rest", and in how many `parts` a matrix is taken: with `split`, queries, keys and values are three, the two
    halves of SwiGLU two. A rule's weight decay holds for all that it matches, norms and biases too.
    """
    rules = _rules(model, optimiser.groups)
    depth = _depth(model, optimiser)
    parts = _parts(model) if optimiser.name == "muon" else {}
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        rule = rules.get(name)
        if rule is not None and rule.frozen:
            parameter.requires_grad_(False)
        if not parameter.requires_grad:
            continue
        decay = 0.0 if parameter.ndim <= 1 or _is_never_decayed(name) else optimiser.weight_decay
        scale = optimiser.layer_decay ** (depth + 1 - _layer(name, depth))
        if rule is not None:
            decay = decay if rule.weight_decay is None else rule.weight_decay
            scale *= rule.lr
        settings: dict[str, Any] = {"lr_scale": scale, "weight_decay": decay, "base_lr": optimiser.lr}
        if optimiser.name == "muon":
            settings["kind"] = "matrix" if name in parts else "rest"
            settings["parts"] = parts.get(name, 1) if split else 1
            settings["base_lr"] = optimiser.muon_lr if name in parts else optimiser.lr
        settings["lr"] = settings["base_lr"] * scale
        group = groups.setdefault(tuple(settings.values()), {"params": [], "names": [], **settings})
        group["params"].append(parameter)
        group["names"].append(name)
    if not groups:
        raise ConfigError("every parameter is frozen: nothing is left to train, so change optimiser.groups")
    return list(groups.values())


def _rules(model: nn.Module, rules: tuple[Group, ...]) -> dict[str, Group]:
    """The rule that holds for each parameter: the last that matches its name."""
    names = [name for name, _ in model.named_parameters()]
    found: dict[str, Group] = {}
    for rule in rules:
        matching = [name for name in names if fnmatchcase(name, rule.match)]
        if not matching:
            near = difflib.get_close_matches(rule.match, names, 3, cutoff=0.3) or names[:3]
            raise ConfigError(
                f"optimiser.groups: no parameter matches {rule.match!r}, where * stands for anything: "
                f"there is {', '.join(near)}, …"
            )
        found.update(dict.fromkeys(matching, rule))
    return found


def _depth(model: nn.Module, optimiser: Optimiser) -> int:
    """Number of blocks."""
    depth = len({found[1] for name, _ in model.named_parameters() if (found := _BLOCK.match(name))})
    if depth == 0 and optimiser.layer_decay < 1:
        raise ConfigError("optimiser.layer_decay needs a model with blocks, a Vision Transformer: set it to 1")
    if depth == 0 and optimiser.name == "muon":
        raise ConfigError("muon needs a model with blocks, a Vision Transformer: choose another optimiser")
    return depth


def _layer(name: str, depth: int) -> int:
    """As BEiT and MAE count: 0 what comes before the blocks, then the blocks, then all that follows them."""
    if found := _BLOCK.match(name):
        return int(found[1]) + 1
    return 0 if name.startswith(_FIRST) else depth + 1


def _is_never_decayed(name: str) -> bool:
    return any(part.startswith(_NEVER_DECAYED) for part in name.split("."))


def _parts(model: nn.Module) -> dict[str, int]:
    """The matrices inside the blocks, and how many each is made of."""
    packed: dict[str, int] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            packed[f"{name}.qkv.weight"] = 3
        elif isinstance(module, SwiGLU):
            packed[f"{name}.fc1.weight"] = 2
    inside = (item for item in model.named_parameters() if _MATRIX.match(item[0]))
    return {name: packed.get(name, 1) for name, one in inside if one.ndim == 2 and not _is_never_decayed(name)}
