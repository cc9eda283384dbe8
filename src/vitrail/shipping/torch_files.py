"""torch's own files: `.pt2`, a graph of torch.export, or a compiled package of AOTInductor."""

from __future__ import annotations

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


class Pt2Engine(Engine):
    """An exported .pt2 in torch, on the CPU."""

    name = "torch"

    def __init__(self, path: Path) -> None:
        self.path = path
        extra: dict[str, Any] = {EXTRA: ""}
        try:
            with quiet():
                graph = torch.export.load(path, extra_files=extra)
        except Exception as error:  # a damaged archive can raise nearly anything
            raise VitrailError(f"torch cannot open {path}: {' '.join(str(error).split())[:300]}") from error
        self.about = Metadata.from_text(extra[EXTRA], path)
        self.about.refuse_pictures(path)
        self.classes, self.preprocessing = list(self.about.classes), self.about.preprocessing
        self._module = graph.module()
        self.detail = f"torch {torch.__version__}, {self.about.precision}, on {torch.get_num_threads()} threads"

    def both(self, pixels: Bytes) -> tuple[Floats, Floats]:
        check_pixels(pixels, self.preprocessing)
        given = pixels if self.about.takes == "bytes" else self.preprocessing.normalise(pixels)
        with torch.inference_mode():
            made = self._module(torch.from_numpy(given))
        values = [value.float().numpy() for value in (made if isinstance(made, tuple | list) else (made,))]
        return named_outputs(self.about.gives, values, self.path)

    def close(self) -> None:
        del self._module
