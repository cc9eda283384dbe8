"""The real DeiT-Tiny on real pictures."""

from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail import figures


@pytest.mark.slow
def test_what_attribution_removes_first_is_what_the_prediction_rests_on(deit_tiny: Path, imagenet_sample: Path) -> None:
    model = vitrail.load(deit_tiny)
    files = sorted(imagenet_sample.glob("*/*.JPEG"))[::100]
    pixels = torch.from_numpy(np.stack([model.preprocessing(file) for file in files]))
    maps = {
        "attribution": figures.attribution(model.model, pixels),
        "random": figures.random_maps((len(files), 14, 14)),
    }
    areas = {name: figures.removal_curves(model.model, pixels, one, steps=7) for name, one in maps.items()}
    assert areas["attribution"].deletion_area.mean() < areas["random"].deletion_area.mean() - 0.1
    assert areas["attribution"].insertion_area.mean() > areas["random"].insertion_area.mean()
