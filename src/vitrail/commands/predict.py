"""`vitrail predict`: what is on pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import vitrail
from vitrail.commands.printing import Json, print_assumed, print_json
from vitrail.errors import PictureError, VitrailError


def predict(
    model: str,
    sources: Annotated[list[Path], Parameter(negative="")],
    /,
    *,
    top: int = 1,
    img_size: int | None = None,
    batch_size: int = 32,
    device: str | None = None,
    as_json: Json = False,
) -> int:
    """Say what is on pictures: files, or folders with everything in them.

    Example: vitrail predict my-model/ cat.jpg holiday/ --top 3

    Parameters
    ----------
    model
        a model folder, a checkpoint file of any known family, or hf:owner/name
    sources
        pictures, or folders of pictures
    top
        how many of the best classes to show
    img_size
        read the pictures at another size; the positions are resized
    batch_size
        pictures that go through the model at a time
    device
        cpu, cuda, cuda:1, mps; by default the fastest there is
    as_json
        print one JSON object
    """
    if top < 1 or batch_size < 1:
        raise VitrailError("--top and --batch-size must be at least 1")
    import numpy as np

    from vitrail.model.devices import choose_device

    paths = list(_pictures(sources))
    if not paths:
        raise VitrailError(f"there are no pictures in {', '.join(map(str, sources))}")
    classifier = vitrail.load(model, **({} if img_size is None else {"img_size": img_size}))
    classifier.to(choose_device(device))
    if not as_json:
        print_assumed(classifier)
    found: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    for start in range(0, len(paths), batch_size):
        good, pixels = [], []
        for path in paths[start : start + batch_size]:
            try:
                pixels.append(classifier.preprocessing.pixels(path))
                good.append(path)
            except PictureError as error:
                skipped.append({"path": str(path), "reason": str(error)})
                print(f"skipped: {error}", file=sys.stderr)
        if not good:
            continue
        for path, prediction in zip(good, classifier.predict_pixels(np.stack(pixels), top=top), strict=True):
            best = [{"label": label, "score": round(score, 6)} for label, score in prediction.top]
            found.append({"path": str(path), **best[0], "top": best})
            if not as_json:
                print(f"{path}: " + ", ".join(f"{label} {score:.1%}" for label, score in prediction.top), flush=True)
    if as_json:
        print_json({"model": model, "predictions": found, "skipped": skipped})
    elif skipped:
        print(f"{len(found)} predicted, {len(skipped)} skipped", file=sys.stderr)
    if not found:
        raise VitrailError(f"none of {len(paths)} files could be read as a picture")
    return 0


def _pictures(sources: Iterable[Path]) -> Iterable[Path]:
    """Files as they are; of folders, all files whose suffix is a picture's, in order."""
    from vitrail.pictures.sources import SUFFIXES  # Pillow, which `--help` does not wait for

    for source in sources:
        if source.is_dir():
            files = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
            if not files:
                raise VitrailError(
                    f"there are no pictures in {source}: it is searched for {' '.join(sorted(SUFFIXES))}"
                )
            yield from files
        elif source.exists():
            yield source
        else:
            raise VitrailError(f"there is no {source}: check the path")
