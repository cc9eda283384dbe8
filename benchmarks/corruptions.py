"""The corruptions of `vitrail stress` beside those of their authors (`imagenet-c`), on the same pictures.

    python benchmarks/corruptions.py PICTURES --peer FOLDER --out benchmarks/corruptions.json

FOLDER is where `pip install --target FOLDER imagenet-c imagecorruptions scikit-image` put them: they are no
dependencies. `imagecorruptions` stands in where the authors call ImageMagick (motion blur, snow) and for the
photographs of frost. Where a peer draws random numbers it is given ours, so that pixels can be compared; shot and
impulse noise come by them in another way, frost is drawn here, and the stand-in crops its snow elsewhere: of these the
means are compared, and how far pixels move.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from vitrail.pictures import Preprocessing
from vitrail.scoring.stress.corruptions import CERTAIN, CORRUPTIONS, SEVERITIES, corrupt
from vitrail.scoring.stress.corruptions.severities import strength
from vitrail.scoring.stress.dice import Dice

STAND_IN = ("motion_blur", "snow", "frost")
SAME_NUMBERS = ("gaussian_noise", "glass_blur", "motion_blur", "fog", "elastic_transform")


def peers(folder: Path | None) -> dict[str, Any]:
    """The function for each corruption, made to run with today's NumPy and scikit-image."""
    if folder is not None:
        sys.path.append(str(folder))
    import scipy.ndimage
    import skimage.filters

    np.float_ = np.float64  # type: ignore[attr-defined]
    old = skimage.filters.gaussian

    def gaussian(picture: Any, *args: Any, multichannel: bool = False, **how: Any) -> Any:
        return old(picture, *args, channel_axis=-1 if multichannel else None, **how)

    skimage.filters.gaussian = gaussian
    for name in ("wand", "wand.image", "wand.api", "wand.color", "scipy.ndimage.interpolation"):
        sys.modules[name] = mock.MagicMock()
    sys.modules["wand.image"].Image = object
    sys.modules["scipy.ndimage.interpolation"].map_coordinates = scipy.ndimage.map_coordinates
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from imagecorruptions import corruptions as second
        from imagenet_c import corruptions as first
    return {name: getattr(second if name in STAND_IN else first, name) for name in CORRUPTIONS}


class Numbers:
    """Our random numbers in the order in which the peer asks for its own."""

    def __init__(self, name: str, severity: int, size: int, row: int) -> None:
        self.name, self.dice, self.calls = name, Dice(torch.tensor([row]), 0, name), 0
        if name == "glass_blur":
            _, step, rounds = strength(name, severity, (size, size))
            self.steps = iter(())
            lists = []
            for number in range(rounds):
                offsets = (self.dice.uniform(2, size, size, number=number)[0] * 2 * step).long().sub(step).numpy()
                walk = range(size - step, step, -1)
                lists += [offsets[:, h, w] for h in walk for w in walk]
            self.steps = iter(lists)

    def normal(self, size: Any, scale: float = 1.0, loc: float = 0.0) -> Any:
        h, w, c = size
        return loc + scale * self.dice.normal(c, h, w)[0].permute(1, 2, 0).numpy()

    def randint(self, low: int, high: int, size: Any = None) -> Any:
        return next(self.steps)

    def uniform(self, low: float, high: float, size: Any = None) -> Any:
        self.calls += 1
        if self.name == "motion_blur":
            return self.dice.between(low, high, 1)[0, 0].item()
        if self.name == "fog":
            return self.dice.between(low, high, *size, number=self.calls)[0].numpy()
        if self.calls == 1:
            return self.dice.between(low, high, 3, 2)[0].numpy()
        return self.dice.between(low, high, 2, *size, number=1)[0, self.calls - 2].numpy()


def theirs(peer: dict[str, Any], name: str, severity: int, picture: np.ndarray, row: int) -> np.ndarray:
    from PIL import Image

    given = {}
    if name in SAME_NUMBERS:
        numbers = Numbers(name, severity, len(picture), row)
        given = {kind: getattr(numbers, kind) for kind in ("normal", "randint", "uniform")}
    else:
        np.random.seed(row)
    with mock.patch.multiple(np.random, **given) if given else warnings.catch_warnings():
        changed = peer[name](Image.fromarray(picture), severity)
    return np.uint8(np.asarray(changed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    peer = peers(args.peer)
    paths = sorted(path for path in args.pictures.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg", ".png"))
    paths = paths[:: max(1, len(paths) // args.count)][: args.count]
    pixels = np.stack([Preprocessing(size=(224, 224)).pixels(path) for path in paths])
    rows = torch.arange(len(pixels))
    table = []
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2)
            ours = corrupt(tensor, name, severity, rows).permute(0, 2, 3, 1).numpy().astype(float)
            other = np.stack([theirs(peer, name, severity, one, row) for row, one in enumerate(pixels)]).astype(float)
            line: dict[str, Any] = {"corruption": name, "severity": severity}
            if name in CERTAIN or name in SAME_NUMBERS:
                apart = np.abs(ours - other)
                line |= {"mean_difference": round(float(apart.mean()), 3), "largest": int(apart.max())}
                line |= {"within_1": round(float((apart <= 1).mean()), 5)}
            for who, values in (("ours", ours), ("theirs", other)):
                line[f"{who}_mean"] = round(float(values.mean()), 2)
                line[f"{who}_moved"] = round(float(np.abs(values - pixels).mean()), 2)
            table.append(line)
            print(json.dumps(line), flush=True)
    facts = {"date": date.today().isoformat(), "pictures": len(pixels), "size": 224}
    facts |= {"peers": "imagenet-c 0.0.3, imagecorruptions 1.1.2"}
    if args.out:
        args.out.write_text(json.dumps({**facts, "unit": "grey levels of 255", "rows": table}, indent=0) + "\n")


if __name__ == "__main__":
    main()
