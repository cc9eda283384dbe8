"""Is it the same model? Logits of a file beside those of PyTorch, and the bound that they must keep."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vitrail.errors import VitrailError
from vitrail.shipping.engines import Floats

LARGEST = 1e-4  # of float32, where logits are about 10
RELATIVE = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.1, "int8": 0.5}


@dataclass(frozen=True)
class Check:
    """How near two sets of logits are."""

    pictures: int
    of: str  # which pictures they were
    largest: float  # of all differences between two logits
    relative: float  # the differences' size, as a part of how much the logits of one picture differ among themselves
    agreement: float  # part of the pictures that both put in the same class

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        return (
            f"{self.pictures:,} pictures ({self.of}): largest difference {self.largest:.2g}, "
            f"relative {self.relative:.2g}, same class {self.agreement:.1%}"
        )


def compare(wanted: Floats, made: Floats, of: str) -> Check:
    """PyTorch's logits, and those of the file."""
    if wanted.shape != made.shape:
        raise VitrailError(f"the file gives {made.shape} where PyTorch gives {wanted.shape}: nothing is written")
    if not np.isfinite(made).all():
        return Check(len(made), of, float("inf"), float("inf"), 0.0)
    difference = made.astype(np.float64) - wanted
    spread = wanted.astype(np.float64) - wanted.mean(axis=1, keepdims=True, dtype=np.float64)
    size = float(np.sqrt((spread**2).mean())) or 1.0  # of a head of zeros
    same = (wanted.argmax(axis=1) == made.argmax(axis=1)).mean()
    return Check(
        len(made), of, float(abs(difference).max()), float(np.sqrt((difference**2).mean())) / size, float(same)
    )


def judge(check: Check, precision: str, wanted: Floats) -> None:
    """Refuses a file that is another model."""
    scale = max(1.0, float(abs(wanted).max()) / 10)
    if precision == "float32" and not check.largest <= LARGEST * scale:
        limit = f"{LARGEST * scale:.1g}"
        raise VitrailError(
            f"the file's logits differ from PyTorch's by {check.largest:.2g}, more than {limit}: it is not kept"
        )
    if not check.relative <= RELATIVE[precision]:
        raise VitrailError(
            f"in {precision} the logits move by {check.relative:.0%} of their spread, more than "
            f"{RELATIVE[precision]:.0%}: it is not kept; try another precision, or calibrate with --data"
        )
