"""Does learning without labels help? CIFAR-10: each method pretrains, then the same fine-tuning, beside from scratch.

    python benchmarks/pretrain_cifar10.py CIFAR10.npz masked mae dino scratch --seeds 3 --runs runs/pretrained
    python benchmarks/pretrain_cifar10.py CIFAR10.npz scratch --set optimiser.lr=2e-3 --set optimiser.muon_lr=0.02
    python benchmarks/pretrain_cifar10.py CIFAR10.npz mae --seeds 1 --epochs 110 --set augmentation.mix_prob=0.5
    python benchmarks/pretrain_cifar10.py --table benchmarks/pretrain_cifar10.jsonl

Pretraining sees the 50,000 training pictures without their labels (seed 0), fine-tuning with them, and the test
pictures are scored once, by the average of the weights after the last step. From scratch the patches are whitened
first, as they are before pretraining. A row is appended for each fine-tuning; pretraining that is complete is not
repeated. `--epochs` and `--set` are the fine-tuning's.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import torch

import vitrail
from vitrail.training.run import Run

sys.path.insert(0, str(Path(__file__).parent / "cifar10"))
from record import read

ALL = {"data.val_fraction": 0.0}  # recipes were chosen with a part held out


def encoder(method: str, source: Any, folder: Path, device: str | None, changes: dict[str, Any]) -> Run:
    """The pretrained run of a method, made if it is not there."""
    if (folder / "run.json").is_file() and Run.open(folder).facts.get("complete"):
        return Run.open(folder)
    return vitrail.pretrain(source, recipe=f"cifar10-{method}", out=folder, device=device, changes=ALL | changes)


def seconds(run: Run) -> float:
    return float(run.facts.get("step_seconds") or run.facts["seconds"])


def one(source: Any, start: Run | None, seed: int, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One fine-tuning, and its scores."""
    changes = ALL | {"eval_epochs": 10_000, "seed": seed} | args.changes
    changes |= {"epochs": args.epochs} if args.epochs else {}
    changes |= {"whiten": True} if start is None else {}
    began = time.perf_counter()
    encoder = None if start is None else str(start.folder / "last")
    run = vitrail.train(
        source, recipe="cifar10-finetune", start=encoder, out=folder, device=args.device, changes=changes
    )
    wall = time.perf_counter() - began
    scores = [
        vitrail.evaluate(str(run.folder / "last"), source, split="test", flip=flip, device=args.device).scores.top1
        for flip in (False, True)
    ]
    return {
        "epochs": run.recipe.epochs,
        "seed": seed,
        "accuracy": round(100 * scores[0], 2),
        "accuracy_with_flip": round(100 * scores[1], 2),
        "seconds": round(seconds(run), 1),
        "wall_seconds": round(wall, 1),
    }


def table(file: Path) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    spans = ("pretraining, epochs", "s", "fine-tuning, epochs", "s")
    columns = ("start", *spans, "test accuracy, %", "with flip", "seeds")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(json.dumps([row["start"], row["epochs"], row["changes"]]), []).append(row)
    for name, some in groups.items():
        start, epochs, changes = json.loads(name)
        settings = ", ".join(f"{key} {value:g}" for key, value in changes.items() if key != "epochs")
        spread = f" ± {statistics.stdev(r['accuracy'] for r in some):.2f}" if len(some) > 1 else ""
        keys = ("accuracy", "accuracy_with_flip", "seconds")
        mean, flip, spent = (statistics.mean(r[key] for r in some) for key in keys)
        first = f"{some[0]['pretrain_epochs']:g} | {some[0]['pretrain_seconds']:.0f}" if start != "scratch" else "– | –"
        start += f" ({settings})" if settings else ""
        print(f"| {start} | {first} | {epochs:g} | {spent:.0f} | {mean:.2f}{spread} | {flip:.2f} | {len(some)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("starts", nargs="*", metavar="masked|mae|dino|scratch")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--pretrain-set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--runs", type=Path, default=Path("runs/pretrained"))
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".jsonl"))
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.table:
        table(args.table)
        return
    args.changes, before = (
        {key: tomllib.loads(f"v = {value}")["v"] for key, _, value in (one.partition("=") for one in some)}
        for some in (args.set, args.pretrain_set)
    )
    source = read(args.data)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    for start in args.starts:
        learned = None if start == "scratch" else encoder(start, source, args.runs / start, args.device, before)
        for seed in range(args.seeds):
            folder = args.runs / "-".join([start, *map(str, (args.epochs or "recipe", *args.changes.values(), seed))])
            row = {"start": start, **one(source, learned, seed, folder, args)}
            if learned is not None:
                row |= {"pretrain_epochs": learned.recipe.epochs, "pretrain_seconds": round(seconds(learned), 1)}
            row |= {"changes": args.changes, "device": device, "torch": torch.__version__, "date": str(date.today())}
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
