"""Speed of the plain model beside timm's, in one run: forward and training step, eager and compiled.

    uv run --all-extras python benchmarks/model_speed.py                       # CPU, Ti/16
    python benchmarks/model_speed.py --device cuda --models s16 b16 l16        # one GPU, bf16 autocast

Rounds of ours and theirs alternate, so that a drift of the machine meets both; a ratio is the median over the paired
rounds, its spread the quartiles. Both models hold the same weights. Writes one JSON line per measurement.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from torch.nn import functional as F

import vitrail
from vitrail.weights import timm as family

TIMM = {"ti16": "vit_tiny_patch16_224", "s16": "vit_small_patch16_224"}
TIMM |= {"b16": "vit_base_patch16_224", "l16": "vit_large_patch16_224"}
BATCH = {"cpu": {"ti16": 8}, "cuda": {"ti16": 512, "s16": 512, "b16": 256, "l16": 128}}


def make_models(name: str, device: str) -> dict[str, torch.nn.Module]:
    """Ours and timm's with the same weights."""
    torch.manual_seed(0)
    peer = timm.create_model(TIMM[name], weight_init="jax")
    ours = family.read(peer.state_dict(), {"architecture": TIMM[name]}).build()
    return {"vitrail": ours.to(device), "timm": peer.to(device)}


def make_step(model: torch.nn.Module, pictures: torch.Tensor, labels: torch.Tensor, train: bool) -> Callable[[], None]:
    """One forward pass, or one training step with AdamW."""
    device = pictures.device.type
    amp = torch.autocast(device, torch.bfloat16) if device == "cuda" else contextlib.nullcontext()
    if not train:
        model.eval()

        def forward() -> None:
            with torch.inference_mode(), amp:
                model(pictures)

        return forward
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with amp:
            loss = F.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(step: Callable[[], None], times: int, device: str) -> float:
    """Seconds for one step, over `times` of them."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def measure(name: str, device: str, train: bool, compiled: bool, rounds: int, budget: float) -> dict[str, object]:
    """Both models, alternating."""
    batch = BATCH[device][name]
    pictures, labels = torch.randn(batch, 3, 224, 224, device=device), torch.randint(1000, (batch,), device=device)
    steps, memory = {}, {}
    for who, model in make_models(name, device).items():
        run = torch.compile(model, fullgraph=True) if compiled else model
        steps[who] = make_step(run, pictures, labels, train)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        for _ in range(3):
            steps[who]()
        memory[who] = round((torch.cuda.max_memory_allocated() - before) / 2**30, 2) if device == "cuda" else None
    one = max(timed(step, 1, device) for step in steps.values())
    times = max(1, int(budget / (rounds * 2 * one)))
    seconds: dict[str, list[float]] = {who: [] for who in steps}
    for i in range(rounds):
        for who in list(steps) if i % 2 else list(reversed(steps)):
            seconds[who].append(timed(steps[who], times, device))
    ratios = sorted(theirs / ours for theirs, ours in zip(seconds["timm"], seconds["vitrail"], strict=True))
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "model": name,
        "mode": "train" if train else "forward",
        "compiled": compiled,
        "batch": batch,
        "vitrail_per_s": round(batch / statistics.median(seconds["vitrail"]), 1),
        "timm_per_s": round(batch / statistics.median(seconds["timm"]), 1),
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "extra_memory_gib": memory if device == "cuda" else None,
    }


def hardware(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{names[0]}, {torch.get_num_threads()} threads" if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", nargs="+", default=["ti16"], choices=TIMM)
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=20, help="of timing for each measurement")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    versions = {"torch": torch.__version__, "timm": timm.__version__, "vitrail": vitrail.__version__}
    head = {
        "hardware": hardware(args.device),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        **versions,
    }
    lines = [head]
    print(json.dumps(head), flush=True)
    torch.set_float32_matmul_precision("high")
    for name in args.models:
        for mode in args.modes:
            for train in (False, True):
                torch.compiler.reset()
                gc.collect()
                if args.device == "cuda":
                    torch.cuda.empty_cache()
                line = measure(name, args.device, train, mode == "compiled", args.rounds, args.seconds)
                lines.append(line)
                print(json.dumps(line), flush=True)
                if args.out:
                    args.out.write_text("".join(json.dumps(entry) + "\n" for entry in lines))


if __name__ == "__main__":
    main()
