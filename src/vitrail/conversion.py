"""From anybody's checkpoint to anybody else's: `vitrail convert`."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import save_file

from vitrail.classifier import Classifier
from vitrail.errors import ConfigError, VitrailError, WeightsError
from vitrail.weights import to_google, to_timm, to_torchvision, to_transformers
from vitrail.weights.files import State
from vitrail.whole import written_whole

Format = Literal["vitrail", "timm", "transformers", "torchvision", "google"]


def convert(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], to: Format, **options: Any
) -> Classifier:
    """Reads `source`, whatever it is, and writes `destination` in the format `to`; gives back what was read.

    vitrail, timm and transformers are folders (timm also a file that ends in .safetensors or .pth), torchvision is a
    .pth file, google an .npz file. `options` are those of `vitrail.load`. A format that cannot hold the model is an
    error that says what it cannot hold; nothing is written then.
    """
    if to not in get_args(Format):
        raise VitrailError(f"--to {to} is not known: choose from {', '.join(get_args(Format))}")
    target = Path(destination)
    if target.exists():
        raise VitrailError(f"{target} is already there: choose another name")
    suffixes = {"torchvision": (".pth", ".pt", ".safetensors"), "google": (".npz",)}.get(to)
    if suffixes and target.suffix not in suffixes:
        raise VitrailError(f"{to} is a file: name it {target.with_suffix(suffixes[0]).name}")
    classifier = Classifier.load(source, **options)
    state = {name: tensor.detach().contiguous() for name, tensor in classifier.model.state_dict().items()}
    config = classifier.model.config
    if to == "vitrail":
        classifier.save(target)
    elif to == "timm":
        form = to_timm.write(config, state)
        if target.suffix in (".safetensors", ".pth"):
            _save_state(target, form.state)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # what timm cannot hold was refused above
                classifier.save(target)
    elif to == "transformers":
        hub, tensors = to_transformers.write(config, state, classifier.classes)
        _write_folder(target, hub, tensors, classifier)
    elif to == "torchvision":
        _save_state(target, to_torchvision.write(config, state))
    else:
        to_google.save(target, to_google.write(config, state))
    return classifier


def _save_state(target: Path, state: State) -> None:
    with written_whole(target) as path:
        if path.suffix == ".safetensors":
            save_file(state, path, metadata={"format": "pt"})
        else:
            torch.save(state, path)


def _write_folder(target: Path, hub: dict[str, Any], tensors: State, classifier: Classifier) -> None:
    """A folder for transformers' `from_pretrained`: configuration, weights and picture processor."""
    try:
        processor = classifier.preprocessing.to_transformers()
    except ConfigError as error:
        raise WeightsError(f"transformers cannot hold the preprocessing: {error}") from error
    with written_whole(target) as folder:
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(hub, indent=2) + "\n", encoding="utf-8")
        (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n", encoding="utf-8")
