"""OpenVINO files: an .xml with its .bin, written from a graph, with what they say of themselves inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from vitrail.errors import VitrailError
from vitrail.shipping.export_graph import quiet
from vitrail.shipping.export_metadata import KEY, Metadata
from vitrail.shipping.export_resize import without_antialias
from vitrail.shipping.openvino_engine import openvino


def to_openvino(graph: ExportedProgram, about: Metadata, shape: tuple[int, ...]) -> Any:
    """OpenVINO's model of a graph; `shape` is of its input, with -1 for axes of any length."""
    library = openvino()
    try:
        with quiet():
            model = library.convert_model(without_antialias(graph))
    except Exception as error:  # its errors have no common class of their own
        words = " ".join(str(error).split())[:300]
        raise VitrailError(f"the model has a layer that OpenVINO cannot say: {words}") from error
    model.reshape(library.PartialShape(list(shape)))
    model.inputs[0].get_tensor().set_names({"pictures" if about.takes == "picture" else "pixels"})
    for output, name in zip(model.outputs, about.gives, strict=True):
        output.get_tensor().set_names({name})
    return model


def write_openvino(model: Any, about: Metadata, path: Path, *, half: bool = False) -> None:
    """Writes `path`, an .xml, and the .bin beside it; with `half`, weights are stored in 16 bits."""
    model.set_rt_info(about.to_text(), [KEY])
    openvino().save_model(model, str(path), compress_to_fp16=half)
