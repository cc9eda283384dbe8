"""What a device can do at best: the rate of a matrix product, and that of a copy."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def synchronise(device: torch.device) -> None:
    """Waits until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def matrix_rate(device: torch.device, precision: str, seconds: float = 1.0) -> float:
    """FLOP/s of a large square matrix product."""
    dtype = {"fp32": torch.float32, "fp16": torch.float16}.get(precision, torch.bfloat16)
    side = 8192 if device.type == "cuda" else _large_for_cpu(dtype)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / _quickest(lambda: a @ b, device, seconds)


def _large_for_cpu(dtype: torch.dtype) -> int:
    """The side of a product that takes a tenth of a second, or 2048: processors that do not know the numbers take a
    thousand times as long as others."""
    side = 256
    while side < 2048:
        a = torch.ones(side, side, dtype=dtype)
        if _quickest(lambda a=a: a @ a, a.device, 0.0) > 0.02:  # type: ignore[misc]
            break
        side *= 2
    return side


def memory_rate(device: torch.device, seconds: float = 0.5) -> float:
    """Bytes/s of a copy, which reads and writes."""
    count = (2**28 if device.type == "cuda" else 2**25) // 4
    a, b = torch.ones(count, device=device), torch.empty(count, device=device)
    return 2 * 4 * count / _quickest(lambda: b.copy_(a), device, seconds)


def _quickest(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Of some runs, several at a time on a GPU."""
    times, best = 10 if device.type == "cuda" else 1, float("inf")
    for _ in range(2):
        work()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        synchronise(device)
        start = time.perf_counter()
        for _ in range(times):
            work()
        synchronise(device)
        best = min(best, (time.perf_counter() - start) / times)
    return best
