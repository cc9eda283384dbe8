"""Everything that is to be shown of a model and of pictures, computed once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.classifier import Classifier
from vitrail.errors import PictureError, VitrailError
from vitrail.figures import features, maps, structure
from vitrail.figures.methods import saliency
from vitrail.figures.overlays import Pixels
from vitrail.figures.removal import Curves
from vitrail.figures.shown import array, class_number, methods_of, middle, predicted, removal_lines
from vitrail.model.resnet import ResNet
from vitrail.pictures.sources import SUFFIXES, name_of

Progress = Callable[[str, int, int], None]
_AT_A_TIME = 8  # pictures that are in memory


@dataclass
class OfPicture:
    """One picture with all its maps."""

    name: str
    pixels: Pixels  # as the model sees it
    best: list[tuple[str, float]]  # classes with their probabilities
    class_name: str | None = None  # which is explained
    attention: NDArray[Any] | None = None  # (depth, heads, rows, columns)
    by_layer: NDArray[Any] | None = None  # rollout: (depth, rows, columns)
    rollout: NDArray[Any] | None = None
    explanations: dict[str, NDArray[Any]] = field(default_factory=dict)
    removal: dict[str, Curves] = field(default_factory=dict)
    held: Tensor | None = None  # what the model holds of each patch: (width, rows, columns)
    colours: NDArray[Any] | None = None  # (rows, columns, 3)
    norms: NDArray[Any] | None = None  # (depth, rows, columns)


@dataclass
class Gathered:
    """What there is to show, and a line for what there is not."""

    filters: structure.Components
    positions: dict[str, NDArray[Any]]
    pictures: list[OfPicture]
    distances: NDArray[Any] | None  # (pictures, depth, heads)
    norms: NDArray[Any] | None  # (pictures, depth, rows, columns)
    notes: list[str]
    skipped: list[tuple[str, str]]


def gather(
    classifier: Classifier,
    pictures: Any,
    *,
    target: int | str | None,
    steps: int,
    shown: int,
    averaged: int,
    progress: Progress | None,
) -> Gathered:
    """Maps of the first `shown` pictures; distances and norms over as many as `averaged`."""
    model, say = classifier.model, progress or (lambda what, done, total: None)
    files = list(each_picture(pictures))[: max(shown, averaged)]
    found: list[OfPicture] = []
    distances, norms, skipped = [], [], []
    done = 0
    for names, pixels, refused in _read(classifier, files):
        skipped += refused
        if not names:
            continue
        inputs = torch.from_numpy(classifier.preprocessing.normalise(np.stack(pixels)))
        if not isinstance(model, ResNet):
            distances.append(array(structure.attention_distance(model, inputs)))
            norms.append(array(features.token_norms(model, inputs)))
        room = min(len(names), shown - len(found))
        for place in range(room):
            one = inputs[place : place + 1]
            found.append(_picture(classifier, names[place], pixels[place], one, target, steps))
            if norms:
                found[-1].norms = norms[-1][place]
            say("pictures", len(found), min(shown, len(files)))
        done += len(names)
        say("averages", done, len(files))
    if files and not done:
        first = ": ".join(skipped[0])
        raise VitrailError(first if len(files) == 1 else f"none of {len(files)} files is a picture: {first}")
    _colour(found)
    filters, positions = structure.filter_components(model), {}
    if not isinstance(model, ResNet):
        positions = {kind: array(one) for kind, one in structure.position_similarity(model).items()}
    return Gathered(
        filters,
        positions,
        found,
        np.concatenate(distances) if distances else None,
        np.concatenate(norms) if norms else None,
        notes_on(classifier, bool(files)),
        skipped,
    )


def _picture(
    classifier: Classifier, name: str, pixels: Pixels, inputs: Tensor, target: int | str | None, steps: int
) -> OfPicture:
    model = classifier.model
    best: list[tuple[str, float]] = []
    if classifier.classes:
        scores, order = predicted(classifier, inputs)[0].topk(min(5, len(classifier.classes)))
        best = [(classifier.classes[i], s) for i, s in zip(order.tolist(), scores.tolist(), strict=True)]
    one = OfPicture(name, pixels, best)
    one.held = features.patch_features(model, inputs)[0].cpu()
    if not isinstance(model, ResNet):
        one.attention = array(maps.attention_maps(model, inputs))[0]
        one.by_layer = array(maps.rollout_by_layer(model, inputs))[0]
        one.rollout = array(maps.rollout(model, inputs))[0]
    if classifier.classes:
        chosen = class_number(classifier, inputs, target)
        one.class_name = classifier.classes[chosen]
        found: dict[str, Tensor] = {}
        found |= {method: saliency(model, inputs, method, chosen) for method in methods_of(classifier)}
        one.explanations = {method: array(values)[0] for method, values in found.items()}
        one.removal = removal_lines(classifier, inputs, found, [chosen], steps)
    return one


def _colour(found: Sequence[OfPicture]) -> None:
    """All pictures share their components, so that like parts have like colours."""
    held = [one.held for one in found if one.held is not None]
    if held:
        for one, colours in zip(found, array(features.patch_colours(torch.stack(held))), strict=True):
            one.colours = colours


def chosen_patch(held: Tensor, patch: tuple[int, int] | None) -> tuple[int, int]:
    return patch or middle(held[None])


def each_picture(pictures: Any) -> Iterator[Any]:
    """Files as they are; of folders, all pictures in them, in order; anything else that is a picture."""
    many = pictures if isinstance(pictures, list | tuple) else [pictures]
    for one in many:
        if isinstance(one, str | os.PathLike) and Path(one).is_dir():
            files = sorted(path for path in Path(one).rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
            if not files:
                raise VitrailError(f"there are no pictures in {one}: it is searched for {' '.join(sorted(SUFFIXES))}")
            yield from files
        elif isinstance(one, str | os.PathLike) and not Path(one).exists():
            raise VitrailError(f"there is no {one}: check the path")
        else:
            yield one


def _read(
    classifier: Classifier, files: Sequence[Any]
) -> Iterator[tuple[list[str], list[Pixels], list[tuple[str, str]]]]:
    """Names and pixels, some at a time, and what could not be read with the reason."""
    for start in range(0, len(files), _AT_A_TIME):
        names, pixels, refused = [], [], []
        for place, one in enumerate(files[start : start + _AT_A_TIME], start + 1):
            name = name_of(one) if isinstance(one, str | os.PathLike) else f"picture {place}"
            try:
                pixels.append(classifier.preprocessing.pixels(one))
                names.append(name)
            except PictureError as error:
                refused.append((name, str(error).removeprefix(f"{name}: ")))
        yield names, pixels, refused


def notes_on(classifier: Classifier, has_pictures: bool) -> list[str]:
    """A line for each figure that this model cannot have, or has in another form."""
    model, notes = classifier.model, []
    if isinstance(model, ResNet):
        notes.append("A ResNet has no attention and no positions: there are filters, features and Grad-CAM.")
    else:
        config = model.config
        if config.positions == "none" and not config.rope and not config.relative_bias:
            notes.append("This model has no positions, so there is no likeness of places.")
        if config.pool == "mean":
            notes.append(
                "This model pools its patches by their mean, so attention is that which each patch gets from all"
                " patches, in the mean, and rollout starts from all of them alike."
            )
        elif config.pool == "map":
            notes.append("This model pools by attention: rollout and attribution start from what that weighs.")
        if config.distilled:
            notes.append("This model has two tokens that it reads, class and distillation: attention is their mean.")
        if config.backbone is not None or config.conv_stem:
            notes.append("Convolutions stand before the patches: filters are those of the first, which reads pixels.")
    if not classifier.classes:
        notes.append("This model has no head, so there is no class to explain and nothing to delete.")
    if not has_pictures:
        notes.append("Without pictures there are filters and positions: give some to see attention.")
    return notes
