"""Growing depth: a deeper ViT that at first computes what a trained, shallower one does.

Between the trained blocks come copies of them whose two outputs, the projection of the attention and the second layer
of the MLP, are zero: on the residual path such a block passes its input on, and it learns from the first step, since
what its outputs read is not zero. So do LEMON (Wang et al., 2023; for ViTs) and LLaMA Pro (Wu et al., 2024).
"""

from __future__ import annotations

import dataclasses

import torch

from vitrail.errors import ConfigError
from vitrail.model.config import NOISE, ViTConfig
from vitrail.model.vit import ViT

OUTPUTS = ("attn.proj.weight", "attn.proj.bias", "mlp.fc2.weight", "mlp.fc2.bias")
HEADS = ("head.", "head_dist.")
# what may differ beside the depth: noise, and how weights begin that are not taken over
FREE = {"dynamic_img_size", *NOISE}
FREE |= {"depth", "levels", "num_classes", "layer_scale", "init", "zero_head", "head_bias"}


def sources(shallow: int, deep: int) -> list[int]:
    """For each block of the deep model, the trained block it comes from: `sources(2, 5)` is [0, 0, 0, 1, 1].

    The first of several is the trained block itself; those after it are its silenced copies.
    """
    return [place * shallow // deep for place in range(deep)]


def grow(shallow: ViT, config: ViTConfig, *, keep_head: bool = True) -> ViT:
    """A model as `config` says, with the trained blocks of `shallow` spread evenly over its depth.

    Its logits are those of `shallow`, but for the head, which is fresh without `keep_head`. Everything but the depth
    must fit.
    """
    _check_fit(shallow.config, config, keep_head)
    deep, given = ViT(config), shallow.state_dict()
    state = deep.state_dict()
    state |= {
        name: tensor
        for name, tensor in given.items()
        if not name.startswith("blocks.") and (keep_head or not name.startswith(HEADS))
    }
    before = -1
    for place, source in enumerate(sources(shallow.config.depth, config.depth)):
        for name, tensor in shallow.blocks[source].state_dict().items():
            silent = source == before and name in OUTPUTS
            state[f"blocks.{place}.{name}"] = torch.zeros_like(tensor) if silent else tensor
        before = source
    deep.load_state_dict(state)
    return deep.train(shallow.training)


def _check_fit(shallow: ViTConfig, deep: ViTConfig, keep_head: bool) -> None:
    if deep.depth <= shallow.depth:
        raise ConfigError(
            f"a model of depth {shallow.depth} does not grow to depth {deep.depth}: choose more (architecture.depth)"
        )
    for name in (field.name for field in dataclasses.fields(deep)):
        theirs, ours = getattr(shallow, name), getattr(deep, name)
        if name not in FREE and theirs != ours:
            raise ConfigError(f"the model to grow has {name}={theirs}, not {ours}: only its depth may differ")
    if (shallow.layer_scale is None) != (deep.layer_scale is None):
        which = "the deeper one" if shallow.layer_scale is None else "the model to grow"
        raise ConfigError(f"only {which} has a LayerScale: both must have one, or none (architecture.layer_scale)")
    from_ = sources(shallow.depth, deep.depth)
    if tuple(from_[level] for level in deep.levels) != shallow.levels:
        raise ConfigError(f"levels={deep.levels} are not the blocks after which levels={shallow.levels} come to stand")
    if keep_head and shallow.num_classes != deep.num_classes:
        raise ConfigError(f"the head has {shallow.num_classes} classes, not {deep.num_classes}: take keep_head=False")
