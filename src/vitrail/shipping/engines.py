"""What computes: torch, ONNX Runtime or OpenVINO, all through one small interface."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.classifier import Classifier
from vitrail.errors import VitrailError
from vitrail.pictures import Preprocessing
from vitrail.shipping.export_graph import FromBytes, WithFeatures

NAMES = ("auto", "exact", "torch", "onnx", "openvino", "int8", "merged")
FEW = 500  # pictures; for fewer, making a quicker engine takes longer than it saves

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Engine(ABC):
    """A model that is ready to compute: pixels in, logits and features out."""

    name: str  # one of NAMES but "auto" and "exact"
    detail: str  # for people: "OpenVINO 2026.4, int8, on 2 threads"
    classes: list[str]
    preprocessing: Preprocessing

    @abstractmethod
    def both(self, pixels: Bytes) -> tuple[Floats, Floats]:
        """Logits (n, classes) and features (n, width), what the head reads, of one pass over `pixels`: what
        `preprocessing.pixels` makes, stacked, uint8 of (n, height, width, channels)."""

    def run(self, pixels: Bytes) -> Floats:
        """Logits: (n, classes)."""
        if not self.classes:
            raise VitrailError("this model has no head, so it cannot predict: train one, or ask for its features")
        return self.both(pixels)[0]

    def features(self, pixels: Bytes) -> Floats:
        """What the head reads: (n, width)."""
        features = self.both(pixels)[1]
        if len(pixels) and not features.shape[1]:
            raise VitrailError("this exported file gives logits alone: export it with --features")
        return features

    def close(self) -> None:  # noqa: B027, most have nothing to close
        """Gives back what it holds; it cannot be used after that."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Engine({self.name}: {self.detail})"


class TorchEngine(Engine):
    """The model itself, where it is, in its own precision: what all others are measured by."""

    name = "torch"

    def __init__(self, classifier: Classifier) -> None:
        weight = next(classifier.model.parameters())
        self.classes, self.preprocessing = classifier.classes, classifier.preprocessing
        self._place, self._dtype = weight.device, weight.dtype
        inner = WithFeatures(classifier.model)
        self._graph = FromBytes(inner, self.preprocessing).to(weight.device, weight.dtype).eval()
        precision = str(weight.dtype).removeprefix("torch.")
        self.detail = f"torch {torch.__version__}, {precision}, on {_place_name(weight.device)}"

    def both(self, pixels: Bytes) -> tuple[Floats, Floats]:
        check_pixels(pixels, self.preprocessing)
        with torch.inference_mode():
            logits, features = self._graph(torch.from_numpy(pixels).to(self._place, non_blocking=True))
            return logits.float().cpu().numpy(), features.float().cpu().numpy()

    def close(self) -> None:
        del self._graph


def choose(
    classifier: Classifier,
    engine: str | os.PathLike[str] = "auto",
    *,
    pictures: int | None = None,
    features: bool = False,
) -> Engine:
    """The engine that was asked for, made from `classifier`.

    engine: torch (the model where it is), onnx (ONNX Runtime, float32, CPU), openvino (OpenVINO, float32, CPU), int8
        (OpenVINO, int8), merged (the same with tokens that are alike merged on the way: the quickest on a CPU), exact
        (the quickest that gives the model's own logits to 1e-4), auto (the quickest that keeps the accuracy), or the
        path of a file that was exported from this model.
    pictures: how many there will be, if that is known: `auto` makes no engine for a few.
    features: whether these are what is wanted: `auto` merges no tokens then. What `auto` takes is a function of the
        model, the machine and these two alone.
    """
    text = os.fspath(engine)
    if text == "auto":
        text = ("int8" if features else "merged") if _wants_int8(classifier, pictures) else "torch"
    if text == "exact":
        text = "openvino" if _has_openvino(classifier) else "torch"
    if text == "torch":
        return TorchEngine(classifier)
    if text in NAMES:
        from vitrail.shipping.engines_kept import kept_engine

        return kept_engine(classifier, text)
    if not Path(text).exists():
        raise VitrailError(f"there is no engine {text}: choose {', '.join(NAMES)}, or a file that was exported")
    opened = open_engine(text)
    if opened.classes != classifier.classes or opened.preprocessing != classifier.preprocessing:
        opened.close()
        raise VitrailError(f"{text} was exported from another model: its classes or its preprocessing differ")
    return opened


def open_engine(path: str | os.PathLike[str]) -> Engine:
    """The engine of a file that `vitrail export` wrote: .onnx, .xml (OpenVINO) or .pt2 (torch)."""
    path = Path(path)
    if not path.is_file():
        raise VitrailError(f"there is no file {path}")
    if path.suffix == ".onnx":
        from vitrail.shipping.onnx_engine import OnnxEngine

        return OnnxEngine(path)
    if path.suffix == ".xml":
        from vitrail.shipping.openvino_engine import OpenVinoEngine

        return OpenVinoEngine(path)
    if path.suffix == ".pt2":
        from vitrail.shipping.torch_files import Pt2Engine

        return Pt2Engine(path)
    raise VitrailError(f"{path} is no exported model: give a file that ends in .onnx, .xml or .pt2")


def check_pixels(pixels: Any, preprocessing: Preprocessing) -> None:
    """Refuses what `preprocessing.pixels` does not make."""
    wanted = (*preprocessing.size, preprocessing.channels)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != wanted:
        found = f"{pixels.dtype} of {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise VitrailError(f"an engine takes uint8 of (n, {', '.join(map(str, wanted))}), not {found}")


def _wants_int8(classifier: Classifier, pictures: int | None) -> bool:
    from vitrail.shipping.engines_kept import int8_is_quick

    weight = next(classifier.model.parameters())
    few = pictures is not None and pictures < FEW
    return weight.device.type == "cpu" and not few and int8_is_quick(classifier)


def _has_openvino(classifier: Classifier) -> bool:
    weight = next(classifier.model.parameters())
    here = weight.device.type == "cpu" and weight.dtype == torch.float32
    return here and bool(classifier.classes) and find_spec("openvino") is not None


def _place_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads" if device.type == "cpu" else device.type


def named_outputs(names: Sequence[str], values: Sequence[Floats], path: Path) -> tuple[Floats, Floats]:
    """Logits and features among what a file gives; features that it does not give are an empty array."""
    found = dict(zip(names, values, strict=True))
    if "logits" not in found:
        raise VitrailError(f"{path} gives {', '.join(names)}, and no logits: it was not written by vitrail export")
    return found["logits"], found.get("features", np.empty((len(found["logits"]), 0), np.float32))
