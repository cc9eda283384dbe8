"""The memory of a command and of all processes that it starts."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Measured(NamedTuple):
    peak: int  # bytes that all of its processes held at once; pages that they share are counted once
    seconds: float
    code: int
    out: str
    err: str


def measure(command: Sequence[str], folder: Path, every: float = 0.2) -> Measured:
    out, err = folder / "stdout", folder / "stderr"
    began, peak = time.monotonic(), 0
    with out.open("w") as to, err.open("w") as errors:
        process = subprocess.Popen(list(command), stdout=to, stderr=errors)
        try:
            while process.poll() is None:
                peak = max(peak, sum(map(proportional, family(process.pid))))
                time.sleep(every)
        finally:
            process.kill()
            process.wait()
    return Measured(peak, time.monotonic() - began, process.returncode, out.read_text(), err.read_text())


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                found += map(int, Path(f"/proc/{parent}/task/{thread}/children").read_text().split())
        except OSError:  # it has just ended
            continue
    return found


def proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
