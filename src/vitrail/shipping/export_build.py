"""Makes the file of an export, and what stands beside it, in a room of its own; compares it with PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import ExportedProgram

from vitrail.classifier import Classifier
from vitrail.shipping.engines import Floats
from vitrail.shipping.engines_kept import metadata
from vitrail.shipping.export_fast import with_split_attention
from vitrail.shipping.export_graph import BATCH, WithFeatures, program
from vitrail.shipping.export_metadata import Metadata
from vitrail.shipping.export_pictures import FromPictures
from vitrail.shipping.export_pixels import CALIBRATED, CHECKED, Pictures, pixels_of, raw_pictures
from vitrail.shipping.export_plan import Plan
from vitrail.shipping.export_report import Accuracy, ExportReport
from vitrail.shipping.export_sizes import for_any_size
from vitrail.shipping.export_triton import write_triton
from vitrail.shipping.onnx_files import OPSET, write_onnx
from vitrail.shipping.openvino_files import to_openvino, write_openvino
from vitrail.shipping.quantise import (
    compressed_openvino,
    dynamic_onnx,
    quantised_onnx,
    quantised_openvino,
    stand_in_pictures,
    stand_ins,
)
from vitrail.shipping.quantise_layers import layer_errors, nodes_of, sensitive_layers
from vitrail.shipping.torch_files import write_compiled, write_pt2
from vitrail.shipping.verify import Check, compare, judge
from vitrail.shipping.verify_files import opened

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
MEASURED = 64  # pictures on which the layers' ranges are taken when they are measured
STAND_INS = "parts of two photographs"
_TOGETHER = 15  # pictures of a batch in the check, so that the last batch is smaller


class Built(NamedTuple):
    file: Path
    check: Check
    pillow: Check | None
    in_float: tuple[str, ...]


class InPrecision(nn.Module):
    """A model whose weights and arithmetic have 16 bits; what goes in and out has 32."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = copy.deepcopy(inner).to(dtype)
        self.dtype = dtype

    def forward(self, pixels: Tensor) -> Any:
        made = self.inner(pixels.to(self.dtype))
        return tuple(value.float() for value in made) if isinstance(made, tuple) else made.float()


