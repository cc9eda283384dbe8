"""Little tar shards, and what is in them by tarfile's word."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.samples import SPLITS, UNSAID
from vitrail.data.source import Source


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def extracted(*paths: Path) -> dict[str, bytes]:
    """tarfile's word for what is in the archives."""
    found = {}
    for path in paths:
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                found[member.name] = file.read()
    return found


def labels(source: Source) -> dict[str, str | None]:
    samples = source.samples
    return {
        samples.names[i]: None if samples.labels[i] == UNSAID else samples.classes[samples.labels[i]]
        for i in range(len(samples))
    }


def splits(source: Source) -> dict[str, str | None]:
    said = source.samples.splits
    return {name: None if said[i] == UNSAID else SPLITS[said[i]] for i, name in enumerate(source.samples.names)}


def many(folder: Path, shards: int = 3, each: int = 40, size: int = 3000, seed: int = 0) -> list[Path]:
    rng = np.random.default_rng(seed)
    paths = []
    for s in range(shards):
        members: dict[str, bytes] = {}
        for _ in range(each):
            key = f"{rng.integers(10**9):09}"
            members[f"{key}.jpg"] = rng.bytes(int(rng.integers(size // 2, size)))
            members[f"{key}.cls"] = str(rng.integers(5)).encode()
        paths.append(write_tar(folder / f"train-{s:04}.tar", members))
    return paths


def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    from vitrail.data import shards as module

    calls = []
    real = module.scan
    monkeypatch.setattr(module, "scan", lambda *given: calls.append(1) or real(*given))
    return calls


def read_in_child(source: Source, seed: int, answers) -> None:
    rows = np.random.default_rng(seed).integers(0, len(source), 400).tolist()
    answers.put((rows, [bytes(data) for data in source.reader.read_many(rows)]))
