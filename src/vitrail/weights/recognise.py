"""Whose checkpoint is it? Told from the content, not asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError, WeightsError
from vitrail.model.zoo import find
from vitrail.weights import google, lucidrains, timm, torchvision, transformers
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.files import find_weights, read_json, read_state

FAMILIES = (
    timm,
    transformers,
    torchvision,
    lucidrains,
    google,
)


def read_checkpoint(path: Path, **known: Any) -> Checkpoint:
    """Reads a folder or a file of any known family. `known` are fields that the content cannot say, such as
    `num_heads`, `norm_eps`, `act` or `img_size`."""
    if not path.exists():
        raise WeightsError(f"there is no {path}: give a model folder or a checkpoint file")
    hub: dict[str, Any] = {}
    processor: dict[str, Any] | None = None
    if path.is_dir():
        hub = read_json(path / "config.json") if (path / "config.json").is_file() else {}
        if (path / "preprocessor_config.json").is_file():
            processor = read_json(path / "preprocessor_config.json")
        weights = find_weights(path)
        state, hub = read_state(weights), hub or _named_by_file(weights)
    else:
        state = read_state(path)
        hub = _named_by_file(path)
    for family in FAMILIES:
        if family.recognise(state):
            return family.read(state, hub, processor, **known)
    names = ", ".join(sorted(state)[:3])
    raise WeightsError(f"{path} holds {len(state)} tensors ({names}, …), but no Vision Transformer that is known here")


def _named_by_file(path: Path) -> dict[str, Any]:
    """A bare file that is named like an architecture says what its tensors cannot."""
    try:
        row = find(path.name.split(".")[0])
    except VitrailError:
        return {}
    return {"architecture": row.timm} if row.timm else {}
