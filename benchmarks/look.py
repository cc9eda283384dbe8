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
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--methods", nargs="+", default=["random", *figures.METHODS])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    classifier = vitrail.load(args.model)
    files = sorted(path for path in args.pictures_of.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg", ".png"))
    chosen = np.random.default_rng(0).permutation(len(files))[: args.pictures]
    pixels = torch.from_numpy(np.stack([classifier.preprocessing(files[place]) for place in sorted(chosen)]))
    for method in args.methods:
        start = time.time()
        if method == "random":
            maps = figures.random_maps((len(pixels), *classifier.model.config.grid))
        else:
            maps = figures.saliency(classifier.model, pixels, method)
        curves = figures.removal_curves(classifier.model, pixels, maps, steps=args.steps)
        write(args, method, curves, time.time() - start)


def write(args: argparse.Namespace, method: str, curves: figures.Curves, seconds: float) -> None:
    """Adds a method to the file; the areas of each picture stand there too, so that methods can be run by parts."""
    about = {"model": Path(args.model).name, "pictures": len(curves.classes), "steps": args.steps}
    before = json.loads(args.out.read_text()) if args.out.exists() else {}
    areas = before["areas"] if about.items() <= before.items() else {}  # others cannot stand beside these
    areas[method] = {
        "deletion": [round(float(area), 4) for area in curves.deletion_area],
        "insertion": [round(float(area), 4) for area in curves.insertion_area],
    }
    result = {
        **about,
        "removed": "replaced by the mean colour; probability of the predicted class",
        "methods": {name: row(own, areas["random"]) for name, own in areas.items()} if "random" in areas else {},
        "areas": areas,
        "torch": torch.__version__,
        "hardware": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
        "date": date.today().isoformat(),
    }
    print(method, round(seconds), "s", result["methods"].get(method), flush=True)
    args.out.write_text(json.dumps(result) + "\n")


def row(own: dict[str, list[float]], random: dict[str, list[float]]) -> dict[str, float]:
    found = {}
    for kind, sign in (("deletion", 1), ("insertion", -1)):
        better = sign * (np.array(random[kind]) - np.array(own[kind]))
        found[kind] = round(float(np.mean(own[kind])), 4)
        found[f"{kind}_margin"] = round(float(better.mean()), 4)
        found[f"{kind}_margin_95"] = round(float(1.96 * better.std(ddof=1) / len(better) ** 0.5), 4)
        found[f"{kind}_better_on"] = round(float((better > 0).mean()), 3)
    return found


if __name__ == "__main__":
    main()
