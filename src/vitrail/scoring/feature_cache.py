"""Features on the disk, under a name that says what they are of: whole or absent, and not more than a few gigabytes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.classifier import Classifier
from vitrail.data.batch import Bad
from vitrail.data.source import Subset
from vitrail.errors import VitrailError
from vitrail.whole import written_whole

FORMAT = 1  # part of the name: raised when the same pictures would give other features
LARGEST = 10 * 2**30  # bytes of all that is kept; what was not used for longest goes first

Stored = tuple[NDArray[np.float32], NDArray[np.bool_], tuple[Bad, ...]]


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail" / "features"


def mark_of(subset: Subset, classifier: Classifier, about: Mapping[str, Any]) -> str | None:
    """A name for just these features: it changes with the weights, the configuration, the preprocessing, the pictures
    and their order. None where the source cannot tell whether a picture changed."""
    pictures = _fingerprint(subset)
    if pictures is None:
        return None
    config = {key: value for key, value in classifier.model.config.to_json().items() if key != "num_classes"}
    plain = {"format": FORMAT, "config": config, "preprocessing": classifier.preprocessing.to_json(), **about}
    digest = hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16)
    for name, tensor in classifier.model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()))
    names = subset.source.samples.names.take(subset.rows)
    digest.update(names.ends.tobytes())
    digest.update(names.block.tobytes())
    digest.update(pictures)
    return digest.hexdigest()


def _fingerprint(subset: Subset) -> bytes | None:
    reader: Any = subset.source.reader
    if hasattr(reader, "fingerprint"):
        stamp: bytes = reader.fingerprint(subset.rows)
        return stamp
    if isinstance(array := getattr(reader, "array", None), np.ndarray):  # pixels in memory
        digest = hashlib.blake2b(f"{array.dtype} {array.shape};".encode())
        for some in np.array_split(subset.rows, 1 + len(subset) // 4096):
            digest.update(array[some].tobytes())
        return digest.digest()
    if parts := getattr(reader, "parts", ()):  # the library that reads the Hub's sets names their contents
        marks = [str(getattr(part, "_fingerprint", "")) for part in parts]
        return None if "" in marks else json.dumps([marks, subset.rows.tolist()]).encode()
    return None


class FeatureStore:
    """A folder with a folder for each set of features."""

    def __init__(self, folder: Path | None = None, *, largest: int = LARGEST) -> None:
        self.folder = folder or default_folder()
        self.largest = largest

    def read(self, mark: str) -> Stored | None:
        """What was kept, or None; what cannot be read is as good as absent."""
        place = self.folder / mark
        try:
            vectors = np.load(place / "vectors.npy", mmap_mode="c")  # torch wants it writable; the file stays as it is
            valid = np.load(place / "valid.npy")
            bad = tuple(Bad(*one) for one in json.loads((place / "bad.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, EOFError):
            return None
        if vectors.ndim != 2 or vectors.dtype != np.float32 or valid.shape != vectors.shape[:1]:
            return None
        with suppress(OSError):
            os.utime(place)  # used now
        return vectors, valid, bad

    def write(self, mark: str, vectors: NDArray[np.float32], valid: NDArray[np.bool_], bad: Sequence[Bad]) -> None:
        """Keeps them, if there is room: a full or read-only disk costs only time."""
        if vectors.nbytes > self.largest:
            return
        try:
            with written_whole(self.folder / mark, overwrite=True) as new:
                new.mkdir()
                np.save(new / "vectors.npy", vectors)
                np.save(new / "valid.npy", valid)
                (new / "bad.json").write_text(json.dumps([list(one) for one in bad]), encoding="utf-8")
        except (OSError, VitrailError):
            return
        self._make_room(mark)

    def _make_room(self, newest: str) -> None:
        """Removes what was used longest ago, until all is small enough. It is renamed first: a folder that is half
        removed must not look whole."""
        others = [place for place in self.folder.iterdir() if place.name != newest and place.name[0] != "."]
        kept = [(_last_used(place), place, _bytes_in(place)) for place in others]
        total = sum(size for _, _, size in kept) + _bytes_in(self.folder / newest)
        for _, place, size in sorted(kept):
            if total <= self.largest:
                return
            gone = place.with_name(f".{place.name}.gone")
            with suppress(OSError):
                place.rename(gone)
                total -= size
            shutil.rmtree(gone, ignore_errors=True)


def _last_used(place: Path) -> float:
    try:
        return place.stat().st_mtime
    except OSError:  # another process has just removed it
        return 0.0


def _bytes_in(folder: Path) -> int:
    total = 0
    with suppress(OSError):
        for path in folder.rglob("*"):
            total += path.stat().st_size
    return total
