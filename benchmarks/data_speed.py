"""Training pictures per second through worker processes, beside torchvision's ImageFolder and timm's loader.

    uv run --all-extras python benchmarks/data_speed.py FOLDER [--out benchmarks/data_speed.json]

FOLDER holds <class>/*.jpg; a second set of 2000 x 1500 JPEGs is made of its first pictures. All end in a normalised
float32 batch of 224 x 224 in the main process: a random resized crop (bicubic, 0.08 to 1 of the area), a flip. Rounds
alternate; a round leaves out the first batches, while the workers start. The ratio is the median over paired rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import numpy as np
import PIL
import timm
import torch
import torchvision
from PIL import Image
from timm.data import create_loader
from torch.utils.data import ConcatDataset, DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from vitrail.data.augmentation import Augmentation
from vitrail.data.loading import TrainingLoader
from vitrail.data.opening import open_source
from vitrail.data.schedule import Schedule
from vitrail.data.source import Subset
from vitrail.pictures import Preprocessing, decode

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH, WARM = 64, 4


def through_vitrail(folder: Path, times: int, workers: int) -> Iterator[torch.Tensor]:
    source = open_source(folder)
    subset = Subset(source, "all", np.tile(np.arange(len(source)), times))
    preprocessing = Preprocessing(mean=MEAN, std=STD)
    loader = TrainingLoader(Schedule(subset, BATCH), preprocessing, Augmentation(), workers=workers)
    return (batch.inputs(preprocessing) for batch in loader.batches(0, len(subset) // BATCH))


def through_torchvision(folder: Path, times: int, workers: int) -> Iterator[torch.Tensor]:
    steps = [
        v2.RandomResizedCrop(224, interpolation=v2.InterpolationMode.BICUBIC),
        v2.RandomHorizontalFlip(),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
    pictures = ConcatDataset([ImageFolder(str(folder), v2.Compose(steps))] * times)
    return (batch for batch, _ in DataLoader(pictures, BATCH, shuffle=True, num_workers=workers, drop_last=True))


def through_timm(folder: Path, times: int, workers: int) -> Iterator[torch.Tensor]:
    one = ImageFolder(str(folder))
    loader = create_loader(
        one,
        (3, 224, 224),
        BATCH,
        is_training=True,
        interpolation="bicubic",
        color_jitter=None,
        num_workers=workers,
        mean=MEAN,
        std=STD,
        device=torch.device("cpu"),
        pin_memory=False,
        persistent_workers=True,
    )
    for _ in range(times):
        for batch, _ in loader:
            yield batch


WAYS: dict[str, Callable[[Path, int, int], Iterator[torch.Tensor]]] = {
    "vitrail": through_vitrail,
    "torchvision": through_torchvision,
    "timm": through_timm,
}


def rate(batches: Iterator[torch.Tensor]) -> float:
    start, seen = 0.0, 0
    for number, batch in enumerate(batches):
        assert batch.shape[1:] == (3, 224, 224)
        assert batch.dtype == torch.float32
        if number == WARM:
            start, seen = time.perf_counter(), 0
        seen += len(batch)
    return (seen - BATCH) / (time.perf_counter() - start)


def enlarge(folder: Path, large: Path, count: int) -> None:
    """Photographs of 2000 x 1500: real ones, enlarged, with a sensor's grain so that they compress as such ones do."""
    grain = np.random.default_rng(0)
    for number, path in enumerate(sorted(folder.glob("*/*"))[:count]):
        pixels = np.asarray(decode(path).resize((2000, 1500), Image.Resampling.BICUBIC), np.float32)
        pixels += grain.normal(0, 3, pixels.shape[:2])[..., None]
        target = large / f"class{number % 4}" / f"{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(target, quality=90)


def measure(folder: Path, times: int, rounds: int, workers: int) -> dict[str, object]:
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            rates[name].append(rate(way(folder, times, workers)))
    found: dict[str, object] = {f"{name}_per_s": round(statistics.median(values)) for name, values in rates.items()}
    for peer in ("torchvision", "timm"):
        ratios = [ours / theirs for ours, theirs in zip(rates["vitrail"], rates[peer], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        found[f"ratio_{peer}"] = round(statistics.median(ratios), 3)
        found[f"quartiles_{peer}"] = [round(low, 3), round(high, 3)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    small = sorted(args.folder.glob("*/*"))
    report: dict[str, object] = {
        "date": date.today().isoformat(),
        "hardware": f"{platform.machine()}, {args.workers} workers",
        "versions": {m.__name__: m.__version__ for m in (torch, torchvision, timm, PIL)},
        "batch": BATCH,
        "rounds": args.rounds,
    }
    report["as_they_are"] = {"pictures": len(small), **measure(args.folder, 2, args.rounds, args.workers)}
    print(json.dumps(report["as_they_are"]), flush=True)
    with tempfile.TemporaryDirectory() as large:
        enlarge(args.folder, Path(large), 256)
        size = statistics.median(path.stat().st_size for path in Path(large).glob("*/*"))
        found = measure(Path(large), 3, args.rounds, args.workers)
        report["2000x1500"] = {"pictures": 256, "median_bytes": size, **found}
    print(json.dumps(report["2000x1500"]), flush=True)
    if args.out:
        args.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
