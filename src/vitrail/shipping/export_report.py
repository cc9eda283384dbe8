"""What an export reports: printed, and stored beside the file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitrail.shipping.verify import Check


@dataclass(frozen=True)
class Accuracy:
    """The same labelled pictures through PyTorch and through the file."""

    data: str
    pictures: int
    float_top1: float
    float_top5: float
    top1: float
    top5: float
    agreement: float
    calibrated_on_them: bool  # the data has one part alone

    @property
    def drop(self) -> float:
        """Points of top-1 that are lost."""
        return 100 * (self.float_top1 - self.top1)

    def table(self, precision: str) -> str:
        rows = [
            f"{self.data}, {self.pictures:,} pictures",
            f"{'':10}  {'top-1':>6}  {'top-5':>6}",
            f"{'PyTorch':10}  {self.float_top1:6.1%}  {self.float_top5:6.1%}",
            f"{precision:10}  {self.top1:6.1%}  {self.top5:6.1%}   {-self.drop:+.1f} points, "
            f"same class {self.agreement:.1%}",
        ]
        return "\n".join(rows + ["calibrated on some of the same pictures"] * self.calibrated_on_them)


@dataclass(frozen=True)
class ExportReport:
    """One export: where it is, what it is, and how near it comes to PyTorch."""

    file: Path
    format: str
    precision: str
    takes: str
    gives: tuple[str, ...]
    size: int  # bytes
    check: Check
    beside: tuple[str, ...]  # names of the other files
    opset: int | None = None
    pillow: Check | None = None  # preprocessing in the graph, beside Pillow's
    accuracy: Accuracy | None = None
    in_float: tuple[str, ...] = field(default=())  # layers that int8 leaves out

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        if self.accuracy is not None:
            plain["accuracy"]["drop"] = round(self.accuracy.drop, 3)
        return {**plain, "file": str(self.file), "beside": list(self.beside), "in_float": list(self.in_float)}

    def text(self) -> str:
        opset = f", opset {self.opset}" if self.opset else ""
        lines = [f"{self.file}: {self.format}{opset}, {self.precision}, {self.size / 1e6:,.1f} MB"]
        lines += [f"against PyTorch, {self.check.text()}"]
        if self.pillow is not None:
            lines += [f"against Pillow's preprocessing, {self.pillow.text()}"]
        if self.in_float:
            lines += [f"kept in float: {', '.join(self.in_float)}"]
        if self.accuracy is not None:
            lines += ["", self.accuracy.table(self.precision)]
        return "\n".join(lines)
