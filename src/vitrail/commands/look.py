"""`vitrail look`: what a model attends to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

import vitrail
from vitrail.commands.printing import Json, print_assumed, print_json
from vitrail.commands.progress import shown_stages
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.figures.look import Look

Flag = Annotated[bool, Parameter(negative="")]


def look(
    model: str,
    pictures: Annotated[list[Path] | None, Parameter(negative="")] = None,
    /,
    *,
    out: Path = Path("look"),
    target: Annotated[str | None, Parameter(name="--class")] = None,
    patch: str | None = None,
    shown: int = 8,
    steps: int = 14,
    img_size: str | None = None,
    device: str | None = None,
    overwrite: Flag = False,
    as_json: Json = False,
) -> int:
    """Draw the paper's figures: attention, attribution, filters, positions, how far heads look, what tokens hold.

    Example: vitrail look my-model/ cat.jpg dog.jpg --out look/

    The folder has look.html, one page with all of it and sliders over layers and heads, and the figures as PNG files.

    Parameters
    ----------
    model
        a model folder, a checkpoint file of any known family, or hf:owner/name
    pictures
        files, or folders of pictures; without any, the figures of the model alone
    out
        the folder to make
    target
        the class to explain, by name or number; by default, what is predicted of each picture
    patch
        row,column from 0 of the patch that others are compared to; by default, the middle
    shown
        how many pictures have figures of their own; averages are over up to 128
    steps
        in which patches are removed, for the curves of deletion and insertion
    img_size
        look at another size, such as 384 or 224x448; the positions are resized
    device
        cpu, cuda, cuda:1, mps; by default the fastest there is
    overwrite
        replace the folder of an earlier look
    as_json
        print one JSON object
    """
    from vitrail.classifier import placed

    size = None if img_size is None else _numbers("--img-size", img_size, "x", "384 or 224x448")
    chosen = None if patch is None else _numbers("--patch", patch, ",", "7,3")
    if chosen is not None and len(chosen) != 2:
        raise VitrailError(f"--patch {patch} must be a row and a column, such as 7,3")
    given = None if size is None else (size[0], size[-1])
    classifier = placed(model, given, device)
    if not as_json:
        print_assumed(classifier)
    with shown_stages() as progress:
        found = vitrail.look(
            classifier,
            [str(path) for path in pictures or []],
            out,
            name=model,
            target=target,
            patch=None if chosen is None else (chosen[0], chosen[1]),
            shown=shown,
            steps=steps,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        print_json(found.to_json())
    else:
        _tell(found)
    return 0


def _numbers(flag: str, text: str, mark: str, example: str) -> list[int]:
    parts = text.split(mark)
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise VitrailError(f"{flag} {text} is not understood: give it as {example}")
    return [int(part) for part in parts]


def _tell(found: Look) -> None:
    for one in found.summary["pictures"]:
        words = f"{one['path']}: "
        words += f"{one['label']} {one['score']:.1%}" if "label" in one else "no class"
        areas = one["deletion_area"]
        best, name = ("grad_cam", "Grad-CAM") if "attribution" not in areas else ("attribution", "attribution")
        if best in areas:
            words += f"; {one['class']} by {name}: deletion area {areas[best]:.3f}, at random {areas['random']:.3f}"
        print(words)
    for name, reason in found.skipped:
        print(f"skipped {name}: {reason}")
    for note in found.notes:
        print(note)
    print(f"look at {found.page}; {len(found.drawn)} figures are beside it")
