"""A model as NVIDIA Triton serves it: a folder of a model repository."""

from __future__ import annotations

import json
from pathlib import Path

from vitrail.shipping.export_metadata import Metadata

LARGEST_BATCH = 64
PREFERRED = (8, 16, 32)
DELAY = 1000  # microseconds that a picture waits for others


def write_triton(folder: Path, about: Metadata) -> None:
    """`config.pbtxt` and `labels.txt` beside `1/model.onnx`."""
    height, width = about.preprocessing.size
    channels = about.preprocessing.channels
    if about.takes == "picture":
        taken = ("pictures", "TYPE_UINT8", [-1, -1, channels])
    else:
        taken = ("pixels", "TYPE_FP32", [channels, height, width])
    width_of = {"logits": len(about.classes), "features": -1}
    outputs = [
        _tensor(name, "TYPE_FP32", [width_of[name]], 'label_filename: "labels.txt"' if name == "logits" else "")
        for name in about.gives
    ]
    text = f"""\
# made by vitrail: {about.precision}; classes and preprocessing are in the metadata of model.onnx
name: {json.dumps(folder.name)}
backend: "onnxruntime"
max_batch_size: {LARGEST_BATCH}
input [
{_tensor(*taken)}
]
output [
{f",{chr(10)}".join(outputs)}
]
dynamic_batching {{
  preferred_batch_size: {list(PREFERRED)}
  max_queue_delay_microseconds: {DELAY}
}}
"""
    (folder / "config.pbtxt").write_text(text, encoding="utf-8")
    names = (" ".join(name.split()) for name in about.classes)
    (folder / "labels.txt").write_text("\n".join(names) + "\n", encoding="utf-8")


def _tensor(name: str, kind: str, dims: list[int], more: str = "") -> str:
    lines = [f"    name: {json.dumps(name)}", f"    data_type: {kind}", f"    dims: {dims}"]
    return "\n".join(["  {", *lines, *([f"    {more}"] if more else []), "  }"])