class Builder:
    """One export, step by step."""

    def __init__(
        self,
        plan: Plan,
        classifier: Classifier,
        pictures: Pictures | None,
        progress: Callable[[str, int, int], None] | None,
    ) -> None:
        self.plan, self.classifier, self.pictures, self.progress = plan, classifier, pictures, progress
        self.preprocessing = classifier.preprocessing
        self.static = pictures is not None if plan.calibration is None else plan.calibration == "static"

    def build(self, room: Path) -> Built:
        """Writes the file and what stands beside it, and compares it; a file that is another model is an error."""
        plan = self.plan
        graph = program(self._module(), self._example(), self._axes())
        about = metadata(self.classifier, plan.takes, plan.gives, plan.precision)
        file = room / plan.out.name
        if plan.format == "triton":
            file = file / "1" / "model.onnx"
            file.parent.mkdir(parents=True)
        kept = self._kept_in_float() if plan.precision == "int8" else []
        self._write(graph, about, file, nodes_of(graph, kept))
        check, pillow = self._compare(file)
        if plan.format == "triton":
            write_triton(room / plan.out.name, about)
        else:
            (room / self._script()).write_text(_template(), encoding="utf-8")
        return Built(file, check, pillow, tuple(kept))

    def report(self, built: Built, accuracy: Accuracy | None) -> ExportReport:
        plan, folder = self.plan, built.file.parent
        beside = [self._script(), *(path.name for path in folder.iterdir() if path.suffix in (".bin", ".data"))]
        size = sum(path.stat().st_size for path in folder.iterdir() if path.name.startswith(built.file.stem))
        return ExportReport(
            file=plan.out,
            format=plan.format,
            precision=plan.precision,
            takes=plan.takes,
            gives=plan.gives,
            size=size,
            check=built.check,
            beside=("config.pbtxt", "labels.txt") if plan.format == "triton" else tuple(sorted(set(beside))),
            opset=OPSET if plan.format in ("onnx", "triton") else None,
            pillow=built.pillow,
            accuracy=accuracy,
            in_float=built.in_float,
        )

    def _script(self) -> str:
        """`run.py`, unless one is there that is not ours."""
        there = self.plan.out.parent / "run.py"
        ours = _template().splitlines()[0]
        foreign = there.exists() and not there.read_text(encoding="utf-8", errors="replace").startswith(ours)
        return f"{self.plan.out.stem}_run.py" if foreign else there.name

    def _module(self) -> nn.Module:
        """What is made a graph."""
        plan = self.plan
        model = for_any_size(self.classifier.model) if plan.dynamic_size else self.classifier.model
        if plan.format != "torch":
            model = with_split_attention(model)
        module: nn.Module = WithFeatures(model) if plan.features else model
        if plan.precision in DTYPES and plan.format != "openvino":
            module = InPrecision(module, DTYPES[plan.precision])
        return FromPictures(module, self.preprocessing) if plan.with_preprocessing else module

    def _example(self) -> Tensor:
        channels, (height, width) = self.preprocessing.channels, self.preprocessing.size
        if self.plan.with_preprocessing:
            return torch.zeros(2, 300, 401, channels, dtype=torch.uint8)
        if self.plan.dynamic_size:
            height, width = self._other_size()
        return torch.zeros(2, channels, height, width)

    def _other_size(self) -> tuple[int, int]:
        height, width = self.preprocessing.size
        step_h, step_w = getattr(self.classifier.model.config, "patch_size", (32, 32))
        return height + step_h, width + 2 * step_w

    def _axes(self) -> dict[int, str]:
        if self.plan.with_preprocessing:
            return {0: BATCH, 1: "height", 2: "width"}
        return {0: BATCH, 2: "height", 3: "width"} if self.plan.dynamic_size else {0: BATCH}

    def _write(self, graph: ExportedProgram, about: Metadata, file: Path, kept: list[str]) -> None:
        plan = self.plan
        if plan.format == "torch":
            (write_compiled if plan.compiled else write_pt2)(graph, about, file)
        elif plan.format == "openvino":
            sides = [-1 if axis in self._axes() else side for axis, side in enumerate(self._example().shape)]
            model = to_openvino(graph, about, tuple(sides))
            if plan.precision == "int8":
                names = [op.get_friendly_name() for op in model.get_ops() if op.get_type_name() == "MatMul"]
                kept = [name for name in names if name.split("/")[0] in kept]
                static = self.static
                model = quantised_openvino(model, self._given(), kept) if static else compressed_openvino(model, kept)
            write_openvino(model, about, file, half=plan.precision == "float16")
        elif plan.precision == "int8":
            plain = file.with_name("float.onnx")
            comes_from = write_onnx(graph, about, plain)
            kept = [name for name, node in comes_from.items() if node in kept]
            if self.static:
                quantised_onnx(plain, file, self._given(), kept)
            else:
                dynamic_onnx(plain, file, kept)
            for path in plain.parent.glob("float.onnx*"):
                path.unlink()
        else:
            write_onnx(graph, about, file)

    def _given(self) -> Floats:
        """What int8 is calibrated on."""
        return self.preprocessing.normalise(self._pixels(CALIBRATED, calibration=True))

    def _pixels(self, count: int, *, calibration: bool = False) -> NDArray[np.uint8]:
        if self.pictures is None:
            return stand_ins(self.preprocessing, count)
        return pixels_of(self.pictures.calibration if calibration else self.pictures.scored, self.preprocessing, count)

    def _kept_in_float(self) -> list[str]:
        values = torch.from_numpy(self.preprocessing.normalise(self._pixels(MEASURED, calibration=True)))
        tell = self.progress
        say = None if tell is None else (lambda done, of: tell("layers measured", done, of))
        return sensitive_layers(layer_errors(self.classifier.model, values, say))

    def _compare(self, file: Path) -> tuple[Check, Check | None]:
        of = STAND_INS if self.pictures is None else self.pictures.scored.source.name
        if self.plan.with_preprocessing:
            return self._compare_raw(file, of)
        pixels = self._pixels(CHECKED)
        if len(pixels) < 100:  # too few to be sure
            pixels = np.concatenate([pixels, stand_ins(self.preprocessing, CHECKED - len(pixels))])
        values = self.preprocessing.normalise(pixels)
        wanted, made = [], []
        with opened(file) as call:
            for some in _batches(values):
                wanted.append(self._torch(some))
                made.append(call(some))
            if self.plan.dynamic_size:
                other = np.random.default_rng(0).standard_normal((2, values.shape[1], *self._other_size()), np.float32)
                wanted.append(self._torch(other))
                made.append(call(other))
        exact = np.concatenate(wanted)
        check = compare(exact, np.concatenate(made), of)
        judge(check, self.plan.precision, exact)
        return check, None

    def _compare_raw(self, file: Path, of: str) -> tuple[Check, Check]:
        """The preprocessing in the graph: beside the same graph in torch, and beside Pillow."""
        channels = self.preprocessing.channels
        graph = FromPictures(self.classifier.model, self.preprocessing).eval()
        wanted, made, pillow = [], [], []
        with opened(file) as call, torch.inference_mode():
            for picture in self._raw(channels):
                wanted.append(graph(torch.from_numpy(picture[None])).numpy())
                made.append(call(picture[None]))
                pillow.append(self._torch(self.preprocessing(picture)[None]))
        exact = np.concatenate(wanted)
        check = compare(exact, np.concatenate(made), of)
        judge(check, self.plan.precision, exact)
        return check, compare(np.concatenate(pillow), np.concatenate(made), of)

    def _raw(self, channels: int) -> Iterator[NDArray[np.uint8]]:
        if self.pictures is not None:
            yield from raw_pictures(self.pictures.scored, channels, CHECKED)
            return
        for part in stand_in_pictures(CHECKED):
            yield np.array(part if channels == 3 else part.convert("L")).reshape(part.height, part.width, channels)

    def _torch(self, values: Floats) -> Floats:
        model = for_any_size(self.classifier.model) if self.plan.dynamic_size else self.classifier.model
        with torch.inference_mode():
            logits: Floats = model(torch.from_numpy(values)).numpy()
        return logits


def _template() -> str:
    """The script that stands beside a file; hints for our type checker are left out."""
    text = Path(__file__).with_name("run_template.py").read_text(encoding="utf-8")
    return text.replace("  # type: ignore[import-untyped]", "")


def _batches(values: Floats) -> Iterator[Floats]:
    for start in range(0, len(values), _TOGETHER):
        yield values[start : start + _TOGETHER]
