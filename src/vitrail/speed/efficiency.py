"""How much of a device's rates a training step reaches: a small table, fitted to measured steps.

The device alone takes what the matrix products take at a part of the peak that grows with the model's width, and what
carrying activations and weights to and from memory takes at the memory's bandwidth:

    device = products * (1 + narrow / width) * FLOP / peak  +  carried * bytes / bandwidth

Beside it a processor starts the kernels of each block, in `block_s`, which the device waits for here and there:

    seconds = sqrt(device**2 + (block_s * blocks)**2)

so that large steps take what the device takes, and small ones what starting them takes. Linear maps in eight bits
take less, by `EIGHT` of what half the time of their arithmetic at the peak would save. `fit` finds the four factors by
the least squares of relative errors. `efficiency.json` has them for the devices that were measured; others take those
of the H200, and are the less certain.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TABLE = Path(__file__).with_name("efficiency.json")
EIGHT = 0.7  # measured with B/16 and H/14 on an H200: numbers must be rounded to eight bits too
QUICKEST = 1.2  # no product was ever seen to reach more than five sixths of a data sheet's peak
LEAST_ROWS = 4  # of steps that tell three factors
TRIED = 501  # values of `block_s`
USUAL = "h200"  # whose factors hold for devices that were not measured


@dataclass(frozen=True)
class Work:
    """What a step has to do on one device."""

    flop: float
    width: int
    carried: float  # bytes of activations and weights
    blocks: float  # whose kernels are started, times passes through them
    eight: float = 0.0  # FLOP of those above that are of eight-bit numbers


@dataclass(frozen=True)
class Efficiency:
    """The factors of one kind of device, eager or compiled."""

    products: float
    narrow: float  # a width at which products take twice as long
    carried: float
    block_s: float
    measured: bool = True  # on this kind of device

    def device(self, work: Work, peak: float, bandwidth: float) -> float:
        """Seconds that the device alone takes for a step. `peak` in FLOP/s, `bandwidth` in bytes/s."""
        products = self.products * (1 + self.narrow / work.width) * work.flop / peak
        return products + self.carried * work.carried / bandwidth - _saved(work, peak)

    def starting(self, work: Work) -> float:
        """Seconds that starting the kernels of a step takes."""
        return self.block_s * work.blocks

    def seconds(self, work: Work, peak: float, bandwidth: float) -> float:
        """Of a step."""
        return math.hypot(self.device(work, peak, bandwidth), self.starting(work))


def _saved(work: Work, peak: float) -> float:
    """Seconds that eight bits save."""
    return EIGHT * work.eight / (2 * peak)


@cache
def read_table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def efficiency_of(device: str, compiled: bool) -> Efficiency:
    """From the table."""
    kinds = read_table()["devices"]
    ways = kinds.get(device, kinds[USUAL])
    row = ways.get("compiled" if compiled else "eager", ways["eager"])
    return Efficiency(**row, measured=device in kinds)


def fit(rows: Sequence[tuple[Work, float]], peak: float, bandwidth: float) -> Efficiency | None:
    """The factors that explain measured seconds best, by relative error; none of them is negative. None: too few rows
    are busy enough to tell."""
    most = max((seconds / work.blocks for work, seconds in rows if work.blocks), default=0.0)
    tried = [_fit_device(rows, block_s, peak, bandwidth) for block_s in np.linspace(0, most, TRIED if most else 1)]

    def error(one: Efficiency) -> float:
        return sum((one.seconds(work, peak, bandwidth) / seconds - 1) ** 2 for work, seconds in rows)

    return min((one for one in tried if one is not None), key=error, default=None)


def _fit_device(rows: Sequence[tuple[Work, float]], block_s: float, peak: float, bandwidth: float) -> Efficiency | None:
    """Of what is left when starting the kernels takes `block_s` for each block."""
    left = [(work, seconds, math.sqrt(max(0.0, seconds**2 - (block_s * work.blocks) ** 2))) for work, seconds in rows]
    busy = [(work, seconds, device + _saved(work, peak)) for work, seconds, device in left if device > 0]
    if len(busy) < LEAST_ROWS:
        return None
    columns = np.array([[w.flop / peak, w.flop / peak / w.width, w.carried / bandwidth] for w, _, _ in busy])
    # an error of the device's part is a smaller one of the whole
    weights = np.array([device / seconds**2 for _, seconds, device in busy])
    columns, wanted = columns * weights[:, None], np.array([device for *_, device in busy]) * weights
    best = _least_squares(columns, wanted)
    if best[0] < QUICKEST:
        best = np.append(QUICKEST, _least_squares(columns[:, 1:], wanted - QUICKEST * columns[:, 0]))
    return Efficiency(float(best[0]), float(best[1] / best[0]), float(best[2]), float(block_s))


def _least_squares(columns: NDArray[Any], wanted: NDArray[Any]) -> NDArray[Any]:
    """Without negative factors: of all choices of columns, the best that has none."""
    best, least = np.zeros(columns.shape[1]), np.inf
    for count in range(1, columns.shape[1] + 1):
        for chosen in map(list, itertools.combinations(range(columns.shape[1]), count)):
            part, *_ = np.linalg.lstsq(columns[:, chosen], wanted, rcond=None)
            error = float(np.square(columns[:, chosen] @ part - wanted).sum())
            if (part >= 0).all() and error < least:
                best, least = np.zeros(columns.shape[1]), error
                best[chosen] = part
    return best


def write_table(found: Mapping[str, Mapping[str, Efficiency]], about: Mapping[str, Any], path: Path = TABLE) -> None:
    """Puts fitted devices into the table; others stay."""
    table = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"devices": {}}
    for device, ways in found.items():
        table["devices"][device] = {
            way: {
                "products": round(one.products, 4),
                "narrow": round(one.narrow, 2),
                "carried": round(one.carried, 4),
                "block_s": float(f"{one.block_s:.3g}"),
            }
            for way, one in ways.items()
        }
    table |= {"about": {**table.get("about", {}), **about}}
    path.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    read_table.cache_clear()
