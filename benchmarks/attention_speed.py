"""Attention over some hundred tokens on packed projections: microseconds of our kernels beside torch's.

    python benchmarks/attention_speed.py
    python benchmarks/attention_speed.py --columns 32 64      # also with other numbers of tokens at a time
    python benchmarks/attention_speed.py --short 16 0         # back also with 64 tokens in the last program of a head
    python benchmarks/attention_speed.py --rows 64 128        # also with other numbers of tokens in a program

Of a GPU: forward, in eight bits, and back (by events, with a cold cache); of a CPU: what it takes to start each.
Torch's forward is scaled_dot_product_attention on the same packed projections; its way back includes that of their
packing. Errors are against float32, over the largest number. Every variant has a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CASES = {  # batch, tokens, heads
    "B/16": (256, 197, 12),
    "S/16": (256, 197, 6),
    "Ti/16": (256, 197, 3),
    "B/16 at 384": (64, 577, 12),
    "L/16": (128, 197, 16),
    "48 x 48": (512, 144, 6),
}
WIDTH = 64


def on_gpu(call: Callable[[], Any]) -> float:
    """Microseconds, the median of 30."""
    flush = torch.empty(2**27, device="cuda")
    times = []
    for turn in range(40):
        flush.zero_()  # as much as makes the cache forget
        torch.cuda._sleep(1_000_000)  # half a millisecond in which the CPU gets ahead
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()  # type: ignore[no-untyped-call]
        call()
        last.record()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        if turn >= 10:
            times.append(1000 * first.elapsed_time(last))  # type: ignore[no-untyped-call]
    return statistics.median(times)


def on_cpu(call: Callable[[], Any]) -> float:
    """Microseconds to start it, the median of five times 40."""
    times = []
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(40):
            call()
        times.append((time.perf_counter() - start) / 40 * 1e6)
    return statistics.median(times[1:])


def torchs(qkv: Tensor, heads: int) -> Tensor:
    q, k, v = qkv.unflatten(-1, (3, heads, WIDTH)).unbind(2)
    mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return mixed.transpose(1, 2).flatten(2)


def far(found: Tensor, right: Tensor) -> float:
    right = right.detach()
    return float((found.float() - right).abs().max() / right.abs().max())


def measure(case: tuple[int, int, int], columns: int | None, short: int | None, rows: int) -> dict[str, float]:
    from vitrail.model.kernels import mid_attention as ours

    ours.COLUMNS = columns or ours.COLUMNS
    ours.SHORT = ours.SHORT if short is None else short
    ours.ROWS, ours.WARPS = rows, rows // 16
    batch, tokens, heads = case
    torch.manual_seed(0)
    scale = WIDTH**-0.5
    qkv = torch.randn(batch, tokens, 3 * heads * WIDTH, device="cuda").bfloat16()
    upstream = torch.randn(batch, tokens, heads * WIDTH, device="cuda").bfloat16()
    out, lse = ours.mid_attention(qkv, heads, scale)
    packed, *_ = ours.mid_attention_backward(upstream, qkv, out, lse, heads, scale)
    some = qkv[:8].float().requires_grad_()
    right = torchs(some, heads)
    (back,) = torch.autograd.grad(right, some, upstream[:8].float())
    out_scale = out.abs().amax().float() / 224
    learned = qkv.clone().requires_grad_()
    theirs = torchs(learned, heads)
    one = [part[:1].contiguous() for part in (qkv, upstream, out, lse)]  # so small that a GPU never makes a CPU wait
    return {
        "error": far(out[:8], right),
        "error_back": far(packed[:8], back),
        "forward": on_gpu(lambda: ours.mid_attention(qkv, heads, scale)),
        "eight_bits": on_gpu(lambda: ours.mid_attention_in_eight_bits(qkv, heads, scale, out_scale)),
        "back": on_gpu(lambda: ours.mid_attention_backward(upstream, qkv, out, lse, heads, scale)),
        "torch_forward": on_gpu(lambda: torchs(qkv, heads)),
        "torch_back": on_gpu(lambda: torch.autograd.grad(theirs, learned, upstream, retain_graph=True)),
        "start": on_cpu(lambda: ours.mid_attention(one[0], heads, scale)),
        "start_back": on_cpu(lambda: ours.mid_attention_backward(one[1], one[0], *one[2:], heads, scale)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, nargs="+", default=[None])
    parser.add_argument("--short", type=int, nargs="+", default=[None])
    parser.add_argument("--rows", type=int, nargs="+", default=[64])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "unit": "us"}))
    for columns, short, rows in itertools.product(options.columns, options.short, options.rows):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # another process: kernels are compiled once in each
            for name in options.cases:
                found = pool.submit(measure, CASES[name], columns, short, rows).result()
                row = {"case": name, "columns": columns, "short": short, "rows": rows}
                print(json.dumps(row | {key: round(value, 4) for key, value in found.items()}), flush=True)


if __name__ == "__main__":
    main()
