"""Where the time of training in eight bits goes: products alone, passes over memory alone, and whole steps.

    python benchmarks/eight_bit_speed.py products           # each product of a block, in bfloat16 and in eight bits
    python benchmarks/eight_bit_speed.py passes             # each pass that makes eight bits, for several block sizes
    python benchmarks/eight_bit_speed.py step --maps none qkv,proj,mlp [--kernels 40]

Everything is as in a training of `--model` (vit_b16) with `--batch` (256) pictures on one GPU. `step` is forward,
cross-entropy, backward and AdamW as `vitrail bench` has it, once for each of `--maps`: the linear maps that are in
eight bits, of qkv, proj and mlp, or none, which is `precision = "fast"`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import vitrail
from vitrail.model import fp8_training as eight
from vitrail.model.fp8_training import Eight
from vitrail.model.kernels import eight_bits, fused_mlp, gelu
from vitrail.model.vit import ViT
from vitrail.training.precision import Precision

SIZES = ((128, 64, 8), (128, 64, 4), (64, 64, 4), (64, 64, 8), (64, 128, 8), (128, 32, 4), (128, 128, 8))
SUMS = {"exact": (False, False), "mixed": (True, False), "fast": (True, True)}


def milliseconds(work: Callable[[], object], times: int = 20, rounds: int = 5) -> float:
    """Of one call: the median of rounds."""
    for _ in range(3):
        work()
    found = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()  # type: ignore[no-untyped-call]
        for _ in range(times):
            work()
        end.record()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / times)  # type: ignore[no-untyped-call]
    return statistics.median(found)


def noise(rows: int, columns: int, kind: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(rows, columns, device="cuda").to(kind)


def products(model: ViT, tokens: int) -> None:
    """Each of a block's, three ways; and what all of them take in a step."""
    totals: dict[str, float] = {}
    one = torch.ones((), device="cuda")
    for name, linear in model.blocks[0].named_modules():
        if not isinstance(linear, torch.nn.Linear):
            continue
        narrow, wide = linear.in_features, linear.out_features
        # rows, columns and terms of the sum; the type of the first factor and of the result
        cases = {
            "forward": (tokens, wide, narrow, eight.TOKEN, torch.bfloat16),
            "to tokens": (tokens, narrow, wide, eight.GRADIENT, torch.bfloat16),
            "to weight": (wide, narrow, tokens, eight.GRADIENT, torch.float32),
        }
        for way, (rows, columns, terms, kind, result) in cases.items():
            a, b = noise(rows, terms), noise(columns, terms)
            times = {}
            if way == "to weight":  # as autograd has it: both lie across the sum
                a_turned, b_turned = a.T.contiguous(), b.T.contiguous()
                times["bf16"] = milliseconds(lambda a=a_turned, b=b_turned: a.T @ b)
            elif way == "to tokens":
                b_turned = b.T.contiguous()
                times["bf16"] = milliseconds(lambda a=a, b=b_turned: a @ b)
            else:
                times["bf16"] = milliseconds(lambda a=a, b=b: a @ b.T)
            small = Eight(a.to(kind), one), Eight(b.to(eight.TOKEN), one)
            for fast in (True, False):
                times["fp8 fast sums" if fast else "fp8 exact sums"] = milliseconds(
                    lambda small=small, result=result, fast=fast: eight.product(*small, result, fast=fast)
                )
            work = 2 * rows * columns * terms
            for numbers, spent in times.items():
                key = f"{way}, {numbers}"
                totals[key] = totals.get(key, 0.0) + spent * len(model.blocks)
            words = "  ".join(f"{key} {spent:.3f} ms ({work / spent / 1e9:,.0f} T)" for key, spent in times.items())
            print(f"{name:10} {way:10} {rows} x {columns} x {terms}: {words}", flush=True)
    for key, spent in totals.items():
        print(f"all {len(model.blocks)} blocks: {key:28} {spent:6.2f} ms")


