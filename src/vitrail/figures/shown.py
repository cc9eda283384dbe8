"""Each figure by itself, of a classifier and a picture: its arrays, and the drawing."""

from __future__ import annotations

import difflib
import os
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from vitrail.classifier import Classifier, placed
from vitrail.data.notes import quoted
from vitrail.errors import VitrailError
from vitrail.figures import drawings, features, maps, model_drawings, structure
from vitrail.figures.methods import METHODS, Method, saliency
from vitrail.figures.overlays import Floats, Pixels
from vitrail.figures.removal import Curves, random_maps, removal_curves
from vitrail.figures.watching import at_rest, chunks, need_vit
from vitrail.model.resnet import ResNet
from vitrail.pages.plots import drawing

Model = Classifier | str | os.PathLike[str]


class Drawn(NamedTuple):
    """A figure with what it shows."""

    values: dict[str, NDArray[Any]]
    figure: Figure


def attention(model: Model, picture: Any) -> Drawn:
    """Figure 6: "rollout" (rows, columns), "by_layer" (depth, rows, columns)."""
    classifier, pixels, inputs = _seen(model, [picture])
    vit = need_vit(classifier.model, "attention")
    by_layer, total = array(maps.rollout_by_layer(vit, inputs))[0], array(maps.rollout(vit, inputs))[0]
    with drawing():
        return Drawn({"rollout": total, "by_layer": by_layer}, drawings.draw_attention(pixels[0], by_layer, total))


def heads(model: Model, picture: Any) -> Drawn:
    """Raw attention of each layer and head: "attention" (depth, heads, rows, columns)."""
    classifier, _, inputs = _seen(model, [picture])
    values = array(maps.attention_maps(need_vit(classifier.model, "attention"), inputs))[0]
    with drawing():
        return Drawn({"attention": values}, drawings.draw_heads(values))


def explanation(model: Model, picture: Any, target: int | str | None = None) -> Drawn:
    """What speaks for a class, given by its number or name: a map (rows, columns) for each method."""
    classifier, pixels, inputs = _seen(model, [picture])
    chosen = class_number(classifier, inputs, target)
    values: dict[str, NDArray[Any]] = {}
    values |= {name: array(saliency(classifier.model, inputs, name, chosen))[0] for name in methods_of(classifier)}
    with drawing():
        return Drawn(values, drawings.draw_explanations(pixels[0], values, classifier.classes[chosen]))


def deletion(model: Model, picture: Any, target: int | str | None = None, steps: int = 20) -> Drawn:
    """What a prediction rests on: "fractions" and, for each method and a random order, "… deletion" and
    "… insertion" (steps + 1)."""
    classifier, _, inputs = _seen(model, [picture])
    chosen = class_number(classifier, inputs, target)
    found: dict[str, Tensor] = {}
    found |= {name: saliency(classifier.model, inputs, name, chosen) for name in methods_of(classifier)}
    lines = removal_lines(classifier, inputs, found, [chosen], steps)
    values = {"fractions": next(iter(lines.values())).fractions.numpy()}
    for name, curves in lines.items():
        values |= {f"{name} deletion": curves.deletion[0].numpy(), f"{name} insertion": curves.insertion[0].numpy()}
    with drawing():
        return Drawn(values, drawings.draw_removal(of_picture(lines, 0), classifier.classes[chosen]))


def tokens(model: Model, picture: Any, patch: tuple[int, int] | None = None) -> Drawn:
    """ "colours" (rows, columns, 3), "similarity" to one patch (rows, columns), and of a ViT "norms" (depth, rows,
    columns)."""
    classifier, pixels, inputs = _seen(model, [picture])
    held = features.patch_features(classifier.model, inputs)
    patch = patch or middle(held)
    values = {
        "colours": array(features.patch_colours(held))[0],
        "similarity": array(features.patch_similarity(held, patch))[0],
    }
    if not isinstance(classifier.model, ResNet):
        values["norms"] = array(features.token_norms(classifier.model, inputs))[0]
    last = values["norms"][-1] if "norms" in values else None
    with drawing():
        return Drawn(values, drawings.draw_tokens(pixels[0], values["colours"], values["similarity"], patch, last))


def similarity(model: Model, picture: Any, patch: tuple[int, int] | None = None, layer: int = -1) -> Drawn:
    """The likeness of one patch, by row and column from 0, to all: "similarity" (rows, columns)."""
    classifier, pixels, inputs = _seen(model, [picture])
    held = features.patch_features(classifier.model, inputs, layer)
    patch = patch or middle(held)
    values = array(features.patch_similarity(held, patch))[0]
    with drawing():
        return Drawn({"similarity": values}, drawings.draw_similarity(pixels[0], values, patch))


