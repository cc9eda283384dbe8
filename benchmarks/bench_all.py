"""`vitrail bench` for the whole family beside the peers, as one run: benchmarks/bench_h200/bench.json and bench.png.

    python benchmarks/bench_all.py --out benchmarks/bench_h200            # one GPU; groups compile at once
    python benchmarks/bench_all.py --device cpu --only tiny --out /tmp/b  # a small one, to see it run

Every line of ROWS is a bench of its own. Those of a group compile side by side, which is what takes long; when all are
ready they take turns one bench after the other, so that nothing else computes while something is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import vitrail
from vitrail.speed.bench_results import Bench, Measurement
from vitrail.speed.peers import Case, Row

TIMM = {"peers": ["timm"], "ways": ["compiled"]}
RECORDED = {"peers": ["timm"], "ways": ["compiled", "graphs"], "peer_ways": ["compiled"]}
ROWS: dict[str, list[dict[str, Any]]] = {
    "training": [
        {"model": "vit_b16", "modes": ["train"], "batch_sizes": [256], "precisions": ["fast"], "ways": ["compiled"]},
        {"model": "vit_b16", "modes": ["train"], "batch_sizes": [256], "precisions": ["fp8"], **TIMM,
         "ways": ["compiled", "graphs"]},
    ],
    # as peers train; a recorded step keeps its memory while others have their turns, so that ours alone have room
    "large": [
        {"model": "vit_l16", "modes": ["train"], "batch_sizes": [128], "precisions": ["fast"], **RECORDED},
        {"model": "vit_h14", "modes": ["train"], "batch_sizes": [64], "precisions": ["fast"], **RECORDED},
        {"model": "vit_b16", "modes": ["train"], "batch_sizes": [256], "precisions": ["bf16"], **RECORDED},
    ],
    "huge, 128": [
        {"model": "vit_h14", "modes": ["train"], "batch_sizes": [128], "precisions": ["fast"], **RECORDED},
    ],
    "small": [
        {"model": "vit_b16", "modes": ["train"], "batch_sizes": [64], "precisions": ["fast"], "img_size": 384, **TIMM},
        {"model": "vit_s16", "modes": ["train"], "batch_sizes": [512], "precisions": ["fast"], **TIMM},
        {"model": "vit_ti16", "modes": ["train"], "batch_sizes": [512], "precisions": ["fast"], **TIMM,
         "ways": ["compiled", "graphs"]},
    ],
    "serving": [
        {"model": "vit_b16", "modes": ["infer"], "batch_sizes": [256], "precisions": ["bf16"], "ways": ["compiled"]},
        {"model": "vit_b16", "modes": ["infer"], "batch_sizes": [256], "precisions": ["fp8"], **TIMM},
        {"model": "vit_s16", "modes": ["infer"], "batch_sizes": [512], "precisions": ["bf16"], **TIMM},
        *(
            {"model": name, "modes": ["infer"], "batch_sizes": [1], "precisions": ["bf16"], **TIMM,
             "ways": ["graphs"]}
            for name in ("vit_ti16", "vit_s16", "vit_b16")
        ),
    ],
    "tiny": [
        {"model": "vit_ti16", "modes": ["infer"], "batch_sizes": [2], "precisions": ["fp32"], "ways": ["eager"],
         "peers": ["timm"], "img_size": 64},
        {"model": "vit_ti16", "modes": ["train"], "batch_sizes": [2], "precisions": ["fp32"], "ways": ["eager"],
         "peers": ["timm"], "img_size": 64},
    ],
}  # fmt: skip


def one(row: dict[str, Any], options: dict[str, Any], place: str, ready: Any, go: Any, lock: Any) -> None:
    """A bench in a process of its own; its JSON goes to `place`."""
    start = time.time()
    name = f"{row['model']} {row['modes'][0]} {row['batch_sizes'][0]} {row['precisions'][0]}"

    def say(line: str) -> None:
        print(f"[{time.time() - start:5.0f} s] {line}", file=sys.stderr, flush=True)

    @contextmanager
    def alone() -> Iterator[None]:
        ready.release()
        say(f"{name}: ready")
        go.wait()
        with lock:
            yield

    model = row.pop("model")
    try:
        found = vitrail.bench(model, **row, **options, say=say, alone=alone)
        Path(place).write_text(json.dumps(found.to_json()), encoding="utf-8")
    finally:
        ready.release()  # whatever happened, the others need not wait for it


def run_group(rows: list[dict[str, Any]], options: dict[str, Any], folder: Path, patience: float) -> None:
    context = get_context("spawn")
    ready, go, lock = context.Semaphore(0), context.Event(), context.Lock()
    processes = []
    for number, row in enumerate(rows):
        place = folder / f"part-{time.time_ns()}-{number}.json"
        processes.append(context.Process(target=one, args=(dict(row), options, str(place), ready, go, lock)))
        processes[-1].start()
    end = time.time() + patience
    for _ in rows:
        ready.acquire(timeout=max(0.1, end - time.time()))
    go.set()
    for process in processes:
        process.join()


def read(parts: list[Path]) -> Bench:
    """What several benches found, as one."""
    found = [json.loads(part.read_text(encoding="utf-8")) for part in parts]
    measurements = [
        Measurement(
            Case(m["model"], m["mode"], m["batch"], m["precision"]),
            m["ceiling_tflops"] * 1e12,
            round(m["gflop"] * 1e9),
            tuple(Row(**row) for row in m["rows"]),
        )
        for part in found
        for m in part["measurements"]
    ]
    return Bench({key: value for key, value in found[0].items() if key != "measurements"}, tuple(measurements))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=[group for group in ROWS if group != "tiny"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds for preparing a group")
    parser.add_argument("--parts-only", action="store_true", help="leave parts for a later call to put together")
    asked = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # of each of many
    asked.out.mkdir(parents=True, exist_ok=True)
    options = {"device": asked.device, "rounds": asked.rounds, "seconds": asked.seconds}
    for group in asked.only:
        run_group(ROWS[group], options, asked.out, asked.patience)
    if asked.parts_only:
        return
    from vitrail.speed.bench_plot import write_plot  # needs more than measuring does

    parts = sorted(asked.out.glob("part-*.json"))
    result = read(parts)
    (asked.out / "bench.json").write_text(json.dumps(result.to_json(), indent=1) + "\n", encoding="utf-8")
    write_plot(result, asked.out / "bench.png")
    for part in parts:
        part.unlink()
    for line in result.table():
        print("  ".join(f"{word:>12}" if place else f"{word:48}" for place, word in enumerate(line)))


if __name__ == "__main__":
    main()
