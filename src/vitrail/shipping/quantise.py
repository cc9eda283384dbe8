"""Int8: weights per channel, activations by calibration or on the way; for ONNX Runtime and for OpenVINO."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.errors import VitrailError
from vitrail.pictures import Preprocessing
from vitrail.shipping.export_graph import quiet
from vitrail.shipping.onnx_files import PRODUCTS
from vitrail.shipping.signal_stack import signal_stack_kept

SEED = 20


def stand_ins(preprocessing: Preprocessing, count: int) -> NDArray[np.uint8]:
    """Pixels where there is no data: parts of two photographs, always the same ones."""
    return np.stack([preprocessing.pixels(part) for part in stand_in_pictures(count)])


def stand_in_pictures(count: int) -> Iterator[Image.Image]:
    """Parts of the two photographs that come with scikit-learn, larger and smaller, lighter and darker."""
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(photograph) for photograph in load_sample_images().images]
    draw = np.random.default_rng(SEED)
    for number in range(count):
        photograph = photographs[number % len(photographs)]
        width, height = (max(32, round(length * draw.uniform(0.2, 1.0))) for length in photograph.size)
        left, top = (
            int(draw.integers(length - side + 1)) for length, side in zip(photograph.size, (width, height), strict=True)
        )
        part = photograph.crop((left, top, left + width, top + height))
        if draw.random() < 0.5:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        light = draw.uniform(0.5, 1.5)
        yield part.point([min(255, round(value * light)) for value in range(256)] * 3)


def quantised_openvino(model: Any, given: NDArray[Any], kept: Collection[str] = ()) -> Any:
    """The model with int8 activations too, calibrated on what it is `given`; operations named in `kept` stay float."""
    with _nncf() as nncf:
        from nncf.quantization.range_estimator import RangeEstimatorParametersSet  # type: ignore[import-untyped]

        # On DeiT-Tiny, NNCF's own choices move logits by 23 to 50% of their spread, these by 11%.
        # What an MLP's hidden layer holds has a few large values, which must not be cut off, nor spread over weights.
        advanced = nncf.AdvancedQuantizationParameters(
            smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=-1),
            activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,
        )
        return nncf.quantize(
            model,
            nncf.Dataset([given[k : k + 1] for k in range(len(given))]),
            subset_size=len(given),
            model_type=nncf.ModelType.TRANSFORMER,
            advanced_parameters=advanced,
            ignored_scope=nncf.IgnoredScope(names=sorted(kept)) if kept else None,
        )


def between_activations(model: Any) -> list[str]:
    """Products of two activations, outside attention: where tokens are merged. They are left in float."""
    constant = ("Constant", "Convert")
    return [
        node.get_friendly_name()
        for node in model.get_ordered_ops()
        if node.get_type_name() == "MatMul"
        and not any(source.get_node().get_type_name() in constant for source in node.input_values())
    ]


def compressed_openvino(model: Any, kept: Collection[str] = ()) -> Any:
    """The model with int8 weights; OpenVINO quantises the activations of each token on the way."""
    with _nncf() as nncf:
        mode = nncf.CompressWeightsMode.INT8_SYM
        scope = nncf.IgnoredScope(names=sorted(kept)) if kept else None
        return nncf.compress_weights(model, mode=mode, ignored_scope=scope)


@contextmanager
def _nncf() -> Iterator[Any]:
    try:
        with quiet():
            import nncf  # type: ignore[import-untyped]
    except ImportError as error:
        raise VitrailError("int8 for OpenVINO needs nncf: pip install 'vitrail[export]'") from error
    with quiet(), signal_stack_kept(), redirect_stdout(io.StringIO()):  # it draws bars, and makes its own Cores
        yield nncf


def quantised_onnx(source: Path, target: Path, given: NDArray[np.float32], kept: Collection[str] = ()) -> None:
    """Writes an .onnx with int8 activations too, calibrated on what it is `given`; nodes named in `kept` stay float."""
    from onnxruntime.quantization import (  # type: ignore[import-untyped]
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    with quiet():
        quantize_static(
            _without_shapes(source),
            target,
            _Given(given),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(PRODUCTS),
            nodes_to_exclude=[*kept, *_between_activations(source)],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )


def dynamic_onnx(source: Path, target: Path, kept: Collection[str] = ()) -> None:
    """Writes an .onnx with int8 weights; ONNX Runtime quantises activations on the way."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with quiet():
        quantize_dynamic(
            _without_shapes(source),
            target,
            op_types_to_quantize=list(PRODUCTS),
            nodes_to_exclude=list(kept),
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )


class _Given:
    """Pictures one by one, as the calibration asks for them."""

    def __init__(self, given: NDArray[np.float32]) -> None:
        self._rows = iter(given)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        row = next(self._rows, None)
        return None if row is None else {"pixels": row[None]}


def _without_shapes(source: Path) -> Any:
    """The file's model; the shapes inside, as the exporter wrote them, are more than the quantiser can read."""
    import onnx

    model = onnx.load(source)
    del model.graph.value_info[:]
    return model


def _between_activations(source: Path) -> list[str]:
    """Products of two activations: attention, which is left in float."""
    import onnx

    graph = onnx.load(source, load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    return [node.name for node in graph.node if node.op_type in PRODUCTS and not stored & set(node.input)]