def passes(model: ViT, tokens: int) -> None:
    """Milliseconds and GB/s of each, and what stands in its place in bfloat16."""
    width, hidden_width = model.config.embed_dim, model.config.mlp_dim
    scale = torch.ones((), device="cuda")
    x, qkv, hidden = noise(tokens, width), noise(tokens, 3 * width), noise(tokens, hidden_width)
    given, small = noise(tokens, hidden_width), noise(tokens, width).to(eight.TOKEN)
    weight = noise(hidden_width, width, torch.float32)
    prepare = torch.compile(lambda weight: eight.in_eight_bits(weight))

    def show(name: str, read_and_written: float, work: Callable[[], object]) -> None:
        spent = milliseconds(work)
        print(f"{name:58} {spent:.4f} ms {read_and_written / spent / 1e6:7,.0f} GB/s", flush=True)

    n, m = x.numel(), hidden.numel()
    show("the largest of a gradient", 2 * n, lambda: x.abs().amax())
    show("the largest of a gradient, compiled", 2 * n, torch.compile(lambda: x.abs().amax()))
    show("GELU in bfloat16", 4 * m, lambda: gelu.gelu(hidden))
    show("GELU in eight bits", 3 * m, lambda: gelu.gelu_in_eight_bits(hidden, scale))
    show("GELU's way back in bfloat16", 8 * m, lambda: fused_mlp.gelu_backward(hidden, given))
    show("a weight in eight bits, compiled, of fc1", 10 * weight.numel(), lambda: prepare(weight))
    for rows, columns, warps in SIZES:
        eight_bits.ROWS = rows
        eight_bits.COLUMNS, eight_bits.WARPS = columns, warps
        size = f"{rows} x {columns}, {warps} warps"
        show(f"{size}: tokens both ways", 4 * n, lambda: eight_bits.tokens_both_ways(x, scale))
        show(f"{size}: gradient both ways", 4 * n, lambda: eight_bits.gradient_both_ways(x, scale))
        show(f"{size}: gradient of qkv both ways", 12 * n, lambda: eight_bits.gradient_both_ways(qkv, scale))
        show(f"{size}: eight bits turned", 2 * n, lambda: eight_bits.turn_eight_bits(small))
        back = eight_bits.gelu_backward_in_eight_bits
        show(f"{size}: GELU's way back in eight bits", 7 * m, lambda back=back: back(hidden, given, scale, scale))


def step(name: str, batch: int, maps: str, *, eager: bool, kernels: int) -> None:
    """Whole steps with these maps in eight bits."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = vitrail.create(name, zero_head=False).cuda().train()
    assert isinstance(model, ViT)
    precision = Precision("bf16_residual", torch.device("cuda"))
    precision.prepare(model)
    eight.use_eight_bits(model.blocks, [] if maps == "none" else maps.split(","))
    pictures = torch.randn(batch, model.config.in_chans, *model.config.img_size, device="cuda")
    labels = torch.arange(batch, device="cuda") % model.config.num_classes
    run = model if eager else torch.compile(model, dynamic=False)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    losses = []

    def train() -> None:
        with precision.autocast():
            loss = F.cross_entropy(run(pictures).float(), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(loss.detach())

    for _ in range(5):
        train()
    torch.cuda.reset_peak_memory_stats()
    spent = milliseconds(train, times=10)
    found: dict[str, Any] = {
        "model": name,
        "batch": batch,
        "maps": maps,
        "compiled": not eager,
        "sums": [eight.FAST_SUMS, eight.FAST_SUMS_OVER_TOKENS],
        "ms": round(spent, 2),
        "pictures_per_s": round(1e3 * batch / spent),
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "losses": [round(float(loss), 4) for loss in (*losses[:3], losses[-1])],
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    print(json.dumps(found), flush=True)
    if kernels:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(5):
                train()
            torch.cuda.synchronize()
        rows = sorted(profile.key_averages(), key=lambda row: -row.self_device_time_total)
        for row in rows[:kernels]:
            print(f"{row.self_device_time_total / 5:9.1f} us {row.count / 5:6.1f} calls  {row.key[:110]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("products", "passes", "step"))
    parser.add_argument("--model", default="vit_b16")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--maps", nargs="+", default=["none", "qkv,proj,mlp"], metavar="MAPS")
    parser.add_argument("--sums", nargs="+", choices=SUMS, default=["mixed"], help="how products on the way add up")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="also the N kernels that take longest")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    if args.what == "step":
        for maps, sums in itertools.product(args.maps, args.sums):
            eight.FAST_SUMS, eight.FAST_SUMS_OVER_TOKENS = SUMS[sums]
            step(args.model, args.batch, maps, eager=args.eager, kernels=args.kernels)
        return
    model = vitrail.create(args.model)
    assert isinstance(model, ViT)
    tokens = args.batch * (model.config.num_prefix + model.config.num_patches)
    print(json.dumps({"tokens": tokens, "device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    {"products": products, "passes": passes}[args.what](model, tokens)


if __name__ == "__main__":
    main()
