"""Time and memory of loading a ViT-L/16 (1.2 GB), beside reading its bytes, and beside timm and safetensors.

    uv run --all-extras python benchmarks/load_speed.py

Each measurement is a process of its own; rounds alternate. Memory is the growth of the process's anonymous memory, so
that pages of the file that the system keeps are not counted as a copy.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WAYS = {
    "read the bytes": "data = open(path, 'rb').read()",
    "vitrail.load": "data = vitrail.load(path)",
    "safetensors, copied into timm's model": "data = timm.create_model('vit_large_patch16_224', checkpoint_path=path)",
}
PROGRAM = """
import os, sys, time, threading
import numpy as np, torch, safetensors.torch, timm, vitrail, vitrail.classifier, torchvision.models
path = sys.argv[1]
torch.zeros(1)
def anonymous():
    return int(next(line for line in open('/proc/self/status') if line.startswith('RssAnon')).split()[1]) * 1024
before, peak, stop = anonymous(), 0, False
def watch():
    global peak
    while not stop:
        peak = max(peak, anonymous())
        time.sleep(0.005)
thread = threading.Thread(target=watch)
thread.start()
start = time.perf_counter()
{way}
seconds = time.perf_counter() - start
stop = True
thread.join()
print(seconds, max(peak, anonymous()) - before)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    import torch
    from safetensors.torch import save_file

    import vitrail

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vit_large_patch16_224.safetensors"
        state = vitrail.create("vit_l16").state_dict()
        size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
        save_file(state, path)
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(args.rounds + 1):
            for name, way in WAYS.items():
                command = [sys.executable, "-c", PROGRAM.replace("{way}", way), str(path)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                seconds, memory = map(float, done.stdout.split())
                found[name].append((seconds, memory / size))
    base = statistics.median(seconds for seconds, _ in found["read the bytes"][1:])
    head = {"date": time.strftime("%Y-%m-%d"), "torch": torch.__version__, "python": platform.python_version()}
    head["bytes"] = str(size)
    lines = [head]
    for name, results in found.items():
        seconds = statistics.median(s for s, _ in results[1:])  # the first round warms the system's cache
        memory = max(m for _, m in results[1:])
        lines.append(
            {
                "way": name,
                "seconds": f"{seconds:.3f}",
                "times_reading": f"{seconds / base:.2f}",
                "memory_times_model": f"{memory:.2f}",
            }
        )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    print(text, end="")
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
