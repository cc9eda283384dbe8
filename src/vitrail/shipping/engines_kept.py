"""Engines that are made from a model once and kept on the disk, under a name that changes with the model."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from vitrail.classifier import Classifier
from vitrail.errors import VitrailError
from vitrail.shipping.engines import Engine
from vitrail.shipping.export_fast import fast_graph
from vitrail.shipping.export_graph import program
from vitrail.shipping.export_metadata import Metadata, Takes
from vitrail.whole import written_whole

STAND_INS = 64  # pictures that int8 is calibrated on
FORMAT = 1  # part of the name: raised when the same model would give another engine
LARGEST = 10 * 2**30  # bytes of all that is kept; what was not used for longest goes first


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail" / "engines"


def kept_engine(classifier: Classifier, kind: str, folder: Path | None = None) -> Engine:
    """The engine `onnx`, `openvino` or `int8` of a model: found where it was kept, or made."""
    from vitrail.shipping.engines import open_engine

    folder = folder or default_folder()
    place = folder / f"{kind}-{_mark(classifier, kind)}"
    file = place / ("model.onnx" if kind == "onnx" else "model.xml")
    if not file.is_file():
        _make(classifier, kind, place, file.name)
        _make_room(folder, place)
    with suppress(OSError):
        os.utime(place)
    engine = open_engine(file)
    engine.name = kind
    return engine


def int8_is_quick(classifier: Classifier) -> bool:
    """Whether the int8 engine can be made here."""
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

                made = quantised_openvino(made, stand_ins(classifier.preprocessing, STAND_INS))
            write_openvino(made, about, new / name)
    except OSError as error:
        raise VitrailError(f"the engine {kind} cannot be kept in {place.parent}: {error}") from error


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
