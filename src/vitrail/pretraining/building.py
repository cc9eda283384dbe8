"""What a recipe says, put together: the model around the encoder, its objective, the crops it is shown."""

from __future__ import annotations

from dataclasses import replace

import torch

from vitrail.classifier import Classifier
from vitrail.data.views import View
from vitrail.errors import ConfigError
from vitrail.model.vit import ViT
from vitrail.pictures import Preprocessing
from vitrail.pretraining.dino import Distilling, SelfDistillation
from vitrail.pretraining.mae import MaskedAutoencoder, Reconstruction
from vitrail.pretraining.mae_weights import decoder_shape, put_decoder, read_decoder
from vitrail.pretraining.masked import MaskedPrediction, MaskedPredictor
from vitrail.pretraining.masking import Places
from vitrail.training.feeding import Feeding
from vitrail.training.objective import Objective
from vitrail.training.parallel import World
from vitrail.training.recipe import Data, Distillation, Loss, Recipe

Learner = MaskedPredictor | MaskedAutoencoder | SelfDistillation


def check(recipe: Recipe) -> None:
    """Refuses settings that nothing would read."""
    plan, dino = recipe.augmentation, recipe.dino
    wrong = [
        (plan.mixes, "augmentation.mixup and cutmix mix labels, and there are none"),
        (recipe.loss != Loss(), "loss is for labels, and there are none"),
        (recipe.distillation != Distillation(), "distillation is for labels, and there are none"),
        (recipe.data.balanced != Data().balanced, "data.balanced is for labels, and there are none"),
        (bool(recipe.stages), "stages are for training with labels"),
        (dino is not None and recipe.ema > 0, "dino's teacher is the average of the weights, so ema is not needed"),
        (
            dino is not None and recipe.patience > 0,
            "patience needs a loss that says how good a model is; dino's does not",
        ),
        (dino is not None and (plan.erase > 0 or plan.cutout > 0), "dino's crops are not erased: no erase, no cutout"),
        (dino is not None and (plan.blur > 0 or plan.solarize > 0), "dino has its own blur and solarize, crop by crop"),
    ]
    for is_so, words in wrong:
        if is_so:
            raise ConfigError(f"recipe: {words}: leave it out")


def make_learner(recipe: Recipe, encoder: Classifier) -> Learner:
    """The model that learns, around the encoder's weights; what it adds is fresh."""
    vit = encoder.model
    if not isinstance(vit, ViT):
        raise ConfigError("a ResNet has no patches to learn from: choose a Vision Transformer")
    torch.manual_seed(recipe.seed + 1)
    model: Learner
    if recipe.mae is not None:
        model = MaskedAutoencoder(vit.config, recipe.mae)
    elif recipe.masked is not None:
        model = MaskedPredictor(vit.config, recipe.masked)
    else:
        assert recipe.dino is not None
        model = SelfDistillation(vit.config, recipe.dino)
        model.teacher.load_state_dict(vit.state_dict(), strict=False)
    model.load_state_dict(vit.state_dict(), strict=False)
    return model


def take_decoder(model: Learner, recipe: Recipe, start: str) -> str:
    """The decoder of a masked autoencoder that training starts from, if it has one; and what became of it, in words."""
    if not isinstance(model, MaskedAutoencoder):
        return ""
    assert recipe.mae is not None
    state, heads = read_decoder(start)
    if not state:
        return ", with a fresh decoder"
    wanted = {name: getattr(recipe.mae, name) for name in decoder_shape(state, heads)}
    if decoder_shape(state, heads) != wanted or state["decoder_pos_embed"].shape != model.decoder_pos_embed.shape:
        return ", with a fresh decoder, as the recipe's is of another shape"
    put_decoder(model, state)
    return ", with its decoder"


def views_of(recipe: Recipe, preprocessing: Preprocessing) -> tuple[Recipe, tuple[View, ...]]:
    """The recipe with the augmentation of the first crop, and the other crops."""
    dino = recipe.dino
    if dino is None:
        return recipe, ()
    first, second, small = (
        replace(recipe.augmentation, blur=blur, solarize=solarize)
        for blur, solarize in zip(dino.blur, dino.solarize, strict=True)
    )
    small = replace(small, crop="random-resized", scale=dino.local_scale)
    size = (dino.local_size, dino.local_size)
    views = [View(second, preprocessing.size, 1, 1)]
    views += [View(small, size, dino.local_crops, 2)] if dino.local_crops else []
    return replace(recipe, augmentation=first), tuple(views)


def make_objective(model: Learner, feeding: Feeding, world: World) -> Objective:
    if isinstance(model, SelfDistillation):
        assert feeding.recipe.dino is not None
        steps = feeding.schedule.steps_per_epoch
        return Distilling(model, feeding.recipe.dino, feeding.total_steps, steps, world)
    places = Places(feeding.recipe.seed, world.device, world.share)
    if isinstance(model, MaskedAutoencoder):
        return Reconstruction(model, places)
    return MaskedPrediction(model, places, feeding.preprocessing)
