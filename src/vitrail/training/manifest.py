"""What a checkpoint's folder holds, and whether it is whole: `manifest.json` has the length and hash of each file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from vitrail.errors import WeightsError
from vitrail.weights.files import read_json

FORMAT, VERSION = "vitrail checkpoint", 1
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "state.safetensors"


@dataclass(frozen=True)
class FileEntry:
    """What the manifest says of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Found:
    """A checkpoint on the disk. What it holds is read when it is asked for."""

    folder: Path
    step: int

    @cached_property
    def plain(self) -> dict[str, Any]:
        """All of the state that is no tensor."""
        return read_json(self.folder / STATE)

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The files with tensors."""
        return tuple(self.folder / name for name in sorted(_entries(self.folder)) if name.endswith(".safetensors"))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors."""
        names: set[str] = set()
        for path in self.files:
            try:
                with safe_open(path, framework="pt") as file:
                    names.update(file.keys())
            except (SafetensorError, OSError) as error:
                raise WeightsError(f"{path} is not a readable safetensors file: {error}") from error
        return tuple(sorted(names))


def name_of(step: int) -> str:
    """The name of a checkpoint's folder."""
    return f"step-{step:08}"


def list_checkpoints(folder: Path) -> Iterator[Found]:
    """Whatever has the name of a checkpoint, whole or not, the newest first."""
    numbered = [(int(match[1]), path) for path in folder.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    for step, path in sorted(numbered, reverse=True):
        if path.is_dir():
            yield Found(path, step)


_NAME = re.compile(r"step-(\d{8,})")


def find_fault(folder: Path, *, deep: bool = True) -> str | None:
    """Why a checkpoint is not whole; None where it is. Without `deep`, contents are not hashed."""
    try:
        entries = _entries(folder)
        strangers = {path.name for path in folder.glob("*.safetensors")} - entries.keys()
        if strangers:
            return f"{min(strangers)} does not belong to it"
        for name, entry in entries.items():
            length = (folder / name).stat().st_size
            if length != entry.bytes:
                return f"{name} has {length:,} bytes instead of {entry.bytes:,}"
        for name, entry in entries.items() if deep else ():
            with (folder / name).open("rb", buffering=0) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, WeightsError) as error:
        return str(error)
    return None


def _entries(folder: Path) -> dict[str, FileEntry]:
    """The files that the manifest names."""
    path = folder / MANIFEST
    if not path.exists():
        raise WeightsError(f"{MANIFEST} is missing")
    manifest = read_json(path)
    if (manifest.get("format"), manifest.get("version")) != (FORMAT, VERSION):
        raise WeightsError(f"{path} is no manifest of version {VERSION}")
    if name_of(manifest["step"] if isinstance(manifest.get("step"), int) else -1) != folder.name:
        raise WeightsError(f"{path} is of another step")
    try:
        entries = {name: FileEntry(**entry) for name, entry in manifest["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path} is damaged: {json.dumps(str(error))}") from error
    if STATE not in entries or any(Path(name).name != name for name in entries):
        raise WeightsError(f"{path} is damaged: it does not name the files of a checkpoint")
    return entries
