"""Which pictures an export is checked, calibrated and scored on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.loading import EvaluationLoader
from vitrail.data.opening import open_source
from vitrail.data.source import Source, Subset
from vitrail.errors import DataError, PictureError
from vitrail.pictures import Preprocessing
from vitrail.pictures.decode import as_picture

CHECKED = 128  # pictures
CALIBRATED = 300
BATCH = 16


@dataclass(frozen=True)
class Pictures:
    """A part of some data to calibrate on, and a part to score: the same where the data has one part."""

    calibration: Subset
    scored: Subset

    @classmethod
    def open(cls, data: Source | str | os.PathLike[str], **options: Any) -> Pictures:
        source = data if isinstance(data, Source) else open_source(data, **options)
        train, held = source.said("train"), source.said("val")
        held = held if len(held) else source.said("test")
        found = cls(train if len(train) else source.all(), held if len(held) else source.all())
        if not len(found.calibration) or not len(found.scored):
            raise DataError(f"there are no pictures in {source.name}")
        return found


def some(subset: Subset, count: int) -> Subset:
    """So many, evenly over the whole; all where there are no more."""
    places = np.unique(np.linspace(0, len(subset) - 1, min(count, len(subset))).round().astype(np.int64))
    return Subset(subset.source, subset.name, subset.rows[places])


def batches(subset: Subset, preprocessing: Preprocessing) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Pixels, as `Preprocessing.pixels` makes them, with labels; what cannot be read is left out."""
    loader = EvaluationLoader(subset, preprocessing, batch_size=BATCH, workers=0)
    for batch in loader:
        assert batch.valid is not None
        good = batch.valid.numpy()
        if good.any():
            pixels = np.ascontiguousarray(batch.pixels.permute(0, 2, 3, 1).numpy()[good])
            yield pixels, batch.labels.numpy()[good]


def pixels_of(subset: Subset, preprocessing: Preprocessing, count: int) -> NDArray[np.uint8]:
    """So many pictures of a subset, ready for the model."""
    found = [pixels for pixels, _ in batches(some(subset, count), preprocessing)]
    if not found:
        raise DataError(f"none of the pictures of {subset.source.name} can be read")
    return np.concatenate(found)


def raw_pictures(subset: Subset, channels: int, count: int) -> Iterator[NDArray[np.uint8]]:
    """Pictures as they were decoded, each of its own size: (height, width, channels)."""
    chosen = some(subset, count)
    for k in range(len(chosen)):
        try:
            picture = as_picture(chosen.read(k))
        except PictureError:
            continue
        picture = picture if channels == 3 else picture.convert("L")
        yield np.array(picture).reshape(picture.height, picture.width, channels)
