"""What kernels take when nothing needs to be started: played from a CUDA graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch


def microseconds(call: Callable[[], Any], times: int = 12) -> float:
    """Of one of some in a row: the median of 50."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    found = []
    for _ in range(60):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()  # type: ignore[no-untyped-call]
        graph.replay()
        last.record()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        found.append(1000 * first.elapsed_time(last) / times)  # type: ignore[no-untyped-call]
    return round(statistics.median(found[10:]), 2)
