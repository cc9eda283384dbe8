"""Int8: which pictures it is calibrated on, and how."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.errors import VitrailError
from vitrail.pictures import Preprocessing
from vitrail.shipping.export_graph import quiet

SEED = 20
STAND_INS = 64


def stand_ins(preprocessing: Preprocessing, count: int = STAND_INS) -> NDArray[np.uint8]:
    """Pixels to calibrate on where there is no data: parts of the two photographs that come with scikit-learn, always
    the same ones."""
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(photograph) for photograph in load_sample_images().images]
    draw = np.random.default_rng(SEED)
    made = []
    for number in range(count):
        photograph = photographs[number % len(photographs)]
        side = round(min(photograph.size) * draw.uniform(0.25, 1.0))
        left, top = (int(draw.integers(length - side + 1)) for length in photograph.size)
        part = photograph.crop((left, top, left + side, top + side))
        if draw.random() < 0.5:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        light = draw.uniform(0.5, 1.5)
        made.append(preprocessing.pixels(part.point(lambda value, light=light: min(255, round(value * light)))))
    return np.stack(made)


def quantised_openvino(model: Any, given: NDArray[Any], *, kept: Iterable[str] = ()) -> Any:
    """The model with int8 weights, per channel, and int8 activations, calibrated on what it is `given`; layers whose
    names are in `kept` stay in float."""
    try:
        import nncf  # type: ignore[import-untyped]
    except ImportError as error:
        raise VitrailError("int8 for OpenVINO needs nncf: pip install 'vitrail[export]'") from error
    rows = [given[k : k + 1] for k in range(len(given))]
    with quiet(), redirect_stdout(io.StringIO()):  # it draws bars
        return nncf.quantize(
            model,
            nncf.Dataset(rows),
            subset_size=len(rows),
            model_type=nncf.ModelType.TRANSFORMER,
            ignored_scope=nncf.IgnoredScope(names=list(kept)) if kept else None,
        )
