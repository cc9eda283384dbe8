"""Engines that are made from a model once and kept on the disk, under a name that changes with the model."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from vitrail.classifier import Classifier
from vitrail.errors import VitrailError
from vitrail.model.merging import can_merge
from vitrail.model.resnet import ResNet
from vitrail.shipping.engines import Engine, TorchEngine, open_engine
from vitrail.shipping.export_fast import fast_graph
from vitrail.shipping.export_graph import program
from vitrail.shipping.export_metadata import Metadata, Takes
from vitrail.shipping.verify import compare
from vitrail.whole import written_whole

STAND_INS = 64  # pictures that int8 is calibrated on
HELD = 32  # pictures that it is tried on
FARTHEST = 0.3  # of the logits' spread; where int8 moves them by more, the engine stays in float
FORMAT = 3  # part of the name: raised when the same model would give another engine
LARGEST = 10 * 2**30  # bytes of all that is kept; what was not used for longest goes first


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail" / "engines"


def kept_engine(classifier: Classifier, kind: str, folder: Path | None = None) -> Engine:
    """The engine `onnx`, `openvino`, `int8` or `merged` of a model: found where it was kept, or made. Where an
    approximation would move the logits too far, the engine is a more exact one, and says so."""
    folder = folder or default_folder()
    if kind == "merged" and not can_merge(classifier.model):
        kind = "int8"
    place = folder / f"{kind}-{_mark(classifier, kind)}"
    file = place / ("model.onnx" if kind == "onnx" else "model.xml")
    if not file.is_file():
        _make(classifier, kind, place, file.name)
        _make_room(folder, place)
    with suppress(OSError):
        os.utime(place)
    engine = open_engine(file)
    if kind != "onnx":
        engine.name = _name(engine)
    return engine


def _name(engine: Engine) -> str:
    from vitrail.shipping.openvino_engine import OpenVinoEngine

    assert isinstance(engine, OpenVinoEngine)
    if engine.about.merged:
        return "merged"
    return "int8" if engine.about.precision == "int8" else "openvino"


def int8_is_quick(classifier: Classifier) -> bool:
    """Whether the int8 engine can be made here, and is worth it."""
    if isinstance(classifier.model, ResNet) or not classifier.classes:
        return False
    try:
        from vitrail.shipping.openvino_engine import core

        version("nncf")
        return "INT8" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    except (VitrailError, PackageNotFoundError):
        return False


def _make(classifier: Classifier, kind: str, place: Path, name: str) -> None:
    weight = next(classifier.model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        raise VitrailError(f"the engine {kind} is made from a float32 model on the CPU: load it there, or take torch")
    if not classifier.classes:
        raise VitrailError(f"the engine {kind} is not made for an encoder without a head: take torch")
    try:
        with written_whole(place, overwrite=True) as new:
            new.mkdir()
            if kind == "onnx":
                from vitrail.shipping.onnx_files import write_onnx

                write_onnx(_graph(classifier), _about(classifier), new / name)
                return
            from vitrail.shipping.openvino_files import write_openvino

            model, about = _openvino(classifier, kind)
            write_openvino(model, about, new / name)
    except OSError as error:
        raise VitrailError(f"the engine {kind} cannot be kept in {place.parent}: {error}") from error


def _graph(classifier: Classifier, *, merging: bool = False) -> ExportedProgram:
    preprocessing = classifier.preprocessing
    model = fast_graph(classifier.model, preprocessing, merging=merging)
    return program(model, torch.zeros(2, *preprocessing.size, preprocessing.channels, dtype=torch.uint8))


def _about(classifier: Classifier) -> Metadata:
    return metadata(classifier, "bytes", ("logits", "features"), "float32")


def _openvino(classifier: Classifier, kind: str) -> tuple[Any, Metadata]:
    """The quickest of the approximations that `kind` allows and that stays near enough; if none does, float32."""
    from vitrail.shipping.openvino_files import to_openvino
    from vitrail.shipping.quantise import between_activations, quantised_openvino, stand_ins

    about, preprocessing = _about(classifier), classifier.preprocessing
    shape = (-1, *preprocessing.size, preprocessing.channels)
    for merging in {"merged": (True, False), "int8": (False,)}.get(kind, ()):
        plain = to_openvino(_graph(classifier, merging=merging), about, shape)
        pixels = stand_ins(preprocessing, STAND_INS + HELD)
        model = quantised_openvino(plain, pixels[:STAND_INS], between_activations(plain))
        if _moves(classifier, model, pixels[STAND_INS:]) <= FARTHEST:
            return model, replace(about, precision="int8", merged=merging)
    return to_openvino(_graph(classifier), about, shape), about


def _moves(classifier: Classifier, model: Any, pixels: NDArray[np.uint8]) -> float:
    """By what part of their spread int8 moves the logits."""
    from vitrail.shipping.openvino_engine import core

    with TorchEngine(classifier) as reference:
        wanted = reference.run(pixels)
    made = core().compile_model(model, "CPU")([pixels])["logits"]
    return compare(wanted, np.asarray(made, np.float32), "").relative


def metadata(classifier: Classifier, takes: Takes, gives: tuple[str, ...], precision: str) -> Metadata:
    """What a file made from this model says of itself."""
    made_by = f"vitrail {version('vitrail')}, torch {torch.__version__}"
    return Metadata(tuple(classifier.classes), classifier.preprocessing, takes, gives, precision, made_by)


def _mark(classifier: Classifier, kind: str) -> str:
    """A name for the engine of this model by these libraries."""
    libraries = {name: _release(name) for name in ("torch", "openvino", "nncf", "onnx", "onnxscript")}
    plain = {
        "format": FORMAT,
        "config": classifier.model.config.to_json(),
        "preprocessing": classifier.preprocessing.to_json(),
        "classes": classifier.classes,
        "libraries": libraries,
    }
    digest = hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16)
    for name, tensor in classifier.model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()))
    return digest.hexdigest()


def _release(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _make_room(folder: Path, spared: Path) -> None:
    """Removes what was not used for longest, until what is kept is not too large."""
    sizes = {
        place: sum(file.stat().st_size for file in place.iterdir())
        for place in folder.iterdir()
        if place.is_dir() and not place.name.startswith(".")
    }
    for place in sorted(sizes, key=lambda place: place.stat().st_mtime):
        if sum(sizes.values()) <= LARGEST:
            return
        if place != spared:
            shutil.rmtree(place, ignore_errors=True)
            del sizes[place]
