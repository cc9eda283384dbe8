"""A candidate: GELU in eight bits by the GPU's own instruction for tanh.

    python benchmarks/candidates/tanh_gelu.py            # one GPU: errors, microseconds

The kernel there is computes the tanh form by an exponential and a quotient, two of the slow instructions for every
number, which take a GPU longer than to carry numbers of eight bits. The instruction for tanh is one, off by 2^-11 of
its result at most, where eight bits are off by a sixteenth. Kernels are timed as 4 in a row played from a CUDA graph,
at the sizes of B/16 with 256 pictures.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from vitrail.model.kernels.gelu import gelu_in_eight_bits

LARGEST: tl.constexpr = tl.constexpr(448.0)


@triton.jit
def _by_tanh(hidden, result, scale, hidden_scale, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(hidden + place, mask=place < count, other=0.0).to(tl.float32) * tl.load(hidden_scale)
    inner = x * (0.7978845608 + 0.0356774081 * x * x)
    tanh = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [inner], dtype=tl.float32, is_pure=True, pack=1)
    half = x * (0.5 / tl.load(scale))
    active = tl.clamp(half + half * tanh, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    tl.store(result + place, active.to(result.dtype.element_ty), mask=place < count)


def by_tanh(hidden: Tensor, scale: Tensor, hidden_scale: Tensor, block: int, warps: int) -> Tensor:
    result = torch.empty_like(hidden, dtype=torch.float8_e4m3fn)
    grid = (triton.cdiv(hidden.numel(), block),)
    _by_tanh[grid](hidden, result, scale, hidden_scale, hidden.numel(), block, num_warps=warps)
    return result


def microseconds(call: Callable[[], Any], times: int = 4) -> float:
    """Of one of some in a row, played from a CUDA graph: the median of 50."""
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
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        found.append(1000 * first.elapsed_time(last) / times)
    return round(statistics.median(found[10:]), 2)


def main() -> None:
    scale, hidden_scale = torch.tensor(0.02, device="cuda"), torch.tensor(0.04, device="cuda")
    hidden = (3 * torch.randn(256 * 197, 3072, device="cuda") / hidden_scale).to(torch.float8_e4m3fn)
    some = hidden[:1000]
    right = F.gelu(some.double() * hidden_scale) / scale
    for name, found in (
        ("there", gelu_in_eight_bits(some, scale, hidden_scale)),
        ("tanh", by_tanh(some, scale, hidden_scale, 2048, 4)),
    ):
        error = (found.double() - right).norm() / right.norm()
        print(json.dumps({"way": name, "error": round(float(error), 6)}), flush=True)
    row: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    row["there"] = microseconds(lambda: gelu_in_eight_bits(hidden, scale, hidden_scale))
    for block, warps in ((2048, 4), (4096, 4), (4096, 8), (8192, 8)):
        call = lambda block=block, warps=warps: by_tanh(hidden, scale, hidden_scale, block, warps)  # noqa: E731
        row[f"tanh, {block} by {warps} warps"] = microseconds(call)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
