"""The devices that the planner knows: one table, from the makers' data sheets.

Rates are of dense matrix products with float32 sums. Those of eight-bit floating numbers are, by the same data sheets,
twice those of sixteen bits where there are any (since Ada and Hopper). Memory is what a program can have of it. `link`
is what one device can send to the others of its machine, `network` to those of other machines, both in one direction.
Prices are indicative, of renting one device for an hour without a contract, in US dollars: they change by the week, so
give your own (`--price`).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from vitrail.errors import VitrailError

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """One device: a GPU, a core of a TPU, a core of a processor."""

    name: str
    title: str
    half: float  # TFLOP/s in bfloat16, or in float16 where there is no bfloat16
    single: float  # TFLOP/s in float32
    memory: float  # GiB
    bandwidth: float  # TB/s of its memory
    link: float  # GB/s to the other devices of a machine
    network: float  # GB/s to other machines, for each device
    per_machine: int
    price: float  # US dollars an hour
    source: str
    bfloat16: bool = True
    eight_bits: bool = False

    @property
    def is_gpu(self) -> bool:
        return self.name not in ("tpuv3", "cpu")

    def peak(self, precision: str) -> float:
        """FLOP/s in these numbers; of `fp8`, in which not all is computed, those of sixteen bits."""
        return 1e12 * (self.single if precision == "fp32" else self.half)


_NVIDIA = "NVIDIA data sheet"
_ROWS = (
    Device("h200", "NVIDIA H200 SXM", 989, 67, 139.8, 4.8, 450, 50, 8, 3.80, f"{_NVIDIA} H200, 2024", eight_bits=True),
    Device("h100", "NVIDIA H100 SXM", 989, 67, 79.1, 3.35, 450, 50, 8, 3.00, f"{_NVIDIA} H100, 2023", eight_bits=True),
    Device("a100-80", "NVIDIA A100 SXM 80 GB", 312, 19.5, 79.2, 2.04, 300, 25, 8, 1.80, f"{_NVIDIA} A100, 2021"),
    Device("a100-40", "NVIDIA A100 SXM 40 GB", 312, 19.5, 39.4, 1.56, 300, 25, 8, 1.30, f"{_NVIDIA} A100, 2021"),
    Device("l4", "NVIDIA L4", 121, 30.3, 22.0, 0.30, 24, 3, 8, 0.70, f"{_NVIDIA} L4, 2023", eight_bits=True),
    Device("t4", "NVIDIA T4", 65, 8.1, 14.6, 0.32, 12, 3, 4, 0.35, f"{_NVIDIA} T4, 2019", bfloat16=False),
    Device(
        "rtx4090",
        "NVIDIA RTX 4090",
        165,
        82.6,
        23.6,
        1.01,
        24,
        3,
        4,
        0.40,
        "NVIDIA Ada white paper, 2022",
        eight_bits=True,
    ),
    Device("tpuv3", "one core of a TPU v3", 61.5, 10, 16.0, 0.45, 70, 70, 2048, 1.00, "Cloud TPU v3 documentation"),
    Device("cpu", "one core of a server processor", 0.1, 0.1, 4.0, 0.02, 10, 3, 64, 0.05, "AVX-512 at 3 GHz, by count"),
)
DEVICES = {device.name: device for device in _ROWS}


def find_device(name: str) -> Device:
    """The row with this name, however it is written."""
    key = name.lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    key = {"a100": "a100-80", "a100-80gb": "a100-80", "a100-40gb": "a100-40", "4090": "rtx4090"}.get(key, key)
    if key in DEVICES:
        return DEVICES[key]
    near = difflib.get_close_matches(key, DEVICES, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise VitrailError(f"no device is called {name!r}: {hint}choose from {', '.join(DEVICES)}, or use --measure")
