"""`vitrail.look`: a folder with the paper's figures of a model, and a page that shows them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vitrail.classifier import Classifier, placed
from vitrail.errors import VitrailError
from vitrail.figures import drawings, model_drawings
from vitrail.figures.features import patch_similarity
from vitrail.figures.gather import Gathered, OfPicture, Progress, chosen_patch, gather
from vitrail.figures.page import page
from vitrail.figures.shown import array, named_class, of_picture
from vitrail.model.config import ResNetConfig
from vitrail.pages.markup import Markup
from vitrail.pages.plots import as_svg, drawing, save_png
from vitrail.whole import refuse_to_replace, written_whole

PAGE, FIGURES = "look.html", "look.json"
AVERAGED = 128  # pictures over which distances and lengths are averaged, as many as in the paper
MOST_SHOWN = 32
_OF_MODEL = ("filters", *(f"positions-{kind}" for kind in model_drawings.POSITIONS), "distances", "norms")
_OF_PICTURE = ("attention", "heads", "explanation", "deletion", "tokens")


@dataclass(frozen=True)
class Look:
    """What was seen, and where it is drawn."""

    folder: Path
    drawn: list[str]  # files in the folder
    notes: list[str]  # a line for each figure that the model cannot have
    skipped: list[tuple[str, str]]  # files that could not be read, with the reason
    summary: dict[str, Any]  # figures in numbers

    @property
    def page(self) -> Path:
        return self.folder / PAGE

    def to_json(self) -> dict[str, Any]:
        skipped = [{"path": name, "reason": reason} for name, reason in self.skipped]
        return {"page": str(self.page), **self.summary, "drawn": self.drawn, "notes": self.notes, "skipped": skipped}


def look(
    model: Classifier | str | os.PathLike[str],
    pictures: Any = (),
    out: str | os.PathLike[str] = "look",
    *,
    name: str | None = None,
    target: int | str | None = None,
    patch: tuple[int, int] | None = None,
    shown: int = 8,
    steps: int = 14,
    img_size: int | tuple[int, int] | None = None,
    device: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Look:
    """Draws what a model attends to, into a folder with `look.html` and the figures as PNG files.

    pictures: files, folders, or pictures of any kind that `Classifier.predict` takes; without any, the figures of the
        model alone are drawn.
    name: what the model is called in the page; by default, where it was loaded from.
    target: the class to explain, by name or number; by default, what is predicted of each picture.
    patch: row and column, from 0, of the patch that others are compared to; by default, the middle.
    shown: how many of the pictures have figures of their own; distances and lengths are averaged over up to 128.
    steps: in which patches are removed for the curves of deletion and insertion.
    """
    if steps < 1 or not 1 <= shown <= MOST_SHOWN:
        raise VitrailError(f"steps must be at least 1, and shown from 1 to {MOST_SHOWN}")
    out = Path(out)
    refuse_to_replace(out, _names(), "look", overwrite=overwrite)
    name = name or (str(model) if not isinstance(model, Classifier) else "the model")
    classifier = placed(model, img_size, device)
    if target is not None:
        named_class(classifier, target)
    _check_patch(classifier, patch)
    seen = gather(classifier, pictures, target=target, steps=steps, shown=shown, averaged=AVERAGED, progress=progress)
    summary = {"model": name, **_summary(seen)}
    with written_whole(out, overwrite=overwrite) as new:
        new.mkdir()
        svgs = _draw(seen, patch, new)
        drawn = sorted(path.name for path in new.iterdir())
        (new / PAGE).write_text(page(classifier, name, seen, svgs), encoding="utf-8")
        (new / FIGURES).write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return Look(out, drawn, seen.notes, seen.skipped, summary)


def _check_patch(classifier: Classifier, patch: tuple[int, int] | None) -> None:
    """Before the long work."""
    config = classifier.model.config
    rows, columns = config.feature_size(config.img_size) if isinstance(config, ResNetConfig) else config.grid
    if patch is not None and not (0 <= patch[0] < rows and 0 <= patch[1] < columns):
        place = f"row {patch[0]}, column {patch[1]}"
        raise VitrailError(f"there is no patch in {place}: the grid is {rows} x {columns}, counted from 0")


def _names() -> set[str]:
    """All files that a look may have made."""
    own = {f"{place:02d}-{kind}.png" for place in range(1, MOST_SHOWN + 1) for kind in _OF_PICTURE}
    return {PAGE, FIGURES, *own, *(f"{kind}.png" for kind in _OF_MODEL)}


def _draw(seen: Gathered, patch: tuple[int, int] | None, folder: Path) -> dict[str, Markup]:
    """Writes every figure, and gives those that stand in the page as they are."""
    kept: dict[str, Markup] = {}
    with drawing():

        def put(name: str, figure: Figure, label: str, in_page: bool = True) -> None:
            save_png(figure, folder / f"{name}.png")
            if in_page:
                kept[name] = as_svg(figure, label)

        filters = model_drawings.draw_filters(array(seen.filters.filters), array(seen.filters.share))
        put("filters", filters, "principal components of the filters")
        for kind, values in seen.positions.items():
            put(f"positions-{kind}", model_drawings.draw_positions(values, kind), f"likeness of places: {kind}")
        if seen.distances is not None:
            figure = model_drawings.draw_distances(seen.distances.mean(axis=0), len(seen.distances))
            put("distances", figure, "mean attention distance of every head")
        if seen.norms is not None:
            put("norms", drawings.draw_norms(seen.norms), "length of tokens against depth")
        for place, one in enumerate(seen.pictures, 1):
            for kind, figure in _of_picture(one, patch).items():
                put(f"{place:02d}-{kind}", figure, f"picture {place}: {kind}", kind in ("deletion", "tokens"))
    return kept


def _of_picture(one: OfPicture, patch: tuple[int, int] | None) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    if one.by_layer is not None and one.rollout is not None and one.attention is not None:
        found["attention"] = drawings.draw_attention(one.pixels, one.by_layer, one.rollout)
        found["heads"] = drawings.draw_heads(one.attention)
    if one.class_name is not None:
        found["explanation"] = drawings.draw_explanations(one.pixels, one.explanations, one.class_name)
        found["deletion"] = drawings.draw_removal(of_picture(one.removal, 0), one.class_name)
    if one.held is not None and one.colours is not None:
        chosen = chosen_patch(one.held, patch)
        likeness = array(patch_similarity(one.held[None], chosen))[0]
        last = None if one.norms is None else one.norms[-1]
        found["tokens"] = drawings.draw_tokens(one.pixels, one.colours, likeness, chosen, last)
    return found


def _summary(seen: Gathered) -> dict[str, Any]:
    """The figures in numbers."""
    found: dict[str, Any] = {}
    found["pictures"] = [
        {
            "path": one.name,
            **({"label": one.best[0][0], "score": round(one.best[0][1], 6)} if one.best else {}),
            **({"class": one.class_name} if one.class_name is not None else {}),
            "deletion_area": {name: round(float(line.deletion_area[0]), 4) for name, line in one.removal.items()},
            "insertion_area": {name: round(float(line.insertion_area[0]), 4) for name, line in one.removal.items()},
        }
        for one in seen.pictures
    ]
    if seen.distances is not None:
        found["attention_distance_pixels"] = np.round(seen.distances.mean(axis=0), 2).tolist()
        found["averaged_over"] = len(seen.distances)
    return found
