"""The command line: each command parses, calls one function of the library, and prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

import vitrail
from vitrail.errors import PictureError, VitrailError

EPILOGUE = "Every command explains itself: vitrail COMMAND --help. A failure is one line; --debug shows the traceback."

app = App(
    name="vitrail",
    help="The Vision Transformer as complete software.\n\nExample: vitrail predict my-model/ photos/",
    help_epilogue=EPILOGUE,
    version=vitrail.__version__,
    version_flags=["--version"],
    help_flags=["--help", "-h"],
)


@app.command
def models(name: str = "*", /, *, as_json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> int:
    """List the named models; with a name, walk through every shape of that one.

    Example: vitrail models "deit*"

    Example: vitrail models ViT-B/16

    Parameters
    ----------
    name
        a model in any of its spellings (vit_b16, ViT-B/16, vit_base_patch16_224), or a pattern (deit*)
    as_json
        print one JSON object
    """
    from vitrail.model import walk, zoo

    if any(sign in name for sign in "*?["):
        rows = zoo.models(name)
        if not rows:
            raise VitrailError(f"no model matches {name!r}: `vitrail models` lists them all")
        found = [_row(row) for row in rows]
        if as_json:
            _print_json({"models": found})
            return 0
        cells = [["name", "paper", "picture", "tokens", "parameters", "GFLOP"]]
        for line in found:
            size = f"{line['img_size'][0]} x {line['img_size'][1]}"
            count = f"{line['parameters']:,}"
            cells.append([line["name"], line["title"], size, str(line["tokens"] or "-"), count, f"{line['gflop']:.1f}"])
        _print_table(cells, right={3, 4, 5})
        print(f"\n{len(found)} models. GFLOP is 2 x multiply-accumulate, forward, one picture.")
        return 0
    row = zoo.find(name)
    steps = walk.walk(row.config)
    if as_json:
        plain = [asdict(step) for step in steps]
        _print_json({**_row(row), "config": row.config.to_json(), "walk": plain})
        return 0
    print(f"{row.name}: {row.title}" + (f", in timm {row.timm}" if row.timm else "") + "\n")
    cells = [["", "shape", "parameters", "MFLOP", ""]]
    for step in steps:
        shape = "(" + ", ".join(map(str, step.shape)) + ")"
        times = f"x {step.times}" if step.times > 1 else ""
        count = f"{step.parameters:,}" if step.parameters else ""
        cells.append([step.name, shape, count, f"{step.flops / 1e6:,.1f}" if step.flops else "", times])
    _print_table(cells, right={2, 3})
    total, work = walk.parameters(row.config), walk.flops(row.config)
    print(f"\n{total:,} parameters, {work / 1e9:.2f} GFLOP (2 x multiply-accumulate) for one picture.")
    return 0


def _row(row: Any) -> dict[str, Any]:
    from vitrail.model import walk

    config = row.config
    return {
        "name": row.name,
        "title": row.title,
        "timm": row.timm,
        "img_size": list(config.img_size),
        "num_classes": config.num_classes,
        "tokens": walk.tokens(config),
        "parameters": walk.parameters(config),
        "gflop": round(walk.flops(config) / 1e9, 3),
    }


@app.command
def predict(
    model: str,
    sources: Annotated[list[Path], Parameter(negative="")],
    /,
    *,
    top: int = 1,
    img_size: int | None = None,
    batch_size: int = 32,
    device: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Say what is on pictures: files, or folders with everything in them.

    Example: vitrail predict my-model/ cat.jpg holiday/ --top 3

    Parameters
    ----------
    model
        a model folder, a checkpoint file of any known family, or hf:owner/name
    sources
        pictures, or folders of pictures
    top
        how many of the best classes to show
    img_size
        read the pictures at another size; the positions are resized
    batch_size
        pictures that go through the model at a time
    device
        cpu, cuda, cuda:1, mps; by default the fastest there is
    as_json
        print one JSON object
    """
    if top < 1 or batch_size < 1:
        raise VitrailError("--top and --batch-size must be at least 1")
    paths = list(_pictures(sources))
    if not paths:
        raise VitrailError(f"there are no pictures in {', '.join(map(str, sources))}")
    classifier = vitrail.load(model, **({} if img_size is None else {"img_size": img_size}))
    classifier.to(_device(device))
    if not as_json:
        _print_assumed(classifier)
    found: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    for start in range(0, len(paths), batch_size):
        good, pixels = [], []
        for path in paths[start : start + batch_size]:
            try:
                pixels.append(vitrail.pictures.as_picture(path))
                good.append(path)
            except PictureError as error:
                skipped.append({"path": str(path), "reason": str(error)})
                print(f"skipped: {error}", file=sys.stderr)
        if not good:
            continue
        for path, prediction in zip(good, classifier.predict(pixels, top=top, batch_size=batch_size), strict=True):
            best = [{"label": label, "score": round(score, 6)} for label, score in prediction.top]
            found.append({"path": str(path), **best[0], "top": best})
            if not as_json:
                print(f"{path}: " + ", ".join(f"{label} {score:.1%}" for label, score in prediction.top), flush=True)
    if as_json:
        _print_json({"model": model, "predictions": found, "skipped": skipped})
    elif skipped:
        print(f"{len(found)} predicted, {len(skipped)} skipped", file=sys.stderr)
    if not found:
        raise VitrailError(f"none of {len(paths)} files could be read as a picture")
    return 0


