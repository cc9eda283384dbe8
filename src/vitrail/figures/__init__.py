"""What a model attends to, as arrays and drawn.

The arrays. Each takes a model (a `ViT`; `grad_cam` and `saliency` a `ResNet` too) and pixels as the model reads them,
(batch, channels, height, width), and returns one map for each picture in float32, on the model's device, not scaled.
Predictions go through the fused kernel; the model's mode, gradients and parameters stay as they are.

    attention_maps(model, pixels, layers="all") -> (batch, layers, heads, rows, columns)
    rollout(model, pixels) -> (batch, rows, columns)
    rollout_by_layer(model, pixels) -> (batch, depth, rows, columns)
    attribution(model, pixels, target=None) -> (batch, rows, columns)
    attention_gradient(model, pixels, target=None, layer=-1) -> (batch, rows, columns)
    grad_cam(model, pixels, target=None) -> (batch, rows, columns)
    saliency(model, pixels, method=None, target=None) -> (batch, rows, columns), by any of METHODS
    removal_curves(model, pixels, maps, target=None, steps=20) -> Curves: deletion and insertion, with their areas
    random_maps(shape, seed=0) -> maps in random order, to compare with
    attention_distance(model, pixels) -> (batch, depth, heads), in pixels
    patch_features(model, pixels, layer=-1) -> (batch, width, rows, columns); of them:
    patch_colours(features) -> (batch, rows, columns, 3); patch_similarity(features, patch) -> (batch, rows, columns)
    token_norms(model, pixels) -> (batch, depth, rows, columns)
    filter_components(model, count=28) -> Components: filters (count, channels, height, width), share (count,)
    position_similarity(model) -> kind: (rows, columns, rows, columns)
    overlay(picture, map) -> uint8 (height, width, 3): one map, as an array, over the picture it belongs to

`target` is a class for all, or one for each picture; by default it is the class that the model predicts.

The figures. Each takes a classifier, or what `vitrail.load` reads, and a picture of any kind, and returns `Drawn`: a
dictionary of arrays, and a matplotlib figure.

    attention, heads, explanation, deletion, tokens, similarity (model, picture)
    distances, norms (model, pictures); filters, positions (model)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.figures.features import patch_colours, patch_features, patch_similarity, token_norms
    from vitrail.figures.gradients import attention_gradient, attribution, grad_cam
    from vitrail.figures.maps import attention_maps, rollout, rollout_by_layer
    from vitrail.figures.methods import METHODS, Method, saliency
    from vitrail.figures.overlays import overlay
    from vitrail.figures.removal import Curves, random_maps, removal_curves
    from vitrail.figures.shown import (
        Drawn,
        attention,
        deletion,
        distances,
        explanation,
        filters,
        heads,
        norms,
        positions,
        similarity,
        tokens,
    )
    from vitrail.figures.structure import Components, attention_distance, filter_components, position_similarity

_HOMES = {
    "Drawn": "shown",
    "attention": "shown",
    "deletion": "shown",
    "distances": "shown",
    "explanation": "shown",
    "filters": "shown",
    "heads": "shown",
    "norms": "shown",
    "positions": "shown",
    "similarity": "shown",
    "tokens": "shown",
    "overlay": "overlays",
    "Components": "structure",
    "attention_distance": "structure",
    "filter_components": "structure",
    "position_similarity": "structure",
    "patch_colours": "features",
    "patch_features": "features",
    "patch_similarity": "features",
    "token_norms": "features",
    "Curves": "removal",
    "METHODS": "methods",
    "Method": "methods",
    "attention_gradient": "gradients",
    "attention_maps": "maps",
    "attribution": "gradients",
    "grad_cam": "gradients",
    "random_maps": "removal",
    "removal_curves": "removal",
    "rollout": "maps",
    "rollout_by_layer": "maps",
    "saliency": "methods",
}

__all__ = [
    "METHODS",
    "Components",
    "Curves",
    "Drawn",
    "Method",
    "attention",
    "attention_distance",
    "attention_gradient",
    "attention_maps",
    "attribution",
    "deletion",
    "distances",
    "explanation",
    "filter_components",
    "filters",
    "grad_cam",
    "heads",
    "norms",
    "overlay",
    "patch_colours",
    "patch_features",
    "patch_similarity",
    "position_similarity",
    "positions",
    "random_maps",
    "removal_curves",
    "rollout",
    "rollout_by_layer",
    "saliency",
    "similarity",
    "token_norms",
    "tokens",
]


def __getattr__(name: str) -> Any:
    # imported when first used: whoever wants a map does not wait for matplotlib
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail.figures' has no attribute {name!r}")
    return getattr(importlib.import_module(f"vitrail.figures.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
