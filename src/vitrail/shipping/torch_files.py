"""torch's own files: `.pt2`, a graph of torch.export, or a package that AOTInductor compiled."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from vitrail.errors import VitrailError
from vitrail.shipping.engines import Bytes, Engine, Floats, check_pixels, named_outputs
from vitrail.shipping.export_graph import quiet
from vitrail.shipping.export_metadata import KEY, Metadata

EXTRA = f"{KEY}.json"


def write_pt2(graph: ExportedProgram, about: Metadata, path: Path) -> None:
    """Writes a .pt2 that `torch.export.load` reads."""
    with quiet():
        torch.export.save(graph, path, extra_files={EXTRA: about.to_text()})


def write_compiled(graph: ExportedProgram, about: Metadata, path: Path) -> None:
    """Writes a .pt2 with machine code for this kind of machine, which `torch._inductor.aoti_load_package` reads."""
    settings = {"aot_inductor.metadata": {KEY: about.to_text()}}
    try:
        with quiet(), torch.no_grad():
            torch._inductor.aoti_compile_and_package(graph, package_path=str(path), inductor_configs=settings)
    except Exception as error:  # a compiler that is missing or old says so in many ways
        words = " ".join(str(error).split())[:300]
        raise VitrailError(f"AOTInductor cannot compile here: {words}; export without --compiled") from error


def open_pt2(path: Path) -> tuple[Callable[..., Any], Metadata]:
    """The function in a .pt2 of either kind, and what the file says of itself."""
    try:
        with quiet():
            if _is_compiled(path):
                package: Any = torch._inductor.aoti_load_package(str(path))
                return package, Metadata.from_text(package.get_metadata().get(KEY), path)
            extra: dict[str, Any] = {EXTRA: ""}
            graph = torch.export.load(path, extra_files=extra)
            return graph.module(), Metadata.from_text(extra[EXTRA], path)
    except VitrailError:
        raise
    except Exception as error:  # a damaged archive can raise nearly anything
        raise VitrailError(f"torch cannot open {path}: {' '.join(str(error).split())[:300]}") from error


def _is_compiled(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any("/data/aotinductor/" in f"/{name}" for name in archive.namelist())


class Pt2Engine(Engine):
    """An exported .pt2 in torch, on the CPU."""

    name = "torch"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._call, self.about = open_pt2(path)
        self.about.refuse_pictures(path)
        self.classes, self.preprocessing = list(self.about.classes), self.about.preprocessing
        self.detail = f"torch {torch.__version__}, {self.about.precision}, on {torch.get_num_threads()} threads"

    def both(self, pixels: Bytes) -> tuple[Floats, Floats]:
        check_pixels(pixels, self.preprocessing)
        given = pixels if self.about.takes == "bytes" else self.preprocessing.normalise(pixels)
        with torch.inference_mode():
            made = self._call(torch.from_numpy(given))
        values = [value.float().numpy() for value in (made if isinstance(made, tuple | list) else (made,))]
        return named_outputs(self.about.gives, values, self.path)

    def close(self) -> None:
        del self._call
