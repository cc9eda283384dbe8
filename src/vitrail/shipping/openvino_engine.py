"""OpenVINO as an engine."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.workers import processors
from vitrail.errors import VitrailError
from vitrail.shipping.engines import Bytes, Engine, Floats, check_pixels, named_outputs
from vitrail.shipping.export_metadata import KEY, Metadata
from vitrail.shipping.signal_stack import signal_stack_kept

PRECISIONS = {"float32": "f32", "float16": "f32", "bfloat16": "bf16", "int8": "bf16"}
"""In which OpenVINO computes what is not quantised. Left alone, it takes bfloat16 for float32 where the processor has
it; a processor that has not computes in float32 in any case."""


class OpenVinoEngine(Engine):
    """An exported .xml with its .bin in OpenVINO, on the CPU."""

    name = "openvino"

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        self.path = path
        threads = self._threads = threads or processors()
        self._only_logits: Any = None
        self._compiled, self.about = compiled(path, threads)
        self.about.refuse_pictures(path)
        self.classes, self.preprocessing = list(self.about.classes), self.about.preprocessing
        self._gives = [output.get_any_name() for output in self._compiled.outputs]
        release = openvino().__version__.split("-")[0]
        numbers = self.about.precision + (" and merged tokens" if self.about.merged else "")
        self.detail = f"OpenVINO {release}, {numbers}, on {threads} threads"

    def both(self, pixels: Bytes) -> tuple[Floats, Floats]:
        check_pixels(pixels, self.preprocessing)
        made = self._compiled([self._given(pixels)])
        return named_outputs(self._gives, [np.array(value, np.float32) for value in made.to_tuple()], self.path)

    def run(self, pixels: Bytes) -> Floats:
        """Logits alone, by a model that computes nothing else: then the residual stream may have 16 bits too."""
        check_pixels(pixels, self.preprocessing)
        if self._only_logits is None:
            self._only_logits = compiled(self.path, self._threads, only_logits=True)[0]
        made = self._only_logits([self._given(pixels)])["logits"]
        return np.array(made, np.float32)

    def close(self) -> None:
        del self._compiled, self._only_logits

    def _given(self, pixels: Bytes) -> NDArray[Any]:
        return np.ascontiguousarray(pixels) if self.about.takes == "bytes" else self.preprocessing.normalise(pixels)


def compiled(path: Path, threads: int | None = None, *, only_logits: bool = False) -> tuple[Any, Metadata]:
    """A file ready to compute, and what it says of itself."""
    model = read(path)
    about = Metadata.from_text(model.get_rt_info([KEY]).value if model.has_rt_info([KEY]) else None, path)
    if only_logits and len(model.outputs) > 1:
        model = openvino().Model([model.output("logits")], model.get_parameters(), "logits")
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads or processors(),
        "INFERENCE_PRECISION_HINT": PRECISIONS[about.precision],
    }
    return core().compile_model(model, "CPU", settings), about


def openvino() -> Any:
    """The library, or a line that says how to get it."""
    try:
        import openvino as library  # type: ignore[import-untyped]
    except ImportError as error:
        raise VitrailError("OpenVINO is not installed: pip install 'vitrail[export]'") from error
    return library


@cache
def core() -> Any:
    """OpenVINO itself: one for the whole process, with the plugin of the CPU."""
    with signal_stack_kept():
        one = openvino().Core()
        one.get_property("CPU", "OPTIMIZATION_CAPABILITIES")  # loads the plugin
    return one


def read(path: str | os.PathLike[str]) -> Any:
    """A model file that OpenVINO reads, or one line that says why not."""
    try:
        return core().read_model(os.fspath(path))
    except RuntimeError as error:
        raise VitrailError(f"OpenVINO cannot open {path}: {' '.join(str(error).split())[:300]}") from error
