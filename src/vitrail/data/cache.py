"""A subset decoded once: uint8 pixels in one file that is mapped into memory, for sets that fit there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.batch import Bad
from vitrail.data.loading import EvaluationLoader
from vitrail.data.source import Subset
from vitrail.errors import DataError, PictureError
from vitrail.pictures import Preprocessing, as_picture
from vitrail.whole import written_whole

FORMAT = 1  # part of the key: raised when the same pictures would be stored otherwise

Progress = Callable[[int, int], None]  # pictures done, of how many


@dataclass(frozen=True)
class Decoded:
    """Pixels of every sample of a subset."""

    pixels: NDArray[np.uint8]  # (n, height, width, channels)
    full: NDArray[np.int32]  # (n, 2): the width and height that the picture had
    valid: NDArray[np.bool_]  # (n,): False where it could not be read
    bad: tuple[Bad, ...] = ()


def decode_all(
    subset: Subset,
    preprocessing: Preprocessing,
    *,
    folder: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Decoded:
    """The pixels that `preprocessing` makes of every sample.

    They are kept in `folder`, by default in the user's cache, under a name that changes with the pictures and with the
    preprocessing, and found there the next time. Sources that cannot tell whether a picture changed are not kept.
    """
    held = _held(subset, preprocessing)
    if held is not None:
        return held
    mark = _mark(subset, preprocessing)
    if mark is None:
        return _decode(subset, preprocessing, None, workers, progress)
    place = (folder or default_folder()) / mark
    if not place.exists():
        with written_whole(place) as new:
            new.mkdir()
            _decode(subset, preprocessing, new, workers, progress)
    return _read(place)


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail" / "pixels"


def sampled_sizes(subset: Subset) -> frozenset[tuple[int, int]]:
    """The sizes, (height, width), of some of the pictures."""
    own = set()
    for sample in np.linspace(0, len(subset) - 1, min(16, len(subset))).astype(int):
        try:
            width, height = as_picture(subset.read(int(sample))).size
        except PictureError:
            continue
        own.add((height, width))
    return frozenset(own)


def stored_size(own: frozenset[tuple[int, int]], img_size: tuple[int, int]) -> tuple[int, int]:
    """The (height, width) at which training pictures are worth storing: their own if they are all small and of one
    size, otherwise a quarter more than the model reads."""
    if len(own) == 1:
        ((height, width),) = own
        if height <= 2 * img_size[0] and width <= 2 * img_size[1]:
            return height, width
    return round(1.25 * img_size[0]), round(1.25 * img_size[1])


def _held(subset: Subset, preprocessing: Preprocessing) -> Decoded | None:
    """Pixels that the source has in memory already, just as they are wanted."""
    array = getattr(subset.source.reader, "array", None)
    if array is None or array.dtype != np.uint8 or array.ndim not in (3, 4):
        return None
    array = array[..., None] if array.ndim == 3 else array
    unchanged = preprocessing.crop_pct == 1 or preprocessing.fit == "pad"
    if array.shape[1:3] != preprocessing.size or not unchanged or array.shape[3] not in (1, preprocessing.channels):
        return None
    pixels = array[subset.rows]
    if pixels.shape[3] != preprocessing.channels:
        pixels = np.repeat(pixels, preprocessing.channels, axis=3)
    height, width = preprocessing.size
    full = np.broadcast_to(np.array([width, height], np.int32), (len(pixels), 2))
    return Decoded(pixels, full, np.ones(len(pixels), bool))


def _mark(subset: Subset, preprocessing: Preprocessing) -> str | None:
    """A name for just these pixels."""
    fingerprint = getattr(subset.source.reader, "fingerprint", None)
    if fingerprint is None:
        return None
    about = {"format": FORMAT, "preprocessing": preprocessing.to_json(), "count": len(subset)}
    digest = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
    digest.update(subset.source.samples.names.take(subset.rows).block.tobytes())
    digest.update(fingerprint(subset.rows))
    return digest.hexdigest()


def _decode(
    subset: Subset, preprocessing: Preprocessing, folder: Path | None, workers: int | None, progress: Progress | None
) -> Decoded:
    n = len(subset)
    shape = (n, *preprocessing.size, preprocessing.channels)
    pixels: Any = (
        np.empty(shape, np.uint8)
        if folder is None
        else np.lib.format.open_memmap(folder / "pixels.npy", "w+", np.uint8, shape)
    )
    full, valid, bad = np.zeros((n, 2), np.int32), np.zeros(n, bool), []
    loader = EvaluationLoader(subset, preprocessing, batch_size=256, workers=workers)
    done = 0
    for batch in loader:
        at = batch.samples.numpy()
        assert batch.valid is not None
        assert batch.full is not None
        pixels[at], full[at], valid[at] = batch.pixels.permute(0, 2, 3, 1), batch.full, batch.valid
        bad += batch.bad
        done += len(at)
        if progress is not None:
            progress(done, n)
    if not valid.any():
        reason = f", the first because: {bad[0].reason}" if bad else ""
        raise DataError(f"none of the {n} pictures of {subset.source.name} can be read{reason}")
    if folder is not None:
        pixels.flush()
        np.save(folder / "full.npy", full)
        np.save(folder / "valid.npy", valid)
        (folder / "bad.json").write_text(json.dumps([list(one) for one in bad]), encoding="utf-8")
    return Decoded(pixels, full, valid, tuple(bad))


def _read(place: Path) -> Decoded:
    pixels = np.load(place / "pixels.npy", mmap_mode="c")  # torch wants it writable; the file stays as it is
    bad = tuple(Bad(*one) for one in json.loads((place / "bad.json").read_text(encoding="utf-8")))
    return Decoded(pixels, np.load(place / "full.npy"), np.load(place / "valid.npy"), bad)
