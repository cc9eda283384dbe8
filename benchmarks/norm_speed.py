"""A branch added to the residual stream and the norm of the sum: microseconds of our kernels beside a compiler's.

    python benchmarks/norm_speed.py

Of a GPU, in bfloat16, layer norms, there and back (with the gradient of the branch's bias), warm cache.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.model.kernels.fused_norm import FusedNorm

CASES = {"B/16": (256, 197, 768), "L/16": (128, 197, 1024), "H/14": (64, 257, 1280), "48 x 48": (512, 144, 384)}
DEVICE = "cuda"


def microseconds(call: Callable[[], Any], rounds: int = 50) -> float:
    """The median of rounds of four in a row."""
    times = []
    for turn in range(rounds + 10):
        torch.cuda._sleep(1_000_000)  # half a millisecond in which the CPU gets ahead
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()  # type: ignore[no-untyped-call]
        for _ in range(4):
            call()
        last.record()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        if turn >= 10:
            times.append(1000 * first.elapsed_time(last) / 4)  # type: ignore[no-untyped-call]
    return round(statistics.median(times), 1)


def ours(x: Tensor, branch: Tensor, bias: Tensor, weight: Tensor, norm_bias: Tensor) -> tuple[Tensor, Tensor]:
    return FusedNorm.apply(x, branch, bias, None, weight, norm_bias, 1e-6, x.dtype)


def plain(x: Tensor, branch: Tensor, bias: Tensor, weight: Tensor, norm_bias: Tensor) -> tuple[Tensor, Tensor]:
    stream = x + (branch + bias).to(x.dtype)
    return stream, F.layer_norm(stream.float(), x.shape[-1:], weight, norm_bias, 1e-6).to(x.dtype)


def measure(case: tuple[int, int, int]) -> dict[str, float]:
    x, branch, *upstream = (torch.randn(case, device=DEVICE).bfloat16() for _ in range(4))
    learned = [x, branch, *(torch.randn(case[2], device=DEVICE) for _ in range(3))]
    given = [one.requires_grad_() for one in learned]
    found = {}
    for name, way in (("ours", ours), ("compiled", torch.compile(plain, dynamic=False))):
        with torch.no_grad():
            found[name] = microseconds(lambda way=way: way(*given))  # type: ignore[misc]
        results = way(*given)

        def back(results: tuple[Tensor, Tensor] = results) -> Any:
            return torch.autograd.grad(results, given, upstream, retain_graph=True)

        found[f"{name}, back"] = microseconds(back)
    return found


def main() -> None:
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "unit": "us"}))
    for name, case in CASES.items():
        print(json.dumps({"case": name, **measure(case)}), flush=True)


if __name__ == "__main__":
    main()
