"""ONNX Runtime as an engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.workers import processors
from vitrail.errors import VitrailError
from vitrail.shipping.engines import Bytes, Engine, Floats, check_pixels, named_outputs
from vitrail.shipping.export_metadata import KEY, Metadata


class OnnxEngine(Engine):
    """An exported .onnx file in ONNX Runtime, on the CPU."""

    name = "onnx"

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        self.path = path
        threads = threads or processors()
        self._session: Any = open_session(path, threads)
        self.about = Metadata.from_text(self._session.get_modelmeta().custom_metadata_map.get(KEY), path)
        self.about.refuse_pictures(path)
        self.classes, self.preprocessing = list(self.about.classes), self.about.preprocessing
        self._gives = [output.name for output in self._session.get_outputs()]
        self._takes = self._session.get_inputs()[0].name
        self.detail = f"ONNX Runtime {_version()}, {self.about.precision}, on {threads} threads"

    def both(self, pixels: Bytes) -> tuple[Floats, Floats]:
        check_pixels(pixels, self.preprocessing)
        given = pixels if self.about.takes == "bytes" else self.preprocessing.normalise(pixels)
        made = self._session.run(None, {self._takes: given})
        return named_outputs(self._gives, [np.asarray(value, np.float32) for value in made], self.path)

    def close(self) -> None:
        del self._session


def open_session(path: str | os.PathLike[str], threads: int | None = None) -> Any:
    """A file in ONNX Runtime, whose threads sleep while they wait."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError as error:
        raise VitrailError("ONNX files need onnxruntime: pip install 'vitrail[export]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or processors()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class of their own
        raise VitrailError(f"ONNX Runtime cannot open {path}: {' '.join(str(error).split())[:300]}") from error


def _version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)
