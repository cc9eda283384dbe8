"""Draws the pictures of docs/look.md.

uv run --all-extras python docs/make_look_images.py deit_tiny_patch16_224.safetensors imagenet-sample/
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
DOG, BIRD = "n02099601", "n01833805"  # golden retriever, hummingbird


def put(name: str, drawn: Drawn, width: int = 900) -> None:
    """The figure as a file that is small: fewer pixels, and as many colours as there is room for."""
    path = IMAGES / f"look-{name}.png"
    with drawing():
        save_png(drawn.figure, path)
    with Image.open(path) as picture:
        small = picture.convert("RGB")
    small.thumbnail((width, 2 * width), Image.Resampling.LANCZOS)
    for colours in (256, 192, 128, 96, 64, 48):
        small.quantize(colours, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= LARGEST:
            break
    print(path.name, small.size, colours, path.stat().st_size)


def main(weights: str, folder: Path) -> None:
    model = vitrail.load(weights)
    dog, bird = (next((folder / name).iterdir()) for name in (DOG, BIRD))
    files = sorted(folder.glob("*/*"))
    put("attention", figures.attention(model, dog), 760)
    put("heads", figures.heads(model, dog))
    put("explanation", figures.explanation(model, bird))
    put("deletion", figures.deletion(model, bird))
    put("tokens", figures.tokens(model, dog))
    put("filters", figures.filters(model), 640)
    put("positions", figures.positions(model), 640)
    put("distances", figures.distances(model, files[:: len(files) // 128][:128]), 700)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
