"""What a benchmark found: as JSON, as rows of a table, and where it was measured."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail.errors import VitrailError
from vitrail.speed.contenders import versions
from vitrail.speed.peers import Case, Row
from vitrail.whole import written_whole


@dataclass(frozen=True)
class Measurement:
    """All contenders in one case."""

    case: Case
    ceiling: float  # FLOP/s of a matrix product in the same rounds and numbers
    flop: int  # of one picture forward; training is counted as three times that
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        head = {**asdict(self.case), "ceiling_tflops": self.ceiling / 1e12, "gflop": self.flop / 1e9}
        return {**head, "rows": [row.to_json() for row in self.rows]}


@dataclass(frozen=True)
class Bench:
    """A whole run."""

    about: dict[str, Any]
    measurements: tuple[Measurement, ...]

    def to_json(self) -> dict[str, Any]:
        return {**self.about, "measurements": [one.to_json() for one in self.measurements]}

    def write(self, folder: Path) -> None:
        """bench.json and bench.png."""
        from vitrail.speed.bench_plot import write_plot

        if folder.exists() and not folder.is_dir():
            raise VitrailError(f"--out {folder} is a file: name a folder")
        folder.mkdir(parents=True, exist_ok=True)
        with written_whole(folder / "bench.json", overwrite=True) as new:
            new.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        if any(row.pictures_per_s for one in self.measurements for row in one.rows):
            write_plot(self, folder / "bench.png")

    def table(self) -> list[list[str]]:
        """Under each case its contenders, the fastest first."""
        head = ["", "pictures/s", "quartiles", "of ceiling", "memory, GiB", "difference", ""]
        lines = [head]
        for one in self.measurements:
            lines.append([f"{one.case} (ceiling {one.ceiling / 1e12:,.3g} TFLOP/s)", *[""] * 6])
            lines += [_line(row) for row in sorted(one.rows, key=lambda row: -(row.pictures_per_s or 0))]
        return lines


def _line(row: Row) -> list[str]:
    name = f"  {row.contender}, {row.way}"
    if row.pictures_per_s is None:
        return [name, "-", "", "", "", "", row.error]
    low, high, part = row.low or 0, row.high or 0, row.of_ceiling or 0
    digits = 1 if row.pictures_per_s < 100 else 0
    return [
        name,
        f"{row.pictures_per_s:,.{digits}f}",
        f"[{low:,.{digits}f}, {high:,.{digits}f}]",
        f"{part:.0%}",
        "-" if row.memory is None else f"{row.memory / 2**30:.2f}",
        "-" if row.difference is None else f"{row.difference:.1e}",
        ("OTHER OUTPUTS " if row.same is False else "") + row.note,
    ]


def about(device: torch.device) -> dict[str, Any]:
    """Where, when and with what."""
    return {
        "hardware": hardware(device),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or device.type
    return f"{name}, {os.cpu_count()} cores"
