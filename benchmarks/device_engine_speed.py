"""Augmented training pictures per second from pixels that live on the device.

    python benchmarks/device_engine_speed.py [--device cuda] [--out benchmarks/device_engine_speed.json]

The time is that of making finished, normalised, mixed float32 batches and nothing else; pixels are random, which costs
the same as real ones. A round is several seconds of batches; the figure is the median over rounds, with quartiles. The
same batches are also made on the CPU and compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch

from vitrail.data.augmentation import Augmentation
from vitrail.data.cache import Decoded
from vitrail.data.resident import ResidentLoader
from vitrail.data.samples import Names, Samples
from vitrail.data.schedule import Schedule
from vitrail.data.source import Source
from vitrail.pictures import Preprocessing

FLIP_AND_SHIFT = Augmentation(crop="pad")
MIXED = {"mixup": 0.8, "cutmix": 1.0}
PLANS = {
    "shift, flip": FLIP_AND_SHIFT,
    "shift, flip, cutout": Augmentation(crop="pad", cutout=0.5),
    "shift, flip, RandAugment, cutout, mixup, cutmix": Augmentation(
        crop="pad", policy="randaugment", cutout=0.5, **MIXED
    ),
    "random resized crop, flip, RandAugment, erasing, mixup, cutmix": Augmentation(
        policy="randaugment", erase=0.25, **MIXED
    ),
    "shift, flip, TrivialAugment": Augmentation(crop="pad", policy="trivialaugment"),
    "random resized crop, flip, three-augment, colour jitter": Augmentation(
        policy="three-augment", brightness=0.3, contrast=0.3, saturation=0.3
    ),
}


def a_set(count: int, side: int) -> tuple[Source, Decoded]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, count).astype(np.int32)
    names = Names.of(f"{number:06}" for number in range(count))
    classes = tuple(map(str, range(10)))
    source = Source("random", Samples(names, classes, labels, np.full(count, -1, np.int8)), None)  # type: ignore[arg-type]
    pixels = rng.integers(0, 256, (count, side, side, 3), np.uint8)
    return source, Decoded(pixels, np.full((count, 2), side, np.int32), np.ones(count, bool))


def loader(
    source: Source, decoded: Decoded, size: int, batch: int, plan: Augmentation, device: str, **options: bool
) -> ResidentLoader:
    preprocessing = Preprocessing(size=(size, size), crop_pct=1.0)
    return ResidentLoader(Schedule(source.all(), batch), decoded, preprocessing, plan, device=device, **options)


def rates(made: ResidentLoader, rounds: int, seconds: float) -> list[float]:
    def wait() -> None:
        if made.device.type == "cuda":
            torch.cuda.synchronize()

    batches, found = made.batches(), []
    for _ in range(20):
        next(batches).inputs(made.preprocessing)
    for _ in range(rounds):
        wait()
        start, seen = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            for _ in range(10):
                batch = next(batches)
                batch.inputs(made.preprocessing)
                batch.targets(10)
                seen += len(batch)
            wait()
        found.append(seen / (time.perf_counter() - start))
    return found


def differences(source: Source, decoded: Decoded, size: int, plan: Augmentation, device: str) -> dict[str, float]:
    """Of the device's batches to the CPU's, in grey levels."""
    here, there = (loader(source, decoded, size, 64, plan, where).batches(0, 2) for where in ("cpu", device))
    apart = torch.cat([(a.pixels.float() - b.pixels.cpu().float()).abs() for a, b in zip(here, there, strict=True)])
    return {"mean": round(float(apart.mean()), 5), "share_over_1": round(float((apart > 1).float().mean()), 6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--only", default="", help="rows whose name has this in it, such as '32 x 32: shift'")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    report: dict[str, object] = {"date": date.today().isoformat(), "hardware": name, "torch": torch.__version__}
    rows = []
    for what, count, side, size, batch in (("32 x 32", 50_000, 32, 32, 512), ("280 to 224", 2_048, 280, 224, 256)):
        source, decoded = a_set(count, side)
        for title, plan in PLANS.items():
            if args.only not in f"{what}: {title}":
                continue
            torch.compiler.reset()  # each plan is compiled for itself
            made = loader(source, decoded, size, batch, plan, args.device, compiled=args.compiled)
            start = time.perf_counter()
            next(made.batches())
            first = time.perf_counter() - start
            found = rates(made, args.rounds, args.seconds)
            low, middle, high = statistics.quantiles(found, n=4)
            row = {"pictures": what, "batch": batch, "augmentation": title, "compiled": args.compiled}
            row |= {"per_s": round(middle), "first_batch_s": round(first, 1)}
            row |= {"quartiles": [round(low), round(high)], **differences(source, decoded, size, plan, args.device)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    report["rows"] = rows
    if args.out:
        args.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
