"""Folders of pictures in which a model of random weights can tell the classes apart by their colours."""

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"blue": (40, 60, 200), "green": (40, 170, 60), "red": (200, 50, 40)}


def make_folder(root: Path, counts: dict[str, int], seed: int = 0) -> Path:
    """`counts` are of `split/class` or `class`."""
    rng = np.random.default_rng(seed)
    for place, count in counts.items():
        (root / place).mkdir(parents=True, exist_ok=True)
        colour = COLOURS[place.rsplit("/", 1)[-1]]
        for number in range(count):
            pixels = np.clip(rng.normal(colour, 50, (20, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / place / f"{number:02d}.png")
    return root
