"""The names of those who can be measured, and what one measurement is; light, so that no command waits for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, Literal

from vitrail.errors import VitrailError

OURS = "vitrail"
PEERS = {  # by the name of the package that is installed: the module that it brings
    "timm": "timm",
    "torchvision": "torchvision",
    "transformers": "transformers",
    "vit-pytorch": "vit_pytorch",
}
Mode = Literal["infer", "train"]
# graphs: compiled, and played from CUDA graphs: torch's in inference (mode="reduce-overhead"), one of the whole step in
# training; tuned: compiled with "max-autotune", which also tries kernels against each other
Way = Literal["eager", "compiled", "graphs", "tuned"]
# fast and fp8 are ours alone, beside peers in bf16: the residual stream of training in bfloat16 too; that, or
# inference, with linear maps in eight bits
BenchPrecision = Literal["fp32", "bf16", "fp16", "fast", "fp8"]
# how far logits may be from float32's, in their standard deviations; float32 is TF32 on a GPU
TOLERANCE = {"fp32": 0.01, "fp16": 0.03, "bf16": 0.15, "fast": 0.15, "fp8": 0.5}
# of the loss after the first steps, of ours
LOSS_TOLERANCE = {"fp32": 1e-3, "fp16": 5e-3, "bf16": 2e-2, "fast": 2e-2, "fp8": 3e-2}


@dataclass(frozen=True)
class Case:
    """What every contender does in turn."""

    model: str
    mode: Mode
    batch: int
    precision: BenchPrecision

    def __str__(self) -> str:
        return f"{self.model}, {self.mode}, batch {self.batch}, {self.precision}"


@dataclass(frozen=True)
class Row:
    """One contender in one case."""

    contender: str
    way: Way
    pictures_per_s: float | None = None  # the median over rounds
    low: float | None = None  # quartiles
    high: float | None = None
    of_ceiling: float | None = None  # part of the matrix-product rate of the same rounds
    memory: int | None = None  # bytes at the peak
    difference: float | None = None  # from the reference: of logits in standard deviations, of the loss in parts of it
    same: bool | None = None  # within the tolerance
    note: str = ""
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def chosen_peers(asked: list[str] | None) -> list[str]:
    """Those that are installed, or those that are asked for."""
    if asked is None:
        return [name for name, module in PEERS.items() if find_spec(module) is not None]
    if asked == ["none"]:
        return []
    if "none" in asked:
        raise VitrailError("--peers none stands alone: leave it out, or the others")
    for name in asked:
        if name not in PEERS:
            raise VitrailError(f"--peers {name} is not known: choose from {', '.join(PEERS)}, or none")
        if find_spec(PEERS[name]) is None:
            raise VitrailError(f"{name} is not installed: pip install {name}, or leave it out of --peers")
    return list(dict.fromkeys(asked))
