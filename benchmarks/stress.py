r"""Curves of `vitrail stress` for models that are at hand; the plots go to docs.

    python benchmarks/stress.py IMAGENET DeiT-Tiny=deit_tiny.safetensors --only occlusion \
        --out benchmarks/stress_imagenet.json --plot docs/images/stress.png
    python benchmarks/stress.py cifar10.npz ViT=runs/vit ResNet=runs/resnet --baseline ResNet --device cuda \
        --out benchmarks/stress_cifar10.json --plot docs/images/stress_cifar10.png

The first argument is any DATA. Trials are kept in `--trials FOLDER`, so that the same command goes on where it was
stopped.
"""

from __future__ import annotations

import argparse
import json
import platform
from datetime import date
from pathlib import Path

import torch
from PIL import Image

import vitrail


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("--only", default=None)
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--baseline")
    parser.add_argument("--device")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--trials", type=Path, default=Path("stress-trials"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    places = dict(word.split("=", 1) for word in args.models)
    report = vitrail.stress(
        places,
        args.data,
        only=args.only,
        pictures=args.pictures,
        seeds=args.seeds,
        baseline=args.baseline,
        device=args.device,
        batch_size=args.batch_size,
        workers=args.workers,
        out=args.trials,
        progress=lambda done, total: print(f"\r{done:,} of {total:,} batches", end="", flush=True),
    )
    print("\n" + report.text())
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    hardware = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    facts = {"date": date.today().isoformat(), "hardware": hardware, "torch": torch.__version__}
    if args.out:
        plain = {**facts, **report.to_json(), "data": Path(args.data).name}
        args.out.write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n")
    if args.plot:
        with Image.open(args.trials / "stress.png") as plot:  # with few colours, for the documents
            small = plot.convert("RGB").quantize(128, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        small.save(args.plot, optimize=True)


if __name__ == "__main__":
    main()
