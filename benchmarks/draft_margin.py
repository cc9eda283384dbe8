"""What decoding JPEGs smaller saves, and how far it moves pixels and logits, for several values of `MARGIN`.

    uv run --all-extras python benchmarks/draft_margin.py PHOTOGRAPHS --model MODEL --out benchmarks/draft_margin.json

PHOTOGRAPHS is a folder of real pictures. They are enlarged to 2000 x 1500 with grain added, since an enlarged picture
alone is smoother than a photograph and would be too easy, and saved in several qualities. Training is a random resized
crop to 224 in one process, beside torchvision's way of doing it, rounds alternating; MODEL sees the pictures whole.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2

import vitrail
from vitrail.pictures import Preprocessing, decode, decode_at, draft, reduction

WIDTH, HEIGHT, GRAIN = 2000, 1500, 4
CROPS = 5  # of each picture
NEVER = math.inf
MARGINS = (NEVER, 2.0, 1.5, 1.0)
FORMS = [(quality, subsampling) for subsampling in ("4:2:0", "4:4:4") for quality in (75, 85, 95)]
RANDOM_CROP = v2.RandomResizedCrop(224)
THEIRS = v2.Compose(
    [
        RANDOM_CROP,
        v2.RandomHorizontalFlip(),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
    ]
)


def photograph(path: Path, seed: int) -> Image.Image:
    picture = decode(path)
    ratio = max(WIDTH / picture.width, HEIGHT / picture.height)
    size = math.ceil(picture.width * ratio), math.ceil(picture.height * ratio)
    large = np.asarray(picture.resize(size, Image.Resampling.LANCZOS).crop((0, 0, WIDTH, HEIGHT)), np.float32)
    grain = np.random.default_rng(seed).normal(0, GRAIN, large.shape)
    return Image.fromarray(np.clip(large + grain, 0, 255).astype(np.uint8))


def save(picture: Image.Image, quality: int, subsampling: str) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, subsampling=subsampling)
    return buffer.getvalue()


def train_theirs(data: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(data)) as picture:
        return THEIRS(picture.convert("RGB"))


def train_ours(data: bytes) -> torch.Tensor:
    box = (0.0, 0.0, 0.0, 0.0)

    def shrink(width: int, height: int) -> float:
        nonlocal box
        params = RANDOM_CROP.make_params([torch.empty(3, height, width, device="meta")])
        box = (params["left"], params["top"], params["left"] + params["width"], params["top"] + params["height"])
        return min(params["width"], params["height"]) / 224

    picture, full = decode_at(data, shrink)
    scale = reduction(picture.size, full)
    inner = tuple(edge / scale for edge in box)
    cropped = picture.resize((224, 224), Image.Resampling.BILINEAR, inner)  # type: ignore[arg-type]
    return torch.from_numpy(np.array(cropped))


def milliseconds(ways: dict[Any, Callable[[], object]], rounds: int) -> dict[Any, float]:
    """Time of the processor, the median over the rounds."""
    times: dict[Any, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begun = time.process_time()
            way()
            times[name].append((time.process_time() - begun) * 1e3)
    return {name: statistics.median(taken) for name, taken in times.items()}


def at(margin: float, way: Callable[[], Any]) -> Any:
    draft.MARGIN, before = margin, draft.MARGIN  # type: ignore[misc]
    try:
        return way()
    finally:
        draft.MARGIN = before  # type: ignore[misc]


def measure_form(pictures: list[Image.Image], quality: int, subsampling: str, rounds: int) -> list[dict[str, Any]]:
    """Pixels and time of each margin, for one way of saving."""
    files = [save(picture, quality, subsampling) for picture in pictures]
    chosen = Preprocessing()

    def fitted() -> list[np.ndarray]:
        return [chosen.pixels(data).astype(int) for data in files]

    def training() -> None:
        torch.manual_seed(0)
        for data in files * CROPS:
            train_ours(data)

    def peer() -> None:
        torch.manual_seed(0)
        for data in files * CROPS:
            train_theirs(data)

    exact = at(NEVER, fitted)
    whole = milliseconds({margin: lambda margin=margin: at(margin, fitted) for margin in MARGINS}, rounds)
    ways: dict[Any, Callable[[], object]] = {m: lambda m=m: at(m, training) for m in MARGINS}
    crops = milliseconds({**ways, "torchvision": peer}, rounds)
    rows = []
    for margin in MARGINS:
        moved = [np.abs(one - other) for one, other in zip(at(margin, fitted), exact, strict=True)]
        rows.append(
            {
                "quality": quality,
                "subsampling": subsampling,
                "margin": None if margin == NEVER else margin,
                "mean_difference": round(float(np.mean(moved)), 3),
                "largest_difference": int(np.max(moved)),
                "preprocessing_ms": round(whole[margin] / len(files), 2),
                "random_crop_ms": round(crops[margin] / len(files) / CROPS, 2),
                "times_torchvision": round(crops["torchvision"] / crops[margin], 2),
            }
        )
    return rows


def measure_model(paths: list[Path], model: str) -> list[dict[str, Any]]:
    """Logits of each margin, beside those of the same picture saved in another quality."""
    classifier = vitrail.load(model)
    ways: dict[Any, tuple[float, int]] = {margin: (margin, 85) for margin in MARGINS}
    ways["quality 90"] = (NEVER, 90)
    pixels: dict[Any, list[np.ndarray]] = {name: [] for name in ways}
    for seed, path in enumerate(paths):
        picture = photograph(path, seed)
        files = {quality: save(picture, quality, "4:2:0") for quality in (85, 90)}
        for name, (margin, quality) in ways.items():
            pixels[name].append(at(margin, lambda data=files[quality]: classifier.preprocessing.pixels(data)))
    found = {name: _logits(classifier, np.stack(stack)) for name, stack in pixels.items()}
    exact = found[NEVER]
    return [
        {
            "way": f"margin {name:g}" if isinstance(name, float) else name,
            "same_top1": round((logits.argmax(1) == exact.argmax(1)).float().mean().item(), 4),
            "mean_logit_difference": round((logits - exact).abs().mean().item(), 4),
            "std_of_logits": round(exact.std().item(), 3),
            "pictures": len(paths),
        }
        for name, logits in found.items()
        if name != NEVER
    ]


def _logits(classifier: vitrail.Classifier, pixels: np.ndarray) -> torch.Tensor:
    values = torch.from_numpy(classifier.preprocessing.normalise(pixels))
    with torch.inference_mode():
        return torch.cat([classifier.model(batch) for batch in values.split(32)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--model", help="also compare the logits of this model")
    parser.add_argument("--count", type=int, default=8, help="pictures for pixels and times")
    parser.add_argument("--model-count", type=int, default=400, help="pictures for the model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    paths = sorted(path for path in options.photographs.rglob("*") if path.is_file())
    some = paths[:: max(1, len(paths) // options.count)][: options.count]
    pictures = [photograph(path, seed) for seed, path in enumerate(some)]
    rows = [row for form in FORMS for row in measure_form(pictures, *form, options.rounds)]
    versions = {"pillow": PIL.__version__, "torch": torch.__version__, "torchvision": torchvision.__version__}
    result: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version(), **versions}
    result |= {"machine": platform.processor() or platform.machine(), "rows": rows}
    if options.model:
        many = paths[:: max(1, len(paths) // options.model_count)][: options.model_count]
        result["logits"] = measure_model(many, options.model)
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
