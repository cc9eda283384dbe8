"""Fine-tuning the real DeiT-Tiny on the flowers: validation accuracy after 3 and after 15 epochs, three seeds.

    python benchmarks/flowers.py FLOWERS DEIT_TINY --out benchmarks/flowers.json

FLOWERS holds {train,val}/<class>/*.jpg (2,934 and 736 photographs of 5 kinds), DEIT_TINY is the checkpoint.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from datetime import date
from pathlib import Path

import torch

from vitrail.training.log import read_log
from vitrail.training.train import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("flowers", type=Path)
    parser.add_argument("deit_tiny", type=Path)
    parser.add_argument("--epochs", type=float, nargs="+", default=[3, 15])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for epochs in args.epochs:
            for seed in args.seeds:
                start = time.perf_counter()
                place = Path(folder) / f"{epochs}-{seed}"
                settings = {"epochs": epochs, "seed": seed, "precision": args.precision}
                run = train(str(args.flowers), start=str(args.deit_tiny), out=place, **settings)
                curve = [[row["epoch"], row["accuracy"]] for row in read_log(place) if row["kind"] == "eval"]
                row = {**settings, "accuracy": round(run.scores["accuracy"], 4)}
                row |= {"training_s": run.facts["seconds"], "all_s": round(time.perf_counter() - start, 1)}
                rows.append({**row, "curve": [[epoch, round(value, 4)] for epoch, value in curve]})
                print(json.dumps(row), flush=True)
    report = {"date": date.today().isoformat(), "hardware": hardware, "torch": torch.__version__, "rows": rows}
    if args.out:
        args.out.write_text(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
