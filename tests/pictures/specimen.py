"""One file of the zoo."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Specimen:
    """`expected` is (height, width, 3), to within `tolerance` grey levels; None: it must be refused."""

    name: str
    data: bytes
    expected: np.ndarray | None = None
    tolerance: int = 0
