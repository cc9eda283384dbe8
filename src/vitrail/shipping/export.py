"""`vitrail.export`: a model as a file that needs neither vitrail nor, mostly, torch; checked before it has its name."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitrail.classifier import Classifier, placed
from vitrail.data.source import Source
from vitrail.errors import VitrailError
from vitrail.shipping.export_build import Builder
from vitrail.shipping.export_pixels import Pictures
from vitrail.shipping.export_plan import Calibration, Format, Plan, Precision
from vitrail.shipping.export_report import ExportReport
from vitrail.shipping.export_score import score
from vitrail.whole import flush

Progress = Callable[[str, int, int], None]


def export(
    model: Classifier | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: Format = "onnx",
    precision: Precision = "float32",
    calibration: Calibration | None = None,
    data: Source | str | os.PathLike[str] | None = None,
    max_drop: float | None = None,
    with_preprocessing: bool = False,
    dynamic_size: bool = False,
    features: bool = False,
    compiled: bool = False,
    img_size: int | tuple[int, int] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> ExportReport:
    """Writes a model as ONNX, OpenVINO, torch's `.pt2` or a Triton model, and checks that it is the same model.

    The file has its name only once its logits were compared with PyTorch's, on `data` or on parts of two photographs;
    beside it are written `<name>.json`, the report, and `run.py`, which needs neither vitrail nor torch.

    out: a file that ends in .onnx, .xml or .pt2; for triton the model's folder in a model repository.
    precision: float32, float16, bfloat16 or int8. calibration: of int8; static (activations by their range on `data`)
        or dynamic (on the way); by default static where there is data.
    data: pictures to calibrate on (train, where the data says one), to check on, and to score.
    max_drop: points of top-1 on `data` that may be lost; more is an error, and nothing is written.
    with_preprocessing: resize, crop and normalisation go into the graph: raw uint8 pixels of any size go in.
    dynamic_size: pictures of any size that patches fill; positions are resized in the graph.
    features: a second output, what the head reads.
    compiled: of the format torch: a package that AOTInductor compiled for this machine.
    """
    plan = Plan(
        out=Path(out),
        format=format,
        precision=precision,
        calibration=calibration,
        with_preprocessing=with_preprocessing,
        dynamic_size=dynamic_size,
        features=features,
        compiled=compiled,
        max_drop=max_drop,
        overwrite=overwrite,
    )
    pictures = None if data is None else Pictures.open(data, **options)
    classifier = placed(model, img_size, "cpu")
    plan.check(classifier, pictures is not None)
    weight = next(classifier.model.parameters())
    was_training, dtype, device = classifier.model.training, weight.dtype, weight.device
    classifier.model.eval().float()
    try:
        with _room(plan) as room:
            builder = Builder(plan, classifier, pictures, progress)
            built = builder.build(room)
            accuracy = None
            if pictures is not None and plan.takes == "values":
                accuracy = score(classifier, built.file, pictures, progress)
                if max_drop is not None and accuracy is None:
                    raise VitrailError("--max-drop is measured on pictures with one label each: these have none")
                if max_drop is not None and accuracy is not None and accuracy.drop > max_drop:
                    raise VitrailError(
                        f"{precision} loses {accuracy.drop:.1f} points of top-1 ({accuracy.float_top1:.1%} to "
                        f"{accuracy.top1:.1%}), more than --max-drop {max_drop:g}: nothing is written"
                    )
            report = builder.report(built, accuracy)
            _name(room, plan, report)
    finally:
        classifier.model.train(was_training).to(device, dtype)
    return report


@contextmanager
def _room(plan: Plan) -> Iterator[Path]:
    """A folder beside the target, where everything is made; whatever happens, it is gone at the end."""
    try:
        plan.out.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{plan.out.name}.", dir=plan.out.parent))
    except OSError as error:
        raise VitrailError(f"{plan.out} cannot be written: {error.strerror or error}") from error
    try:
        yield room
    except OSError as error:
        words = " ".join(str(error).split())
        raise VitrailError(f"{plan.out} is not written: {words}; make room, or choose another place") from error
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _name(room: Path, plan: Plan, report: ExportReport) -> None:
    """Everything gets its name; the file itself last, so that where it is, all is."""
    target = plan.out
    note = json.dumps(report.to_json(), ensure_ascii=False, indent=2) + "\n"
    if plan.format == "triton":
        made = room / target.name
        (made / "export.json").write_text(note, encoding="utf-8")
        if target.is_dir():
            os.rename(target, room / "old")
        os.replace(made, target)
        flush(target.parent)
        return
    (room / f"{target.name}.json").write_text(note, encoding="utf-8")
    names = [path.name for path in room.iterdir() if path.is_file()]
    if f"{target.stem}.bin" in names:
        target.unlink(missing_ok=True)  # an old graph never stands beside new weights
    for name in sorted(names, key=lambda name: name == target.name):
        flush(room / name)
        os.replace(room / name, target.parent / name)
    flush(target.parent)
