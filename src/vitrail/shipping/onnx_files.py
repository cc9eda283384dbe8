"""ONNX files: written from a graph, with what they say of themselves inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from vitrail.errors import VitrailError
from vitrail.shipping.export_graph import quiet
from vitrail.shipping.export_metadata import KEY, Metadata

OPSET = 20
PRODUCTS = ("MatMul", "Gemm")
SCOPES = "pkg.torch.onnx.name_scopes"  # where the exporter says what a node was
LARGEST = 1_800_000_000  # bytes in one file; protobuf's own limit is 2 GiB


def write_onnx(graph: ExportedProgram, about: Metadata, path: Path) -> dict[str, str]:
    """Writes an .onnx file; a very large model has its weights in a second file beside it, named like it with .data.
    Returns, for each product in the file, the node of `graph` that it comes from."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise VitrailError("ONNX files need onnx and onnxscript: pip install 'vitrail[export]'") from error
    takes = "pixels" if about.takes != "picture" else "pictures"
    try:
        with quiet():
            made: Any = torch.onnx.export(
                graph,
                dynamo=True,
                opset_version=OPSET,
                input_names=[takes],
                output_names=list(about.gives),
                verbose=False,
                optimize=True,
            )
    except Exception as error:  # of many kinds; the cause, where it has one, says more
        words = " ".join(str(error.__cause__ or error).split())[:300]
        raise VitrailError(f"the model has a layer that ONNX (opset {OPSET}) cannot say: {words}") from error
    made.model.metadata_props[KEY] = about.to_text()
    weights = sum(tensor.nbytes for tensor in graph.state_dict.values())
    made.save(path, external_data=weights > LARGEST)
    scopes = {node.name: node.metadata_props.get(SCOPES, "") for node in made.model.graph if node.op_type in PRODUCTS}
    return {name: scope.rstrip("]").split(",")[-1].strip(" '") for name, scope in scopes.items()}
