"""CIFAR-10 recipes with several seeds: seconds of training, accuracy on the test pictures, with and without flip.

    python benchmarks/cifar10/record.py CIFAR10.npz cifar10-94 cifar10-96 --seeds 5 --out benchmarks/cifar10/record.json

Any DATA works; the .npz file has x_train, y_train, x_test, y_test (pictures, height, width, channels) and classes.
Rows of an `--out` that is there are kept, and seeds of the same row are added to it: `--first 3 --seeds 2` goes on
where three seeds were. `--keep FOLDER` keeps the models. `--choose` holds 5,000 training pictures out and scores on
them, never on the test pictures: for choosing settings, `--set optimiser.muon_lr=0.01` (several: all combinations).
`--runs FOLDER` keeps whole runs: one that was stopped (by SIGTERM, such as that of `timeout`) goes on at the next call.
`--jobs 4` has so many runs at a time, whose times say nothing and are left out; on a GPU they share it well under
`nvidia-cuda-mps-control -d`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from multiprocessing import get_context, set_start_method
from pathlib import Path
from typing import Any

import torch

import vitrail
from vitrail.data.opening import open_source
from vitrail.training.train import resume

read = cache(open_source)


def place(recipe: str, changes: dict[str, Any], runs: Path | None) -> AbstractContextManager[str]:
    """Where a run lies: below `runs`, under a name that is its settings', or nowhere for long."""
    if runs is None:
        return tempfile.TemporaryDirectory()
    mark = hashlib.blake2b(json.dumps(changes, sort_keys=True).encode(), digest_size=4).hexdigest()
    return nullcontext(str(runs / f"{recipe}-{mark}"))


def one(
    data: str,
    recipe: str,
    changes: dict[str, Any],
    seed: int,
    device: str | None,
    choose: bool,
    keep: Path | None,
    runs: Path | None = None,
) -> dict[str, Any]:
    source = read(data)
    settings = changes | ({"data.val_fraction": 0.1} if choose else {}) | {"seed": seed}
    with place(recipe, settings, runs) as folder:
        began = time.perf_counter()
        out = Path(folder) / "run"
        if out.exists():
            run = resume(out, device=device, source=source)
        else:
            run = vitrail.train(source, recipe=recipe, out=out, device=device, changes=settings)
        row: dict[str, Any] = {
            "seed": seed,
            "seconds": run.facts.get("step_seconds"),
            "setup_seconds": run.facts.get("setup_seconds"),
        }
        row["wall_seconds"] = round(time.perf_counter() - began, 1)
        row["steps"] = run.facts["steps"]
        log = list(map(json.loads, (run.folder / "log.jsonl").read_text().splitlines()))
        if choose:
            last = [line for line in log if line["kind"] == "eval"][-1]
            row["held_out"] = round(100 * last["accuracy"], 2)
        else:
            model = run.folder / "last"
            for name, flip in (("accuracy", False), ("accuracy_with_flip", True)):
                scores = vitrail.evaluate(str(model), source, split="test", flip=flip, device=device).scores
                row[name] = round(100 * scores.top1, 2)
        row["train_loss"] = round([line for line in log if line["kind"] == "train"][-1]["loss"], 4)
        if events := [line["text"] for line in log if line["kind"] == "event"]:
            row["events"] = events  # such as what a compiler did not take
        if keep is not None:
            shutil.copytree(run.folder / "last", keep / f"{recipe}-{seed}", dirs_exist_ok=True)
    return row


def results(data: str, runs: list[tuple[Any, ...]], rest: tuple[Any, ...], jobs: int) -> Iterator[Any]:
    """Of all runs, in their order."""
    if jobs == 1:
        yield from (one(data, *run, *rest) for run in runs)
        return
    # threads of several processes that wait for each other on the same cores take longer than the work
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))
    # their own workers begin as usual: spawned like them, each would be sent all pictures
    with ProcessPoolExecutor(jobs, get_context("spawn"), set_start_method, (None, True)) as pool:
        waiting = [pool.submit(one, data, *run, *rest) for run in runs]
        for future in waiting:
            row = future.result()
            yield {key: value for key, value in row.items() if not key.endswith("seconds")}


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """The row with what its runs come to: mean, spread, and the median of the seconds of those that ran alone."""
    figures = [run.get("held_out", run.get("accuracy")) for run in row["runs"]]
    seconds = [run["seconds"] or run["wall_seconds"] for run in row["runs"] if "seconds" in run]
    row["mean"] = round(statistics.mean(figures), 3)
    row["spread"] = round(statistics.stdev(figures), 3) if len(figures) > 1 else None
    row["seconds"] = statistics.median(seconds) if seconds else None
    return row


def write(out: Path, row: dict[str, Any]) -> None:
    """Into the file, beside its other rows; runs of the same row and of other seeds stay in it."""
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    what = ("recipe", "changes", "device", "versions")
    same = [old for old in rows if all(old[key] == row[key] for key in what)]
    seeds = {run["seed"] for run in row["runs"]}
    runs = [run for old in same for run in old["runs"] if run["seed"] not in seeds] + row["runs"]
    whole = summary(row | {"runs": sorted(runs, key=lambda run: run["seed"])})
    place = rows.index(same[0]) if same else len(rows)
    rows[place : place + 1] = [whole]
    out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE[,VALUE]")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--runs", type=Path, metavar="FOLDER")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keys = [one.partition("=")[0] for one in options.set]
    lists = [tomllib.loads(f"v = [{one.partition('=')[2]}]")["v"] for one in options.set]
    settings = [dict(zip(keys, values, strict=True)) for values in itertools.product(*lists)]
    kinds = list(itertools.product(options.recipes, settings))
    seeds = range(options.first, options.first + options.seeds)
    all_runs = [(*kind, seed) for kind in kinds for seed in seeds]
    found = results(options.data, all_runs, (options.device, options.choose, options.keep, options.runs), options.jobs)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    versions = {"torch": torch.__version__, "vitrail": vitrail.__version__, "python": platform.python_version()}
    for recipe, changes in kinds:
        row = {"recipe": recipe, "changes": changes, "device": device, "versions": versions}
        row |= {"date": time.strftime("%Y-%m-%d"), "runs": []}
        for _ in seeds:
            row["runs"].append(next(found))
            print(recipe, changes, row["runs"][-1], flush=True)
            if options.out:
                write(options.out, row)
        summary(row)
        print(f"{recipe} {changes}: {row['mean']} ± {row['spread']} in {row['seconds'] or '?'} s", flush=True)


if __name__ == "__main__":
    main()
