"""How much of a device's rates a training step reaches: a small table, fitted to measured steps.

A step takes what its matrix products take at a part of the peak that grows with the model's width, and what carrying
activations and weights to and from memory takes at the memory's bandwidth:

    seconds = products * (1 + narrow / width) * FLOP / peak  +  carried * bytes / bandwidth

but never less than `block_s` for each block and pass, which is what starting its kernels takes. The three factors are
linear in what is measured, so that a least-squares fit of relative errors finds them (`fit`). `efficiency.json` has
them for the devices that were measured; others take those of the H200, and are the less certain.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TABLE = Path(__file__).with_name("efficiency.json")
QUICKEST = 1.2  # no product was ever seen to reach more than five sixths of a data sheet's peak
USUAL = "h200"  # whose factors hold for devices that were not measured


@dataclass(frozen=True)
class Work:
    """What a step has to do on one device."""

    flop: float
    width: int
    carried: float  # bytes of activations and weights
    blocks: int  # times passes through them


@dataclass(frozen=True)
class Efficiency:
    """The factors of one kind of device, eager or compiled."""

    products: float
    narrow: float  # a width at which products take twice as long
    carried: float
    block_s: float
    measured: bool = True  # on this kind of device

    def seconds(self, work: Work, peak: float, bandwidth: float) -> float:
        """Of a step. `peak` in FLOP/s, `bandwidth` in bytes/s."""
        products = self.products * (1 + self.narrow / work.width) * work.flop / peak
        return max(products + self.carried * work.carried / bandwidth, self.block_s * work.blocks)


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


def fit(rows: Sequence[tuple[Work, float]], starts: Sequence[tuple[Work, float]], peak: float, bandwidth: float
        ) -> Efficiency:  # fmt: skip
    """The factors that explain measured seconds best, by relative error; none of them is negative.

    `starts` are steps with few pictures, which take no longer than starting their kernels: they tell `block_s`, which
    is 0 without them.
    """
    columns = np.array([[w.flop / peak, w.flop / peak / w.width, w.carried / bandwidth] for w, _ in rows])
    columns /= np.array([[seconds] for _, seconds in rows])
    wanted = np.ones(len(rows))
    best = _least_squares(columns, wanted)
    if best[0] < QUICKEST:
        best = np.append(QUICKEST, _least_squares(columns[:, 1:], wanted - QUICKEST * columns[:, 0]))
    block_s = statistics.median([seconds / work.blocks for work, seconds in starts] or [0.0])
    return Efficiency(float(best[0]), float(best[1] / best[0]), float(best[2]), block_s)


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
