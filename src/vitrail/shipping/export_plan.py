"""What is asked of an export, and what cannot be asked together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrail.classifier import Classifier
from vitrail.errors import VitrailError
from vitrail.shipping.export_metadata import Takes

Format = Literal["onnx", "openvino", "torch", "triton"]
Precision = Literal["float32", "float16", "bfloat16", "int8"]
Calibration = Literal["static", "dynamic"]

SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2", "triton": ""}


@dataclass(frozen=True)
class Plan:
    """One export."""

    out: Path
    format: Format = "onnx"
    precision: Precision = "float32"
    calibration: Calibration | None = None  # int8: None is static where there is data, dynamic elsewhere
    with_preprocessing: bool = False
    dynamic_size: bool = False
    features: bool = False
    compiled: bool = False
    max_drop: float | None = None
    overwrite: bool = False

    @property
    def takes(self) -> Takes:
        return "picture" if self.with_preprocessing else "values"

    @property
    def gives(self) -> tuple[str, ...]:
        return ("logits", "features") if self.features else ("logits",)

    def check(self, classifier: Classifier, has_data: bool) -> None:
        """One line for what cannot be, before the long work."""
        if self.format not in SUFFIXES:
            raise VitrailError(f"there is no format {self.format}: choose {', '.join(SUFFIXES)}")
        suffix = SUFFIXES[self.format]
        if self.out.suffix != suffix and suffix:
            raise VitrailError(f"a file of {self.format} ends in {suffix}: write --out {self.out.with_suffix(suffix)}")
        if self.out.exists() and not self.overwrite:
            raise VitrailError(f"{self.out} is already there: choose another name, or say --overwrite")
        if not classifier.classes:
            raise VitrailError("the model is an encoder without a head: train one on it (train --from) before it ships")
        if self.dynamic_size and self.with_preprocessing:
            raise VitrailError("with its preprocessing inside it takes pictures of any size: leave out --dynamic-size")
        self._check_int8(has_data)
        if self.precision == "bfloat16" and self.format in ("onnx", "triton"):
            raise VitrailError("ONNX Runtime has no bfloat16 on a CPU: take --fp16, or the format openvino or torch")
        if self.compiled and self.format != "torch":
            raise VitrailError("--compiled is for the format torch")

    def _check_int8(self, has_data: bool) -> None:
        if self.precision != "int8":
            if self.calibration is not None:
                raise VitrailError("--calibration is for --int8")
            if self.max_drop is not None and not has_data:
                raise VitrailError("--max-drop is measured on labelled pictures: give --data")
            return
        if self.format == "torch":
            raise VitrailError("int8 is for onnx, openvino and triton: torch's own int8 is another package's")
        if self.with_preprocessing:
            raise VitrailError("int8 does not go with the preprocessing in the graph: leave out one of them")
        if self.calibration == "static" and not has_data:
            raise VitrailError("static int8 is calibrated on pictures: give --data, or take --calibration dynamic")
        if self.max_drop is not None and not has_data:
            raise VitrailError("--max-drop is measured on labelled pictures: give --data")
