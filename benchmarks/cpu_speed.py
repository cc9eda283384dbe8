"""Inference on a CPU: this project's engines beside timm, ONNX Runtime and OpenVINO as their users set them up.

    uv run --all-extras python benchmarks/cpu_speed.py --weights deit_tiny_patch16_224.safetensors --data imagenet/ \
        --out benchmarks/cpu_speed.jsonl

Ti/16 (with the real weights of DeiT-Tiny, if given), S/16 and B/16, batch 1 and 8. All ways of one row of the table
run in turn, round after round, in one process; the figure is the median of a call. Ours starts from bytes, and so
contains the normalisation; the others are given tensors that are normalised already. The accuracy is that of DeiT-Tiny
on --data.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import timm
import torch
from safetensors.torch import load_file

import vitrail
from vitrail.data.opening import open_source
from vitrail.scoring.matching import match_classes
from vitrail.shipping import engines_kept
from vitrail.shipping.engines import choose
from vitrail.shipping.engines_kept import FARTHEST
from vitrail.shipping.export_pixels import CALIBRATED, batches, pixels_of
from vitrail.shipping.quantise import stand_ins

NAMES = {"Ti/16": "deit_tiny_patch16_224", "S/16": "vit_small_patch16_224", "B/16": "vit_base_patch16_224"}
OURS = {"Ti/16": "vit_ti16", "S/16": "vit_s16", "B/16": "vit_b16"}
IMAGENET = {"crop_pct": 0.9, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

Run = Callable[[np.ndarray], np.ndarray]  # uint8 pixels to logits


class Way:
    """One way to compute: what it is called, what it is given, how it is run."""

    def __init__(self, name: str, prepare: Callable[[np.ndarray], Any], run: Callable[[Any], np.ndarray]) -> None:
        self.name, self.prepare, self.run = name, prepare, run
        self.seconds: list[float] = []


def paths(
    model: str, classifier: vitrail.Classifier, peer: torch.nn.Module, given: np.ndarray, compiled: bool
) -> list[Way]:
    """Everything that is compared. `given`: pixels to calibrate on."""
    values = classifier.preprocessing.normalise
    tensor = lambda pixels: torch.from_numpy(values(pixels))  # noqa: E731
    half = lambda pixels: tensor(pixels).bfloat16()  # noqa: E731
    low = timm.create_model(NAMES[model], pretrained=False).eval()
    low.load_state_dict(peer.state_dict())
    low.bfloat16()
    found = [Way("timm float32", tensor, _torch(peer)), Way("timm bfloat16", half, _torch(low))]
    if compiled:
        found += [Way("timm compiled float32", tensor, _torch(torch.compile(peer)))]
        found += [Way("timm compiled bfloat16", half, _torch(torch.compile(low)))]
    found += _onnx(peer, values) + _openvino(peer, values, given)
    for name in ("torch", "openvino", "int8", "merged"):
        engine = choose(classifier, name)
        found.append(Way(f"vitrail {name} ({engine.detail})", lambda pixels: pixels, engine.run))
    return found


def _torch(module: Any) -> Callable[[torch.Tensor], np.ndarray]:
    def run(given: torch.Tensor) -> np.ndarray:
        with torch.inference_mode():
            return module(given).float().numpy()

    return run


def _onnx(peer: torch.nn.Module, values: Run) -> list[Way]:
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder = Path(tempfile.mkdtemp(prefix="cpu-speed-"))
    example = (torch.zeros(2, 3, 224, 224),)
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    made = torch.onnx.export(peer, example, dynamo=True, dynamic_shapes=shapes, opset_version=20, verbose=False)
    made.save(folder / "float.onnx")
    plain = onnx.load(folder / "float.onnx")
    del plain.graph.value_info[:]
    quantize_dynamic(plain, folder / "int8.onnx", weight_type=QuantType.QInt8, per_channel=True)
    found = []
    for name, file in (("ONNX Runtime float32", "float.onnx"), ("ONNX Runtime dynamic int8", "int8.onnx")):
        session = onnxruntime.InferenceSession(str(folder / file), providers=["CPUExecutionProvider"])
        key = session.get_inputs()[0].name
        found.append(Way(name, values, lambda given, s=session, k=key: s.run(None, {k: given})[0]))
    return found


def _openvino(peer: torch.nn.Module, values: Run, given: np.ndarray) -> list[Way]:
    import nncf
    import openvino

    core = openvino.Core()
    model = openvino.convert_model(peer, example_input=torch.zeros(1, 3, 224, 224), input=[-1, 3, 224, 224])
    rows = [values(given[k : k + 1]) for k in range(len(given))]
    with redirect_stdout(io.StringIO()):
        int8 = nncf.quantize(model, nncf.Dataset(rows), subset_size=len(rows), model_type=nncf.ModelType.TRANSFORMER)
    found = []
    for name, one, settings in (
        ("OpenVINO float32", model, {"INFERENCE_PRECISION_HINT": "f32"}),
        ("OpenVINO as it comes", model, {}),  # bfloat16 where the processor has it
        ("OpenVINO int8 (NNCF)", int8, {}),
    ):
        compiled = core.compile_model(one, "CPU", {"PERFORMANCE_HINT": "LATENCY", **settings})
        found.append(Way(name, values, lambda given, c=compiled: c([given])[0]))
    return found


def measure(found: list[Way], pixels: np.ndarray, rounds: int) -> None:
    """Each path in turn, round after round."""
    inputs = [path.prepare(pixels) for path in found]
    for path, given in zip(found, inputs, strict=True):
        path.seconds = []
        for _ in range(2):
            path.run(given)
    for _ in range(rounds):
        for path, given in zip(found, inputs, strict=True):
            start = time.perf_counter()
            path.run(given)
            path.seconds.append(time.perf_counter() - start)


def accuracies(
    found: list[Way], classifier: vitrail.Classifier, data: Path, limit: int | None
) -> dict[str, dict[str, float]]:
    """Top-1 of every path, and how often it says what the first does."""
    subset = open_source(data).all()
    outputs = match_classes(subset.classes, classifier.classes)
    right = dict.fromkeys((path.name for path in found), 0)
    same = dict.fromkeys(right, 0)
    count = 0
    for pixels, labels in batches(subset, classifier.preprocessing):
        first = None
        for path in found:
            best = path.run(path.prepare(pixels)).argmax(axis=1)
            first = best if first is None else first
            right[path.name] += int((best == outputs[labels]).sum())
            same[path.name] += int((best == first).sum())
        count += len(labels)
        if limit is not None and count >= limit:
            break
    return {
        name: {
            "top1": round(100 * right[name] / count, 2),
            "agreement": round(100 * same[name] / count, 2),
            "of": count,
        }
        for name in right
    }


def build(model: str, weights: Path | None) -> tuple[vitrail.Classifier, torch.nn.Module]:
    torch.manual_seed(0)
    peer = timm.create_model(NAMES[model], pretrained=False).eval()
    if model == "Ti/16" and weights is not None:
        peer.load_state_dict(load_file(weights))
        return vitrail.load(weights, preprocessing=IMAGENET), peer
    ours = vitrail.create(OURS[model]).eval()
    ours.load_state_dict(peer.state_dict())
    return vitrail.Classifier(ours), peer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=list(NAMES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--limit", type=int, help="pictures of --data that are scored")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="cpu-speed-cache-")
    machine = {"processor": _processor(), "threads": torch.get_num_threads(), "date": time.strftime("%Y-%m-%d")}
    for model in asked.models:
        classifier, peer = build(model, asked.weights)
        # fresh weights are not trained to bear anything; what they cost in time is that of trained ones
        engines_kept.FARTHEST = FARTHEST if model == "Ti/16" and asked.weights else math.inf
        preprocessing = classifier.preprocessing
        source = None if asked.data is None else open_source(asked.data).all()
        given = stand_ins(preprocessing, 64) if source is None else pixels_of(source, preprocessing, CALIBRATED)
        found = paths(model, classifier, peer, given, not asked.no_compile)
        scores: dict[str, dict[str, float]] = {}
        if model == "Ti/16" and asked.data is not None and asked.weights is not None:
            scores = accuracies(found, classifier, asked.data, asked.limit)
        for batch in asked.batches:
            measure(found, given[:batch], asked.rounds)
            peers = [path for path in found if not path.name.startswith("vitrail")]
            quickest = min(float(np.median(path.seconds)) for path in peers)
            for path in found:
                middle = float(np.median(path.seconds))
                row = {"model": model, "batch": batch, "path": path.name, "ms": round(1e3 * middle, 2)}
                row |= {"least_ms": round(1e3 * min(path.seconds), 2), "pictures_per_second": round(batch / middle, 1)}
                row |= {"of_best_peer": round(quickest / middle, 2), **scores.get(path.name, {}), **machine}
                print(json.dumps(row), flush=True)
                if asked.out is not None:
                    with asked.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
        torch.compiler.reset()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
