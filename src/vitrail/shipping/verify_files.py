"""A file as a function, in the runtime that it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.shipping.engines import Floats
from vitrail.shipping.onnx_engine import open_session
from vitrail.shipping.openvino_engine import compiled
from vitrail.shipping.torch_files import open_pt2


@contextmanager
def opened(file: Path) -> Iterator[Callable[[NDArray[Any]], Floats]]:
    """Gives a function from what the file takes to its logits."""
    if file.suffix == ".onnx":
        session = open_session(file)
        yield lambda given: np.asarray(session.run(["logits"], {session.get_inputs()[0].name: given})[0], np.float32)
    elif file.suffix == ".xml":
        model, _ = compiled(file)
        yield lambda given: np.array(model([np.ascontiguousarray(given)])["logits"], np.float32)
    else:
        module, _ = open_pt2(file)

        def call(given: NDArray[Any]) -> Floats:
            with torch.inference_mode():
                made = module(torch.from_numpy(given))
            logits: Floats = (made[0] if isinstance(made, tuple | list) else made).float().numpy()
            return logits

        yield call
