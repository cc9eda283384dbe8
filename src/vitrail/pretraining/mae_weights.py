"""Published masked autoencoders, decoder and all: Facebook's own files, and transformers' folders."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.classifier import Classifier
from vitrail.errors import WeightsError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT
from vitrail.pretraining.mae import MaskedAutoencoder
from vitrail.training.methods import Mae
from vitrail.weights import hub, transformers
from vitrail.weights.checkpoint import check_fit
from vitrail.weights.files import State, find_weights, read_json, read_state

_HEADS = 16  # of every decoder that was published
# blocks of transformers' decoder have had three names, on disk and in memory
_THEIR_BLOCKS = re.compile(r"^decoder\.decoder_(?:layers|blocks|encoder\.layer)\.")
_OURS = re.compile(r"(mask_token|decoder_(embed|pos_embed|norm|pred|blocks\.\d+)(\..+)?)")


def load_autoencoder(
    source: str | os.PathLike[str], settings: Mae | None = None
) -> tuple[MaskedAutoencoder, Classifier]:
    """The whole autoencoder of a checkpoint, and its encoder as a model with preprocessing.

    `settings` may say the mask ratio and whether pixels are normalised; the decoder's shape is the checkpoint's.
    """
    encoder = Classifier.load(source, num_classes=0)
    state, heads = read_decoder(source)
    if not state:
        raise WeightsError(f"{source} has no decoder: it is no masked autoencoder, or only the encoder of one")
    shape: dict[str, Any] = decoder_shape(state, heads)
    settings = replace(settings or Mae(), **shape)
    model = MaskedAutoencoder(_vit(encoder).config, settings)
    model.load_state_dict(_vit(encoder).state_dict(), strict=False)
    put_decoder(model, state)
    return model.eval(), encoder


def put_decoder(model: MaskedAutoencoder, state: State) -> None:
    """Puts a decoder's tensors into the model."""
    own = {name: tensor for name, tensor in model.state_dict().items() if _OURS.fullmatch(name)}
    check_fit({name: tuple(tensor.shape) for name, tensor in own.items()}, state, "MAE decoder")
    model.load_state_dict(state, strict=False)


def read_decoder(source: str | os.PathLike[str]) -> tuple[State, int]:
    """The decoder's tensors in our names, which are those of MAE's own files, and its number of heads; no tensors where
    there is no decoder."""
    path = hub.fetch(str(source)) if str(source).startswith("hf:") else Path(source)
    if (path / "run.json").is_file():
        return {}, _HEADS
    heads = _HEADS
    if path.is_dir():
        if (path / "config.json").is_file():
            heads = int(read_json(path / "config.json").get("decoder_num_attention_heads", heads))
        path = find_weights(path)
    state = read_state(path)
    ours = {name: tensor.float() for name, tensor in state.items() if _OURS.fullmatch(name)}
    if "decoder_embed.weight" in ours:
        return ours, heads
    return _from_transformers(state), heads


def _from_transformers(state: State) -> State:
    if "decoder.decoder_embed.weight" not in state:
        return {}
    theirs = {name: tensor.float() for name, tensor in state.items() if name.startswith("decoder.")}
    inside = [name for name in theirs if _THEIR_BLOCKS.match(name)]
    blocks = {_THEIR_BLOCKS.sub("layers.", name): theirs.pop(name) for name in inside}
    found = {name.removeprefix("decoder."): tensor for name, tensor in theirs.items()}
    return found | {f"decoder_{name}": tensor for name, tensor in transformers.rename(blocks).items()}


def decoder_shape(state: State, heads: int) -> dict[str, int]:
    """The settings that a decoder's tensors were made with."""
    depth = len({name.split(".")[1] for name in state if name.startswith("decoder_blocks.")})
    return {"decoder_dim": len(state["decoder_embed.weight"]), "decoder_depth": depth, "decoder_heads": heads}


def _vit(encoder: Classifier) -> ViT:
    assert isinstance(encoder.model, ViT)
    assert isinstance(encoder.model.config, ViTConfig)
    return encoder.model