@app.command
def convert(
    source: str,
    destination: Path,
    /,
    *,
    to: Literal["vitrail", "timm", "transformers", "torchvision", "google"],
    img_size: int | None = None,
    num_classes: int | None = None,
    num_heads: int | None = None,
    norm_eps: float | None = None,
    act: str | None = None,
    fit: str | None = None,
    crop_pct: float | None = None,
    interpolation: str | None = None,
    mean: tuple[float, float, float] | None = None,
    std: tuple[float, float, float] | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Write anybody's checkpoint in anybody else's format.

    Example: vitrail convert ViT-B_16.npz vit-b16/ --to transformers

    Parameters
    ----------
    source
        a model folder, a checkpoint file of any known family, or hf:owner/name
    destination
        vitrail, timm and transformers: a folder; torchvision: a .pth file; google: an .npz file
    to
        whose format to write
    img_size
        resize the positions to another picture size
    num_classes
        replace the head by a fresh one
    num_heads
        what a file cannot say: attention heads
    norm_eps
        what a file cannot say: epsilon of the norms
    act
        what a file cannot say: gelu, gelu_tanh, quick_gelu or relu
    fit
        preprocessing: crop, squash or pad
    crop_pct
        preprocessing: part of the resized picture that the crop keeps
    interpolation
        preprocessing: bicubic, bilinear, lanczos, …
    mean
        preprocessing: three numbers
    std
        preprocessing: three numbers
    as_json
        print one JSON object
    """
    asked = {"img_size": img_size, "num_classes": num_classes, "num_heads": num_heads, "norm_eps": norm_eps, "act": act}
    options: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    pixels = {"fit": fit, "crop_pct": crop_pct, "interpolation": interpolation, "mean": mean, "std": std}
    options["preprocessing"] = {name: value for name, value in pixels.items() if value is not None}
    classifier = vitrail.convert(source, destination, to, **options)
    if as_json:
        config = classifier.model.config.to_json()
        _print_json(
            {
                "source": source,
                "destination": str(destination),
                "to": to,
                "assumed": classifier.assumed,
                "config": config,
            }
        )
        return 0
    _print_assumed(classifier)
    count = sum(parameter.numel() for parameter in classifier.model.parameters())
    print(f"{destination}: {to}, {count:,} parameters, {classifier.model.config.num_classes:,} classes")
    return 0


def _print_assumed(classifier: Any) -> None:
    """What the checkpoint did not say."""
    if classifier.assumed:
        words = "; ".join(f"{key} = {value}" for key, value in classifier.assumed.items())
        print(f"assumed, since the file does not say: {words}", file=sys.stderr)


def _pictures(sources: Iterable[Path]) -> Iterable[Path]:
    """Files as they are; of folders, all files whose suffix is a picture's, in order."""
    for source in sources:
        if source.is_dir():
            files = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
            if not files:
                raise VitrailError(
                    f"there are no pictures in {source}: it is searched for {' '.join(sorted(SUFFIXES))}"
                )
            yield from files
        elif source.exists():
            yield source
        else:
            raise VitrailError(f"there is no {source}: check the path")


SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".ppm", ".pgm", ".jp2"}


def _device(name: str | None) -> str:
    """The device that was asked for, or the fastest there is."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise VitrailError(f"the device {name!r} cannot be used here: {' '.join(str(error).split())[:120]}") from error
    return name


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, ensure_ascii=False))


def _print_table(rows: list[list[str]], right: set[int]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        print("  ".join(cells).rstrip())


def main(arguments: list[str] | None = None) -> int:
    """Runs a command. 0: done; 1: it failed, one line says why; 2: wrong usage."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        return result if isinstance(result, int) else 0
    except CycloptsError as error:
        if debug:
            raise
        print(f"vitrail: {' '.join(str(error).split())} (vitrail --help shows how)", file=sys.stderr)
        return 2
    except VitrailError as error:
        if debug:
            raise
        print(f"vitrail: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("vitrail: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has had enough
        return 0
    except Exception as error:
        if debug:
            raise
        words = " ".join(str(error).split())
        print(f"vitrail: unexpected {type(error).__name__}: {words} (--debug shows where)", file=sys.stderr)
        return 1