def norms(model: Model, pictures: Any) -> Drawn:
    """How long tokens are: "norms" (pictures, depth, rows, columns)."""
    classifier, _, inputs = _seen(model, pictures)
    values = array(features.token_norms(need_vit(classifier.model, "norms of tokens"), inputs))
    with drawing():
        return Drawn({"norms": values}, drawings.draw_norms(values))


def distances(model: Model, pictures: Any) -> Drawn:
    """Figure 7, right: "distances" in pixels (pictures, depth, heads)."""
    classifier, _, inputs = _seen(model, pictures)
    values = array(structure.attention_distance(need_vit(classifier.model, "attention distance"), inputs))
    with drawing():
        return Drawn({"distances": values}, model_drawings.draw_distances(values.mean(axis=0), len(values)))


def filters(model: Model, count: int = 28) -> Drawn:
    """Figure 7, left: "filters" (count, channels, height, width), "share" (count,)."""
    found = structure.filter_components(placed(model).model, count)
    values = {"filters": array(found.filters), "share": array(found.share)}
    with drawing():
        return Drawn(values, model_drawings.draw_filters(values["filters"], values["share"]))


def positions(model: Model) -> Drawn:
    """Figure 7, centre: the likeness of places, (rows, columns, rows, columns), for each kind of position that the
    model has; the first is drawn."""
    found = structure.position_similarity(need_vit(placed(model).model, "positions"))
    if not found:
        raise VitrailError("this model has no positions, so there is no likeness of places to draw")
    values = {kind: array(one) for kind, one in found.items()}
    kind = next(iter(values))
    with drawing():
        return Drawn(values, model_drawings.draw_positions(values[kind], kind))


def methods_of(classifier: Classifier) -> tuple[Method, ...]:
    """Those that the model can have."""
    if isinstance(classifier.model, ResNet):
        return ("grad_cam",)
    config = classifier.model.config
    alone = config.pool == "token" and config.depth == 1  # only the class token leaves the block
    return tuple(method for method in METHODS if method != "grad_cam" or not alone)


def class_number(classifier: Classifier, inputs: Tensor, target: int | str | None) -> int:
    """The class that is asked for; by default, what is predicted of the first picture."""
    if target is None and classifier.classes:
        return int(predicted(classifier, inputs[:1])[0].argmax())
    return named_class(classifier, target)


def named_class(classifier: Classifier, target: int | str | None) -> int:
    """The class of this number or name."""
    if not classifier.classes or target is None:
        raise VitrailError("this model has no head, so there is no class to explain: train one, or look at rollout")
    if isinstance(target, str) and target in classifier.classes:
        return classifier.classes.index(target)
    if isinstance(target, int) or target.isdecimal():
        if int(target) >= len(classifier.classes) or int(target) < 0:
            raise VitrailError(f"there is no class {target}: the model has classes 0 to {len(classifier.classes) - 1}")
        return int(target)
    near = difflib.get_close_matches(target, classifier.classes, n=3)
    hint = f"did you mean {quoted(near)}?" if near else f"its classes are {quoted(classifier.classes)}"
    raise VitrailError(f"the model has no class {target!r}: {hint}")


def predicted(classifier: Classifier, inputs: Tensor) -> Tensor:
    """Probabilities, (pictures, classes)."""
    with at_rest(classifier.model), torch.inference_mode():
        parts = chunks(classifier.model, inputs, backward=False)
        return torch.cat([classifier.model(part).float().softmax(dim=-1).cpu() for part in parts])


def removal_lines(
    classifier: Classifier, inputs: Tensor, found: dict[str, Tensor], classes: list[int], steps: int
) -> dict[str, Curves]:
    """The curves of each method's maps and of a random order."""
    shape = tuple(next(iter(found.values())).shape)
    orders = {**found, "random": random_maps(shape)}
    return {
        name: removal_curves(classifier.model, inputs, values, classes, steps=steps) for name, values in orders.items()
    }


def of_picture(lines: dict[str, Curves], place: int) -> dict[str, tuple[Floats, Floats, Floats]]:
    return {
        name: (curves.fractions.numpy(), curves.deletion[place].numpy(), curves.insertion[place].numpy())
        for name, curves in lines.items()
    }


def middle(held: Tensor) -> tuple[int, int]:
    return held.shape[2] // 2, held.shape[3] // 2


def array(values: Tensor) -> NDArray[Any]:
    return values.detach().float().cpu().numpy()


def _seen(model: Model, pictures: Any) -> tuple[Classifier, list[Pixels], Tensor]:
    """The classifier, the pixels that it sees, and what it makes of them."""
    classifier = placed(model)
    many = pictures if isinstance(pictures, list | tuple) else [pictures]
    if not many:
        raise VitrailError("there is no picture to look at")
    pixels = [classifier.preprocessing.pixels(picture) for picture in many]
    return classifier, pixels, torch.from_numpy(classifier.preprocessing.normalise(np.stack(pixels)))
