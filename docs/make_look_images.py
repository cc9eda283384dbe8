"""Draws the pictures of docs/look.md.

uv run --all-extras python docs/make_look_images.py deit_tiny_patch16_224.safetensors chelsea.png coffee.png imagenet/

The two photographs come with scikit-image, in `skimage/data`, and may be used by anyone (CC0): a cat by Stefan van der
Walt, a cup of coffee by Rachel Michetti. Of the folder only mean distances are drawn.
"""

import sys
from pathlib import Path

from PIL import Image

import vitrail
from vitrail import figures
from vitrail.figures.shown import Drawn
from vitrail.pages.plots import drawing, save_png

IMAGES = Path(__file__).parent / "images"
LARGEST = 145_000  # bytes


def put(name: str, drawn: Drawn, width: int = 900) -> None:
    """The figure as a file that is small: fewer pixels and, of a PNG file, as many colours as there is room for."""
    path = IMAGES / f"look-{name}"
    with drawing():
        save_png(drawn.figure, path.with_suffix(".png"))
    with Image.open(path.with_suffix(".png")) as picture:
        small = picture.convert("RGB")
    small.thumbnail((width, 2 * width), Image.Resampling.LANCZOS)
    if path.suffix == ".jpg":  # photographs
        path.with_suffix(".png").unlink()
        small.save(path, quality=88, optimize=True)
    else:
        for colours in (256, 192, 128, 96):
            small.quantize(colours, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
            if path.stat().st_size <= LARGEST:
                break
    print(path.name, small.size, path.stat().st_size)


def main(weights: str, cat: str, cup: str, folder: str, *names: str) -> None:
    model = vitrail.load(weights)
    files = sorted(Path(folder).glob("*/*"))
    figures_ = {
        "attention.jpg": (lambda: figures.attention(model, cat), 760),
        "heads.png": (lambda: figures.heads(model, cat), 900),
        "explanation.jpg": (lambda: figures.explanation(model, cup), 900),
        "deletion.png": (lambda: figures.deletion(model, cup), 900),
        "tokens.jpg": (lambda: figures.tokens(model, cat), 900),
        "filters.png": (lambda: figures.filters(model), 640),
        "positions.png": (lambda: figures.positions(model), 560),
        "distances.png": (lambda: figures.distances(model, files[:: len(files) // 128][:128]), 700),
    }
    for name in names or figures_:
        draw, width = figures_[name]
        put(name, draw(), width)


if __name__ == "__main__":
    main(*sys.argv[1:])
