"""Where a training starts from, in this order: its own checkpoint, a given model, pretrained weights, scratch.

The first is the loop's (`Trainer.resume`); this file has the others.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from vitrail.classifier import Classifier, default_preprocessing
from vitrail.errors import ConfigError, VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.zoo import configure, create
from vitrail.pictures import Preprocessing
from vitrail.training.recipe import Recipe
from vitrail.weights import hub

# What is fine-tuned where neither weights nor a model were asked for, by the size of the pictures' shorter side.
PRETRAINED = {
    224: "hf:timm/vit_small_patch16_224.augreg_in21k_ft_in1k",
}


def start_model(recipe: Recipe, classes: Sequence[str], start: str | Classifier | None) -> tuple[Classifier, str]:
    """A classifier for these classes, and a line that says where its weights are from."""
    if start is not None:
        return _given(recipe, classes, start)
    changes: dict[str, Any] = {**recipe.architecture, "num_classes": len(classes)}
    if recipe.img_size is not None:
        changes["img_size"] = recipe.img_size
    if recipe.stages:
        changes["dynamic_img_size"] = True
    config = configure(recipe.model, **changes)
    torch.manual_seed(recipe.seed)
    model = create(config)
    pixels = _pixels(recipe, default_preprocessing(config, recipe.model))
    count = sum(parameter.numel() for parameter in model.parameters())
    kind = f"{recipe.model}, changed," if recipe.architecture else recipe.model
    hint = "; pretrained weights would help (--from MODEL)" if min(config.img_size) >= min(PRETRAINED) else ""
    return Classifier(model, pixels, classes), f"{kind} with {count:,} parameters from scratch{hint}"


def _given(recipe: Recipe, classes: Sequence[str], start: str | Classifier) -> tuple[Classifier, str]:
    """Fine-tuning: the weights of another model, with a fresh head unless the classes are the same."""
    known = {name: value for name, value in recipe.architecture.items() if name in NOISE}
    strange = sorted(set(recipe.architecture) - set(NOISE))
    if strange:
        raise ConfigError(
            f"architecture.{strange[0]} cannot be changed when training starts from a model: leave it out"
        )
    options: dict[str, Any] = {} if recipe.img_size is None else {"img_size": recipe.img_size}
    torch.manual_seed(recipe.seed)
    classifier = start if isinstance(start, Classifier) else Classifier.load(start, **options)
    pixels, model = classifier.preprocessing, classifier.model
    if classifier is start:
        model = copy.deepcopy(model)  # the caller's stays as it is
        if recipe.img_size is not None:
            model.set_image_size((recipe.img_size, recipe.img_size))
            pixels = dataclasses.replace(pixels, size=(recipe.img_size, recipe.img_size))
    config = model.config
    if known and isinstance(config, ViTConfig):
        fresh = create(config.replace(**known))
        fresh.load_state_dict(model.state_dict())
        model = fresh
    if recipe.stages and isinstance(config, ViTConfig):
        model.config = model.config.replace(dynamic_img_size=True)
    same = list(classifier.classes) == list(classes)
    if not same:
        model.reset_head(len(classes))
    name = "the given model" if isinstance(start, Classifier) else str(start)
    words = "with its head" if same else f"with a fresh head for {len(classes)} classes"
    return Classifier(model, _pixels(recipe, pixels), classes), f"{name}, {words}"


NOISE = ("dropout", "attn_dropout", "embed_dropout", "head_dropout", "drop_path")  # what holds no weights


def _pixels(recipe: Recipe, pixels: Preprocessing) -> Preprocessing:
    asked = {name: value for name, value in dataclasses.asdict(recipe.pixels).items() if value is not None}
    return dataclasses.replace(pixels, **asked)


def default_weights(recipe: Recipe) -> str | None:
    """The address of pretrained weights for photographs, if they can be had: in the cache, or over the network."""
    size = min(configure(recipe.model).img_size) if recipe.img_size is None else recipe.img_size
    address = next((weights for least, weights in PRETRAINED.items() if size >= least), None)
    try:
        if address is not None:
            hub.fetch(address)
    except VitrailError:
        return None
    return address
