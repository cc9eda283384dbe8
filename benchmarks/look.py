"""Do the maps point at what the prediction rests on? Deletion and insertion areas over real pictures.

    python benchmarks/look.py deit_tiny_patch16_224.safetensors imagenet-sample/ --pictures 200

Every map orders the patches of a picture; they are replaced by the mean colour, the first ones first, and the
probability of the predicted class is watched. Beside each method stands a random order. The margin is the mean over
pictures of (random - method), with a 95% interval by its standard error.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch

import vitrail
from vitrail import figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("pictures_of", type=Path, help="a folder of pictures")
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    start = time.time()
    classifier = vitrail.load(args.model)
    files = sorted(path for path in args.pictures_of.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg", ".png"))
    chosen = np.random.default_rng(0).permutation(len(files))[: args.pictures]
    pixels = torch.from_numpy(np.stack([classifier.preprocessing(files[place]) for place in sorted(chosen)]))
    grid = figures.rollout(classifier.model, pixels[:1]).shape[1:]
    orders = {"random": figures.random_maps((len(pixels), *grid))}
    orders |= {method: figures.saliency(classifier.model, pixels, method) for method in figures.METHODS}
    areas = {}
    for name, maps in orders.items():
        curves = figures.removal_curves(classifier.model, pixels, maps, steps=args.steps)
        areas[name] = (curves.deletion_area.numpy(), curves.insertion_area.numpy())
        print(name, *(f"{area.mean():.4f}" for area in areas[name]), f"{time.time() - start:.0f} s", flush=True)
    rows = {name: row(own, areas["random"]) for name, own in areas.items()}
    result = {
        "model": Path(args.model).name,
        "pictures": len(pixels),
        "steps": args.steps,
        "removed": "replaced by the mean colour; probability of the predicted class",
        "areas": rows,
        "torch": torch.__version__,
        "hardware": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
        "seconds": round(time.time() - start),
        "date": date.today().isoformat(),
    }
    args.out.write_text(json.dumps(result, indent=2) + "\n")


def row(own: tuple[np.ndarray, np.ndarray], random: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    better = random[0] - own[0], own[1] - random[1]
    return {
        "deletion": round(float(own[0].mean()), 4),
        "insertion": round(float(own[1].mean()), 4),
        "deletion_margin": round(float(better[0].mean()), 4),
        "deletion_margin_95": round(float(1.96 * better[0].std(ddof=1) / len(better[0]) ** 0.5), 4),
        "insertion_margin": round(float(better[1].mean()), 4),
        "insertion_margin_95": round(float(1.96 * better[1].std(ddof=1) / len(better[1]) ** 0.5), 4),
        "better_than_random": round(float((better[0] > 0).mean()), 3),
    }


if __name__ == "__main__":
    main()
