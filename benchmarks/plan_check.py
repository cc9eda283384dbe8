"""The planner against real training: predicted and measured memory and step time of Ti, S, B, L and H/14.

    python benchmarks/plan_check.py --out benchmarks/plan_check.json            # one GPU; ends within --budget seconds
    python benchmarks/plan_check.py --out benchmarks/plan_check.json --bench benchmarks/bench_h200/bench.json --fit
    OMP_NUM_THREADS=1 python benchmarks/plan_check.py --device cpu --ways eager --out benchmarks/plan_check_cpu.json
    python benchmarks/plan_check.py --tiny                                      # on a CPU, small models, to see it run

Steps are those of the loop of `vitrail train` (bfloat16, AdamW, clipping) on made-up pictures, each size in a loop of
its own; the time is the median of single steps, the memory what the allocator had at its peak. `--bench` and `--fit`
measure nothing: the one takes compiled and recorded steps from what `bench_all.py` has measured, the other writes the
package's table from the rows of --out. Three predictions of the time stand beside it: by the table as it is in the
package, by factors fitted to all rows of this file, and by factors fitted to the other models' rows alone, which is the
honest one.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import vitrail
from vitrail.model.config import ViTConfig
from vitrail.model.zoo import configure
from vitrail.speed.activations import has_kernels
from vitrail.speed.efficiency import Efficiency, efficiency_of, fit, read_table, write_table
from vitrail.speed.hardware import DEVICES, GIB, Device, find_device
from vitrail.speed.memory import Setup, memory_of
from vitrail.speed.rates import matrix_rate, memory_rate
from vitrail.speed.stepping import stepper
from vitrail.speed.timing import work_of

BATCHES = {"ti16": (2, 256, 512), "s16": (256, 512), "b16": (2, 128, 256), "l16": (64, 128), "h14": (32, 64)}
ON_CPU = {"ti16": (1, 2, 4, 8), "s16": (2, 4), "b16": (2,)}
TINY = {"tiny64": (64, 2, (1, 4, 8)), "tiny128": (128, 2, (4, 8)), "tiny192": (192, 3, (4, 8))}
BENCHED = {"fast": "bf16_residual", "bf16": "bf16", "fp8": "fp8"}
WAYS = {"compiled": "compiled", "graphs": "recorded"}  # those of a bench.json, and ours


def config_of(name: str) -> ViTConfig:
    if name in TINY:
        width, depth, _ = TINY[name]
        return ViTConfig(img_size=64, patch_size=8, embed_dim=width, depth=depth, num_heads=width // 32, num_classes=10)
    found = configure(f"vit_{name}")
    assert isinstance(found, ViTConfig)
    return found


def setup_of(row: dict[str, Any]) -> Setup:
    name, _, size = row["model"].partition(" at ")
    config, batch = config_of(name), row["batch"]
    config = replace(config, img_size=int(size.split()[0])) if size else config
    recorded = row.get("way") == "recorded"
    kernels = row["precision"] != "fp32" and (recorded or has_kernels(config, batch))
    return Setup(config, batch, precision=row["precision"], kernels=kernels, recorded=recorded)


def measure(name: str, way: str, batch: int, precision: str, device: torch.device) -> dict[str, Any]:
    setup = setup_of({"model": name, "batch": batch, "precision": precision})
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
    began = time.perf_counter()
    with stepper(setup, device, compiled=way == "compiled") as steps:
        steps.step()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        seconds = steps.seconds(0.5, least=5)
        memory = torch.cuda.max_memory_allocated() if on_gpu else None
    torch.compiler.reset()
    return {
        "model": name,
        "way": way,
        "batch": batch,
        "precision": precision,
        "measured_ms": round(1e3 * seconds, 3),
        "measured_gib": None if memory is None else round(memory / GIB, 3),
        "took_s": round(time.perf_counter() - began, 1),
    }


def benched(file: Path) -> list[dict[str, Any]]:
    """Our compiled training steps in a bench.json, recorded or not."""
    return [
        {
            "model": one["model"].removeprefix("vit_"),
            "way": WAYS[row["way"]],
            "batch": one["batch"],
            "precision": BENCHED[one["precision"]],
            "measured_ms": round(1e3 * one["batch"] / row["pictures_per_s"], 3),
            "measured_gib": round(row["memory"] / GIB, 3),
            "from": file.as_posix(),
        }
        for one in json.loads(file.read_text())["measurements"]
        for row in one["rows"]
        if one["mode"] == "train" and one["precision"] in BENCHED
        if row["contender"] == "vitrail" and row["way"] in WAYS and not row["error"]
    ]


def predict(rows: list[dict[str, Any]], device: Device, precision: str) -> dict[str, Efficiency]:
    """Writes predictions into the rows; gives the factors that were fitted to all of them."""
    peak, bandwidth = device.peak(precision), 1e12 * device.bandwidth
    found = {}
    for way in ("eager", "compiled"):  # what is recorded here is compiled too
        ours = [row for row in rows if (row["way"] == "eager") == (way == "eager")]
        table = efficiency_of(device.name, way == "compiled")
        own = factors(ours, peak, bandwidth)
        if own is not None:
            found[way] = own
        for row in ours:
            setup, measured = setup_of(row), row["measured_ms"]
            kind = row["model"].partition(" at ")[0]
            others = [other for other in ours if other["model"].partition(" at ")[0] != kind]
            held_out = factors(others, peak, bandwidth)
            for key, one in (("table", table), ("fitted", own), ("held_out", held_out)):
                if one is not None:
                    ms = 1e3 * one.seconds(work_of(setup), peak, bandwidth)
                    row[f"{key}_ms"], row[f"{key}_error"] = round(ms, 2), round(ms / measured - 1, 4)
            row["predicted_gib"] = round(memory_of(setup).peak / GIB, 3)
            if row["measured_gib"]:
                row["memory_error"] = round(row["predicted_gib"] / row["measured_gib"] - 1, 4)
    return found


def factors(rows: Sequence[dict[str, Any]], peak: float, bandwidth: float) -> Efficiency | None:
    return fit([(work_of(setup_of(row)), row["measured_ms"] / 1e3) for row in rows], peak, bandwidth)


def show(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        errors = " ".join(f"{key} {row[f'{key}_error']:+.1%}" for key in ("table", "fitted", "held_out")
                          if f"{key}_error" in row)  # fmt: skip
        memory = f"{row['measured_gib']} GiB, predicted {row['memory_error']:+.1%}" if row["measured_gib"] else ""
        words = (
            f"{row['model']:14} {row['way']:9} batch {row['batch']:4} {row['measured_ms']:9.2f} ms: {errors}; {memory}"
        )
        print(words, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--ways", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"])
    parser.add_argument("--budget", type=float, default=95.0, help="seconds after which nothing new is begun")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--fit", action="store_true", help="write the package's table from the rows of --out")
    parser.add_argument("--bench", type=Path, help="put our steps in a bench.json into --out")
    parser.add_argument("--table", type=Path, help="another table than the package's")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began = time.perf_counter()
    device = torch.device("cpu" if args.tiny else args.device)
    on_gpu, precision = device.type == "cuda", "bf16" if device.type == "cuda" else "fp32"
    sizes = {name: row[2] for name, row in TINY.items()} if args.tiny else BATCHES if on_gpu else ON_CPU
    content: dict[str, Any] = {"rows": []}
    if args.out and args.out.exists():
        content = json.loads(args.out.read_text())
    if args.fit or args.bench:
        kind = find_device(content["kind"])
        if args.bench:
            content["rows"] = [row for row in content["rows"] if "from" not in row] + benched(args.bench)
        numbers = content["rows"][0]["precision"]
        found = predict(content["rows"], kind, numbers)
        if args.fit:
            about = {kind.name: f"{args.out.name}, torch {content['torch']}, {content['date']}"}
            write_table({kind.name: found}, about, **({"path": args.table} if args.table else {}))
            read_table.cache_clear()
            predict(content["rows"], kind, numbers)  # by the new table
        content["fitted"] = {way: vars(one) for way, one in found.items()}
        show(content["rows"])
        args.out.write_text(json.dumps(content, indent=1) + "\n")
        return
    title = torch.cuda.get_device_name() if on_gpu else f"one core of a CPU ({torch.get_num_threads()} threads)"
    names = [name for name in DEVICES if name.partition("-")[0] in title.lower()]
    kind = DEVICES[names[0] if names else "h200"]
    content |= {"date": time.strftime("%Y-%m-%d"), "hardware": title, "kind": kind.name, "torch": torch.__version__}
    content |= {"python": platform.python_version(), "vitrail": vitrail.__version__}
    content["matrix_tflops"] = round(matrix_rate(device, precision) / 1e12, 3)
    content["memory_tb_s"] = round(memory_rate(device) / 1e12, 4)
    left = []
    slowest = 0.0  # of what was compiled so far, in seconds for a block
    for way in args.ways:
        for name in args.models or sizes:
            for batch in sizes[name] if way == "eager" else sizes[name][-1:]:  # to compile takes long
                guess = 3.0 if way == "eager" else max(20.0, 1.2 * slowest * config_of(name).depth)
                if time.perf_counter() - began + guess > args.budget:
                    left.append(f"{name} {way} {batch}")
                    continue
                row = measure(name, way, batch, precision, device)
                if way == "compiled":
                    slowest = max(slowest, row["took_s"] / config_of(name).depth)
                same = ("model", "way", "batch")
                content["rows"] = [old for old in content["rows"] if any(old[k] != row[k] for k in same)] + [row]
                print(json.dumps(row), flush=True)
    found = predict(content["rows"], kind, precision)
    content["fitted"] = {way: vars(one) for way, one in found.items()}
    content["seconds"] = round(time.perf_counter() - began, 1)
    show(content["rows"])
    if left:
        print(f"not measured, for want of time: {', '.join(left)}: run again with --ways and --models")
    if args.out:
        args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
