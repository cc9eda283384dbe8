"""`vitrail export`: a model as a file that needs no vitrail."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

import vitrail
from vitrail.commands.data_flags import NO_FLAGS, Data
from vitrail.commands.printing import Json, print_assumed, print_json
from vitrail.commands.progress import shown_stages
from vitrail.errors import VitrailError

Flag = Annotated[bool, Parameter(negative="")]


def export(
    model: str,
    /,
    *,
    out: Path,
    format: Literal["onnx", "openvino", "torch", "triton"] = "onnx",
    fp16: Flag = False,
    bf16: Flag = False,
    int8: Flag = False,
    calibration: Literal["static", "dynamic"] | None = None,
    data: str | None = None,
    max_drop: float | None = None,
    with_preprocessing: Flag = False,
    dynamic_size: Flag = False,
    features: Flag = False,
    compiled: Flag = False,
    img_size: int | None = None,
    overwrite: Flag = False,
    opening: Data = NO_FLAGS,
    as_json: Json = False,
) -> int:
    """Write a model as ONNX, OpenVINO, torch's .pt2 or a Triton model, and prove that it is the same model.

    Example: vitrail export my-model/ --format onnx --out flowers.onnx

    Example: vitrail export my-model/ --format openvino --int8 --data photos/ --max-drop 0.5 --out flowers.xml

    Parameters
    ----------
    model
        a model folder, a checkpoint file of any known family, or hf:owner/name
    out
        a file that ends in .onnx, .xml (openvino) or .pt2 (torch); of triton the model's folder in a repository
    format
        for ONNX Runtime, OpenVINO, torch.export, or NVIDIA Triton
    fp16
        16-bit floats
    bf16
        bfloat16, for openvino and torch
    int8
        8-bit weights and activations, for onnx, openvino and triton; layers that suffer stay in float
    calibration
        of int8: static (ranges of activations from --data) or dynamic (on the way); static where there is data
    data
        pictures to calibrate on, to check on and to score: a folder, a table, a named set, shards
    max_drop
        points of top-1 on --data that may be lost; more is a failure, and nothing is written
    with_preprocessing
        put resize, crop and normalisation into the graph: raw uint8 pixels of any size go in
    dynamic_size
        take pictures of any size that patches fill
    features
        give what the head reads as a second output
    compiled
        of torch: a package that AOTInductor compiles for this machine
    img_size
        read the pictures at another size; the positions are resized
    overwrite
        replace what an earlier export wrote
    as_json
        print one JSON object
    """
    if fp16 + bf16 + int8 > 1:
        raise VitrailError("--fp16, --bf16 and --int8 exclude each other: choose one")
    classifier = vitrail.load(model, **({} if img_size is None else {"img_size": img_size}))
    if not as_json:
        print_assumed(classifier)
    with shown_stages() as progress:
        report = vitrail.export(
            classifier,
            out,
            format=format,
            precision="float16" if fp16 else "bfloat16" if bf16 else "int8" if int8 else "float32",
            calibration=calibration,
            data=data,
            max_drop=max_drop,
            with_preprocessing=with_preprocessing,
            dynamic_size=dynamic_size,
            features=features,
            compiled=compiled,
            overwrite=overwrite,
            progress=progress,
            **opening.given(),
        )
    if as_json:
        print_json(report.to_json())
    else:
        print(report.text())
    return 0
