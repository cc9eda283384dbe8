"""Where a training starts from: a given model, a shallower one that grows, pretrained weights, or scratch.

A run that goes on needs none of them: `shape_of` says what its model is, and the loop fills it from a checkpoint.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vitrail.classifier import Classifier, default_preprocessing
from vitrail.errors import ConfigError, VitrailError
from vitrail.model.config import NOISE, ResNetConfig, ViTConfig
from vitrail.model.growing import grow
from vitrail.model.vit import ViT
from vitrail.model.zoo import configure, create
from vitrail.pictures import Preprocessing
from vitrail.training.recipe import Recipe
from vitrail.weights import hub

# What is fine-tuned where neither weights nor a model were asked for, by the size of the pictures' shorter side.
PRETRAINED = {
    224: "hf:timm/vit_small_patch16_224.augreg_in21k_ft_in1k",
}


@dataclass(frozen=True)
class Start:
    """The model that is fine-tuned, or the shallower one that grows; neither: scratch."""

    model: str | Classifier | None = None
    grow: str | Classifier | None = None

    def __post_init__(self) -> None:
        if self.model is not None and self.grow is not None:
            raise ConfigError("--from and --grow-from exclude each other: a training starts from one model")


def start_model(recipe: Recipe, classes: Sequence[str], start: Start) -> tuple[Classifier, str]:
    """A classifier for these classes, and a line that says where its weights are from."""
    classifier, words = _started(recipe, classes, start)
    if any(stage.patch_drop for stage in recipe.stages) and not isinstance(classifier.model, ViT):
        raise ConfigError("stages: patch_drop is for Vision Transformers: a ResNet has no patches to leave out")
    return classifier, words


def _started(recipe: Recipe, classes: Sequence[str], start: Start) -> tuple[Classifier, str]:
    if start.model is not None:
        return _given(recipe, classes, start.model)
    config = configured(recipe, classes)
    torch.manual_seed(recipe.seed)
    if start.grow is not None:
        return _grown(recipe, classes, config, start.grow)
    model = create(config)
    pixels = _pixels(recipe, default_preprocessing(config, recipe.model))
    count = sum(parameter.numel() for parameter in model.parameters())
    kind = f"{recipe.model}, changed," if recipe.architecture else recipe.model
    hint = "; pretrained weights would help (--from MODEL)" if min(config.img_size) >= min(PRETRAINED) else ""
    return Classifier(model, pixels, classes), f"{kind} with {count:,} parameters from scratch{hint}"


def configured(recipe: Recipe, classes: Sequence[str]) -> ViTConfig | ResNetConfig:
    """The architecture that the recipe describes."""
    changes: dict[str, Any] = {**recipe.architecture, "num_classes": len(classes)}
    if recipe.img_size is not None:
        changes["img_size"] = recipe.img_size
    if _has_sizes(recipe):
        changes["dynamic_img_size"] = True
    return configure(recipe.model, **changes)


def _grown(
    recipe: Recipe, classes: Sequence[str], config: ViTConfig | ResNetConfig, start: str | Classifier
) -> tuple[Classifier, str]:
    """Shallow to deep: the recipe's model, which at first answers as the given shallower one does."""
    given = start if isinstance(start, Classifier) else Classifier.load(start, img_size=config.img_size)
    shallow = given.model
    if not isinstance(shallow, ViT) or not isinstance(config, ViTConfig):
        raise ConfigError("only a ViT grows, from a ViT: a ResNet has no blocks that could be silent")
    if shallow.config.img_size != config.img_size:
        shallow = copy.deepcopy(shallow)  # the caller's stays as it is
        shallow.set_image_size(config.img_size)
    same = list(given.classes) == list(classes)
    model = grow(shallow, config, keep_head=same)
    pixels = _pixels(recipe, dataclasses.replace(given.preprocessing, size=config.img_size))
    name = "the given model" if given is start else str(start)
    head = "with its head" if same else f"with a fresh head for {len(classes)} classes"
    words = f"{name}, {head}, grown from {shallow.config.depth} to {config.depth} blocks"
    return Classifier(model, pixels, classes), words


def shape_of(classifier: Classifier) -> dict[str, Any]:
    """All of a model but its weights and the names of its classes, as JSON."""
    config = classifier.model.config
    kind = "resnet" if isinstance(config, ResNetConfig) else "vit"
    return {"kind": kind, "config": config.to_json(), "preprocessing": classifier.preprocessing.to_json()}


def empty_model(shape: Mapping[str, Any], classes: Sequence[str]) -> Classifier:
    """A classifier of this shape, whose weights are yet to come."""
    kind = ResNetConfig if shape["kind"] == "resnet" else ViTConfig
    model = create(kind.from_json(shape["config"]))
    return Classifier(model, Preprocessing.from_json(shape["preprocessing"]), classes)


def _given(recipe: Recipe, classes: Sequence[str], start: str | Classifier) -> tuple[Classifier, str]:
    """Fine-tuning: the weights of another model, with a fresh head unless the classes are the same."""
    known = {name: value for name, value in recipe.architecture.items() if name in NOISE}
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
    asked = {name: value for name, value in recipe.architecture.items() if name not in NOISE}
    strange = [name for name in sorted(asked) if not _is_so(config, name, asked[name])]
    if strange:
        raise ConfigError(
            f"architecture.{strange[0]} cannot be changed when training starts from a model: leave it out"
        )
    if known and isinstance(config, ViTConfig):
        fresh = create(config.replace(**known))
        fresh.load_state_dict(model.state_dict())
        model = fresh
    if _has_sizes(recipe) and isinstance(config, ViTConfig):
        model.config = model.config.replace(dynamic_img_size=True)
    same = list(classifier.classes) == list(classes)
    if not same:
        model.reset_head(len(classes))
    name = "the given model" if isinstance(start, Classifier) else str(start)
    words = "with its head" if same else f"with a fresh head for {len(classes)} classes"
    return Classifier(model, _pixels(recipe, pixels), classes), f"{name}, {words}"


def _has_sizes(recipe: Recipe) -> bool:
    return any(stage.img_size is not None for stage in recipe.stages)


def _is_so(config: ViTConfig | ResNetConfig, name: str, value: Any) -> bool:
    try:
        return config.replace(**{name: value}) == config
    except ConfigError:  # it would not even be a model
        return False


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
