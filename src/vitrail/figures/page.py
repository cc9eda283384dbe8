"""`look.html`: all figures on one page that needs nothing else, with sliders over layers and heads."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.classifier import Classifier
from vitrail.data.notes import last_part
from vitrail.figures.drawings import TITLES
from vitrail.figures.features import patch_similarity
from vitrail.figures.gather import Gathered, OfPicture
from vitrail.figures.overlays import HEAT, in_colour, of_the_mean, scaled
from vitrail.figures.shown import array
from vitrail.model.resnet import ResNet
from vitrail.model.walk import parameters
from vitrail.pages.document import document, panel, picture_address, section, tile
from vitrail.pages.markup import Markup, joined, tag

_SIDE = 448  # pixels of a picture in the page
_MOST_PATCHES = 1024  # whose likeness to each other is in the page: a byte for every two
_SAYS = {
    "attention": "Where the tokens that the head reads look, in this layer and head, beside the mean of all patches.",
    "rollout": "What of each patch has reached the head's tokens by attention, up to this layer.",
    "attribution": "What speaks for the class: attention of all layers, weighted by its gradient.",
    "attention_gradient": "Attention of the last layer times its gradient for the class.",
    "grad_cam": "Features in the direction of the class's gradient.",
    "likeness": "How alike the model finds each patch and the marked one. Click on another patch.",
}
_ABOUT = {
    "filters": "What the model looks for in a patch, the strongest directions of its first weights.",
    "positions": "How alike the model takes each place to be to all others; often near places, rows and columns are.",
    "distances": "In the paper's models it grows with depth, as a receptive field does; some heads look far at once.",
    "norms": "Tokens that are many times as long as the others are no part of the picture: registers remove them.",
}


def page(classifier: Classifier, name: str, seen: Gathered, drawn: Mapping[str, Markup]) -> str:
    """The whole page; `drawn` are figures by their names."""
    notes = tag("div", [tag("p", note) for note in seen.notes], class_="notes") if seen.notes else None
    parts = [_picture(place, one, drawn) for place, one in enumerate(seen.pictures, 1)]
    short = last_part(name)
    return document(
        f"{short}: what it sees",
        tag("h1", short),
        tag("p", f"What {name} attends to, and what its predictions rest on.", class_="soft"),
        tag("div", _tiles(classifier, seen), class_="tiles"),
        notes,
        *parts,
        _model(drawn),
        _skipped(seen),
        tag("footer", "Made with vitrail look. The figures are also beside this page, as PNG files."),
        scripts=("look.js",) if parts else (),
        styles=("look.css",),
    )


def _tiles(classifier: Classifier, seen: Gathered) -> list[Markup]:
    config = classifier.model.config
    found = [tile(f"{parameters(config) / 1e6:,.1f}M", "parameters")]
    if not isinstance(classifier.model, ResNet):
        vit = classifier.model.config
        found.append(tile(f"{vit.depth} × {vit.num_heads}", "layers × heads"))
        found.append(tile(f"{vit.grid[0]} × {vit.grid[1]}", "patches"))
    found.append(tile(f"{config.img_size[0]} × {config.img_size[1]}", "pixels", style="long"))
    judged = [one.removal for one in seen.pictures if one.removal]
    if judged:
        best = "attribution" if "attribution" in judged[0] else "grad_cam"
        for key in (best, "random"):
            area = float(np.mean([float(lines[key].deletion_area[0]) for lines in judged]))
            found.append(tile(f"{area:.3f}", f"deletion area, {TITLES[key]}; less is better"))
    return found


def _picture(place: int, one: OfPicture, drawn: Mapping[str, Markup]) -> Markup:
    figures = [drawn[f"{place:02d}-{kind}"] for kind in ("deletion", "tokens") if f"{place:02d}-{kind}" in drawn]
    words = f"Explained: {one.class_name}." if one.class_name is not None else None
    return section(
        f"picture-{place}",
        one.name.rpartition("/")[2],
        words,
        tag("div", _viewer(one), class_="panel"),
        [tag("div", tag("div", figure, class_="look-figure"), class_="panel") for figure in figures],
    )


def _viewer(one: OfPicture) -> Markup:
    """The picture, and beside it a map that can be chosen."""
    address = picture_address(Image.fromarray(in_colour(one.pixels)), _SIDE, quality=82)
    maps = _maps(one)
    depth = 0 if one.by_layer is None else len(one.by_layer)
    heads = 0 if one.attention is None else one.attention.shape[1]
    assert one.held is not None
    rows, columns = one.held.shape[1:]
    data = {
        "grid": [rows, columns],
        "layers": depth,
        "first": "rollout" if "rollout" in maps else next(iter(maps)),
        "patch": [rows // 2, columns // 2],
        "heat": _table(HEAT),
        "likeness": _table("viridis"),
        "maps": maps,
    }
    content = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    buttons = [tag("button", _title(key), type="button", value=key) for key in maps]
    scores = [
        tag("tr", tag("td", label), tag("td", f"{score:.1%}", class_="number part", style=f"--part: {score:.1%}"))
        for label, score in one.best
    ]
    side = tag(
        "div", tag("img", src=address, alt="the picture"), tag("table", scores, class_="best") if scores else None
    )
    view = tag(
        "div",
        tag("div", buttons, class_="choices"),
        tag("div", tag("img", src=address, alt=""), tag("canvas"), tag("div", class_="patch"), class_="view"),
        tag("div", _slider("layer", 1, depth, depth), _slider("head", 0, heads, 0), class_="sliders"),
        tag("div", tag("span", class_="low"), tag("i"), tag("span", class_="high"), class_="scale"),
        tag("p", class_="says"),
    )
    script = tag("script", Markup(content), type="application/json")
    return tag("div", tag("div", side, class_="side"), view, script, class_="looking")


def _slider(name: str, least: int, most: int, value: int) -> Markup:
    slider = tag("input", type="range", min=least, max=most, value=value, class_=name)
    return tag("label", name, slider, tag("output"))


def _maps(one: OfPicture) -> dict[str, dict[str, Any]]:
    """Each as bytes, with what the least and the largest stand for."""
    found: dict[str, dict[str, Any]] = {}
    if one.by_layer is not None:
        values = of_the_mean(one.by_layer)
        found["rollout"] = {**_bytes(values, each=False), "layers": True, "unit": "× the mean"}
    if one.attention is not None:
        mean = one.attention.mean(axis=1, keepdims=True)
        values = of_the_mean(np.concatenate([mean, one.attention], axis=1))  # (depth, 1 + heads, rows, columns)
        flat = values.reshape(-1, *values.shape[2:])
        heads = one.attention.shape[1]
        found["attention"] = {**_bytes(flat, each=True), "layers": True, "heads": heads, "unit": "× the mean"}
    for name, map_ in one.explanations.items():
        if name != "rollout":
            found[name] = {**_bytes(scaled(map_)[None], each=False), "unit": "of the largest"}
    if one.held is not None and one.held.shape[1] * one.held.shape[2] <= _MOST_PATCHES:
        values = array(patch_similarity(one.held[None]))[0]
        flat = values.reshape(-1, *values.shape[2:])
        found["likeness"] = {**_bytes(flat, each=False), "patches": True, "unit": "cosine"}
    for name, entry in found.items():
        entry["says"] = _SAYS[name]
    return found


def _bytes(values: NDArray[Any], *, each: bool) -> dict[str, Any]:
    """(maps, rows, columns) as bytes from the least value to the largest, of all maps or of each."""
    axes = (1, 2) if each else (0, 1, 2)
    low, high = values.min(axis=axes, keepdims=True), values.max(axis=axes, keepdims=True)
    whole = np.round((values - low) / np.where(high > low, high - low, 1) * 255).astype(np.uint8)
    spans = np.stack([low.ravel(), high.ravel()], axis=-1)
    return {"values": base64.b64encode(whole.tobytes()).decode(), "spans": np.round(spans, 4).tolist()}


def _table(cmap: str) -> str:
    table = np.round(matplotlib.colormaps[cmap](np.arange(256))[:, :3] * 255).astype(np.uint8)
    return base64.b64encode(table.tobytes()).decode()


def _title(key: str) -> str:
    return {"likeness": "likeness of patches", "attention": "attention by head"}.get(key) or TITLES[key]


def _model(drawn: Mapping[str, Markup]) -> Markup:
    """Figure 7, and the lengths of tokens."""
    parts = []
    for name, figure in drawn.items():
        key = name.partition("-")[0]
        if key in _ABOUT:
            words = tag("p", _ABOUT[key], class_="lead")
            parts.append(panel(None, words, tag("div", figure, class_="look-figure middle")))
    return section("model", "The model", None, joined(parts))


def _skipped(seen: Gathered) -> Markup | None:
    if not seen.skipped:
        return None
    rows = [tag("tr", tag("td", name), tag("td", reason)) for name, reason in seen.skipped]
    table = tag("table", tag("tr", tag("th", "file"), tag("th", "why")), rows)
    return section("skipped", "Not read", None, tag("div", table, class_="panel"))
