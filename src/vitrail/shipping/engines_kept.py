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

from vitrail.classifier import Classifier
from vitrail.errors import VitrailError
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
FORMAT = 2  # part of the name: raised when the same model would give another engine
LARGEST = 10 * 2**30  # bytes of all that is kept; what was not used for longest goes first


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail" / "engines"


def kept_engine(classifier: Classifier, kind: str, folder: Path | None = None) -> Engine:
    """The engine `onnx`, `openvino` or `int8` of a model: found where it was kept, or made."""
    from vitrail.shipping.openvino_engine import OpenVinoEngine

    folder = folder or default_folder()
    place = folder / f"{kind}-{_mark(classifier, kind)}"
    file = place / ("model.onnx" if kind == "onnx" else "model.xml")
    if not file.is_file():
        _make(classifier, kind, place, file.name)
        _make_room(folder, place)
    with suppress(OSError):
        os.utime(place)
    engine = open_engine(file)
    in_int8 = isinstance(engine, OpenVinoEngine) and engine.about.precision == "int8"
    engine.name = kind if kind != "int8" or in_int8 else "openvino"  # int8 was too far from the model
    return engine


def int8_is_quick(classifier: Classifier) -> bool:
    """Whether the int8 engine can be made here, and is worth it."""
    if isinstance(classifier.model, ResNet) or not classifier.classes:
        return False
    try:
        from vitrail.shipping.openvino_engine import openvino

        version("nncf")
        return "INT8" in openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    except (VitrailError, PackageNotFoundError):
        return False


def _make(classifier: Classifier, kind: str, place: Path, name: str) -> None:
    size = classifier.preprocessing.size
    channels = classifier.preprocessing.channels
    weight = next(classifier.model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        raise VitrailError(f"the engine {kind} is made from a float32 model on the CPU: load it there, or take torch")
    if not classifier.classes:
        raise VitrailError(f"the engine {kind} is not made for an encoder without a head: take torch")
    model = fast_graph(classifier.model, classifier.preprocessing)
    graph = program(model, torch.zeros(2, *size, channels, dtype=torch.uint8))
    about = metadata(classifier, "bytes", ("logits", "features"), "int8" if kind == "int8" else "float32")
    try:
        with written_whole(place, overwrite=True) as new:
            new.mkdir()
            if kind == "onnx":
                from vitrail.shipping.onnx_files import write_onnx

                write_onnx(graph, about, new / name)
                return
            from vitrail.shipping.openvino_files import to_openvino, write_openvino

            made = to_openvino(graph, about, (-1, *size, channels))
            if kind == "int8":
                from vitrail.shipping.quantise import quantised_openvino, stand_ins

                pixels = stand_ins(classifier.preprocessing, STAND_INS + HELD)
                quick = quantised_openvino(made.clone(), pixels[:STAND_INS])
                if _moves(classifier, quick, pixels[STAND_INS:]) > FARTHEST:
                    about = replace(about, precision="float32")
                else:
                    made = quick
            write_openvino(made, about, new / name)
    except OSError as error:
        raise VitrailError(f"the engine {kind} cannot be kept in {place.parent}: {error}") from error


def _moves(classifier: Classifier, model: Any, pixels: NDArray[np.uint8]) -> float:
    """By what part of their spread int8 moves the logits."""
    from vitrail.shipping.openvino_engine import openvino

    with TorchEngine(classifier) as reference:
        wanted = reference.run(pixels)
    made = openvino().Core().compile_model(model, "CPU")([pixels])["logits"]
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
