"""Says what is on pictures, with an exported model; it needs NumPy, Pillow and the runtime of the file, and no more.

python run.py picture.jpg …                    with the model beside this script
python run.py --model x.onnx --top 5 a.jpg     with that one; --json for programs
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

Arrays = Callable[[Any], Any]
SUFFIXES = (".onnx", ".xml", ".pt2")


def load(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The model as a function of arrays, and what the file says of itself: classes, preprocessing, what it takes."""
    if path.suffix == ".onnx":
        import onnxruntime  # type: ignore[import-untyped]

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        about = json.loads(session.get_modelmeta().custom_metadata_map["vitrail"])
        return lambda given: session.run(["logits"], {name: given})[0], about
    if path.suffix == ".xml":
        import openvino  # type: ignore[import-untyped]

        core = openvino.Core()
        model = core.read_model(path)
        about = json.loads(model.get_rt_info(["vitrail"]).value)
        hint = "f32" if about["precision"] in ("float32", "float16") else "bf16"
        ready = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint})
        return lambda given: ready([given])["logits"], about
    import torch

    extra: dict[str, Any] = {"vitrail.json": ""}
    with zipfile.ZipFile(path) as archive:
        compiled = any("/data/aotinductor/" in f"/{name}" for name in archive.namelist())
    if compiled:
        import torch._inductor

        module: Any = torch._inductor.aoti_load_package(str(path))
        extra["vitrail.json"] = module.get_metadata()["vitrail"]
    else:
        module = torch.export.load(path, extra_files=extra).module()

    def call(given: Any) -> Any:
        made = module(torch.from_numpy(given))
        return (made if isinstance(made, torch.Tensor) else made[0]).detach().numpy()

    return call, json.loads(extra["vitrail.json"])


def read(path: str, about: dict[str, Any]) -> Any:
    """A picture as the model takes it, with one row for the batch."""
    asked = about["preprocessing"]
    raw = about["takes"] == "picture"
    with Image.open(path) as stored:
        turn = stored.getexif().get(0x0112, 1)
        full = stored.size[::-1] if turn >= 5 else stored.size
        scale = 1 if raw else shrink_jpeg(stored, full, turn, asked)
        picture = as_rgb(ImageOps.exif_transpose(stored))
    picture = picture if len(asked["mean"]) == 3 else picture.convert("L")
    if raw:
        return np.array(picture).reshape(1, picture.height, picture.width, -1)
    pixels = np.array(fit(picture, full, scale, asked)).reshape(*asked["size"], -1)
    mean, std = (np.array(asked[name], np.float32).reshape(-1, 1, 1) for name in ("mean", "std"))
    values = np.ascontiguousarray(pixels.transpose(2, 0, 1)).astype(np.float32)
    return (((values / np.float32(255)) - mean) / std)[None]


def shrink_jpeg(stored: Any, full: tuple[int, int], turn: int, asked: dict[str, Any]) -> int:
    """Reads a JPEG at a half, a quarter or an eighth where it will be made much smaller anyway."""
    if stored.format not in ("JPEG", "MPO") or asked["interpolation"] == "nearest":
        return 1
    width, height = resized(full, asked)
    shrink = min(full[0] / width, full[1] / height)
    for scale in (8, 4, 2):
        across = turn in (2, 3, 7, 8) and stored.width % scale  # a partial last pixel would come first
        down = turn in (3, 4, 6, 7) and stored.height % scale
        if scale <= shrink / 1.5 and scale <= min(stored.size) and not across and not down:
            stored.draft(None, (stored.width // scale, stored.height // scale))
            return scale
    return 1


def as_rgb(picture: Any) -> Any:
    """Alpha over white, 16-bit grey to 8 bits."""
    if picture.mode.startswith("I;16"):
        picture = Image.fromarray(((np.array(picture).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if picture.has_transparency_data:
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
    return picture.convert("RGB")


def resized(full: tuple[int, int], asked: dict[str, Any]) -> tuple[int, int]:
    """The (width, height) that a picture is resized to before it is cropped or padded."""
    width, height = full
    large_h, large_w = (math.floor(side / asked["crop_pct"]) for side in asked["size"])
    if asked["fit"] == "squash":
        return large_w, large_h
    if asked["fit"] == "crop" and large_h == large_w:
        other = int(large_h * max(full) / min(full))
        return (other, large_h) if height <= width else (large_h, other)
    ratios = height / large_h, width / large_w
    ratio = max(ratios) if asked["fit"] == "pad" else min(ratios)
    return max(1, round(width / ratio)), max(1, round(height / ratio))


def fit(picture: Any, full: tuple[int, int], scale: int, asked: dict[str, Any]) -> Any:
    """The picture resized, and cropped or padded to the size of the model."""
    width, height = resized(full, asked)
    target_h, target_w = asked["size"]
    crop_h, crop_w = min(height, target_h), min(width, target_w)
    box = (0, 0, full[0] / scale, full[1] / scale)
    picture = picture.resize((width, height), Image.Resampling[asked["interpolation"].upper()], box)
    left, top = round((width - crop_w) / 2), round((height - crop_h) / 2)
    picture = picture.crop((left, top, left + crop_w, top + crop_h))
    if (crop_w, crop_h) == (target_w, target_h):
        return picture
    colour = tuple(min(255, max(0, round(255 * value))) for value in asked["mean"])
    page = Image.new(picture.mode, (target_w, target_h), colour)
    page.paste(picture, ((target_w - crop_w) // 2, (target_h - crop_h) // 2))
    return page


def main() -> int:
    """1 where a picture could not be read; the others are answered."""
    beside = sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in SUFFIXES)
    parser = argparse.ArgumentParser(description="Says what is on pictures.")
    parser.add_argument("pictures", nargs="+")
    parser.add_argument("--model", type=Path, default=beside[0] if len(beside) == 1 else None)
    parser.add_argument("--top", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.model is None:
        parser.error(f"say --model: beside this script are {', '.join(path.name for path in beside) or 'none'}")
    try:
        call, about = load(asked.model)
    except Exception as error:  # a runtime that is missing, a file that is not there or is damaged: each has its own
        print(f"{asked.model} cannot be opened: {_brief(error)}", file=sys.stderr)
        return 1
    failed = 0
    for path in asked.pictures:
        try:
            picture = read(path, about)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            print(f"{path} cannot be read: {_brief(error)}", file=sys.stderr)
            failed = 1
            continue
        logits = np.asarray(call(picture), np.float64)[0]
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
        best = np.argsort(-scores, kind="stable")[: asked.top]
        found = [{"label": about["classes"][k], "score": float(scores[k]), "logit": float(logits[k])} for k in best]
        words = ", ".join(f"{one['label']} {one['score']:.1%}" for one in found)
        print(json.dumps({"path": path, "top": found}) if asked.json else f"{path}: {words}", flush=True)
    return failed


def _brief(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split())[:300]


if __name__ == "__main__":
    sys.exit(main())
