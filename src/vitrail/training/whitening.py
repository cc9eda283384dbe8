"""Patches made uncorrelated before their projection, by the statistics of the training pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.classifier import Classifier
from vitrail.data.fetching import Fetcher, Task
from vitrail.data.source import Subset
from vitrail.errors import ConfigError, DataError
from vitrail.pictures import Preprocessing
from vitrail.training.recipe import Recipe
from vitrail.training.start import Start

PICTURES, PIXELS = 2048, 2**24  # that are looked at, at most
FLOOR = 1e-2  # of the mean variance: what is added to every one, so that noise is not blown up


def whiten_as_asked(recipe: Recipe, start: Start | Mapping[str, Any], fresh: Classifier, train: Subset) -> None:
    """If the recipe says so, and the weights do not come from a checkpoint."""
    if not recipe.whiten or not isinstance(start, Start):
        return
    if start != Start():
        raise ConfigError("whiten is for models from scratch: leave it out, --no-whiten, to start from another")
    whiten(fresh.model, train, fresh.preprocessing)


@torch.no_grad()
def whiten(model: nn.Module, train: Subset, preprocessing: Preprocessing) -> None:
    """Turns the projection P of a fresh model into P W, where W makes patches of training pictures uncorrelated.

    Neighbouring pixels are nearly equal, so without it most of the projection looks at brightness alone.
    """
    proj = getattr(getattr(model, "patch_embed", None), "proj", None)
    if not isinstance(proj, nn.Conv2d) or proj.kernel_size != proj.stride or proj.in_channels > 4:
        raise ConfigError("whiten needs a model that cuts the picture itself into patches: leave it out")
    count = min(PICTURES, PIXELS // math.prod(preprocessing.size) + 1, len(train))
    rows = np.linspace(0, len(train) - 1, count).astype(np.int64)
    still = np.zeros_like(rows)
    batch = Fetcher(train, preprocessing, None, 0, False)[Task(0, 0, rows, still, still)]
    if isinstance(batch, Exception):
        raise batch
    pictures = batch.inputs(preprocessing)[batch.valid]
    patches = nn.functional.unfold(pictures.double(), proj.kernel_size, stride=proj.stride)
    if torch.equal(patches, patches[:1, :, :1].expand_as(patches)):
        raise DataError(
            f"whiten: all patches of the {len(pictures)} pictures that were looked at are the same: "
            "are they all of one colour? check them, or leave it out, --no-whiten"
        )
    turned = whitening(patches)
    weight = proj.weight.flatten(1)
    proj.weight.copy_((weight.double() @ turned.to(weight.device)).to(weight.dtype).view_as(proj.weight))


def whitening(patches: torch.Tensor) -> torch.Tensor:
    """The symmetric square root of the inverse covariance of patches (pictures, numbers, patches), float64."""
    rows = patches.movedim(1, -1).flatten(0, 1)
    covariance = torch.cov(rows.mT)
    values, vectors = torch.linalg.eigh(covariance)
    scale = (values.clamp(min=0) + FLOOR * values.mean()).rsqrt()
    return (vectors * scale) @ vectors.mT
