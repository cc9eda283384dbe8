"""Colours, likeness and lengths of tokens."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from tests.figures.models import KINDS, make, make_resnet, pictures_for
from vitrail import figures
from vitrail.errors import VitrailError


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_features_are_the_patches_tokens_under_the_norm(kind: str) -> None:
    model = make(kind).eval()
    pixels, config = pictures_for(model), model.config
    maps = figures.patch_features(model, pixels)
    tokens = model.forward_intermediates(pixels, 2, norm=True).tokens[2][:, config.num_prefix :]
    assert maps.shape == (2, 32, *config.grid)
    assert torch.equal(maps.flatten(2).transpose(1, 2), tokens)
    norms = figures.token_norms(model, pixels)
    assert norms.shape == (2, 3, *config.grid)
    first = model.forward_intermediates(pixels, 0).tokens[0][1, config.num_prefix].double()
    assert float(norms[1, 0, 0, 0]) == pytest.approx(float((first**2).sum() ** 0.5), rel=1e-5)


def test_colours_are_the_three_strongest_components_of_all_pictures_together() -> None:
    features = torch.randn(3, 24, 5, 4, generator=torch.Generator().manual_seed(0)) * torch.arange(24.0)[:, None, None]
    colours = figures.patch_colours(features)
    assert colours.shape == (3, 5, 4, 3)
    assert colours.min() == 0
    assert colours.max() == 1
    wanted = PCA(3, svd_solver="full").fit_transform(features.permute(0, 2, 3, 1).reshape(-1, 24).double().numpy())
    for channel in range(3):
        middle = (colours[..., channel].flatten() > 0) & (colours[..., channel].flatten() < 1)
        correlation = np.corrcoef(colours[..., channel].flatten()[middle], wanted[middle, channel])[0, 1]
        assert abs(correlation) > 0.999999


def test_colours_do_not_turn_when_they_are_made_again_and_equal_patches_have_equal_colours() -> None:
    features = torch.randn(1, 24, 4, 4)
    features[0, :, 1, 1] = features[0, :, 3, 2]
    colours = figures.patch_colours(features)
    assert torch.equal(colours[0, 1, 1], colours[0, 3, 2])
    torch.testing.assert_close(figures.patch_colours(features.flip(-1)), colours.flip(2), atol=1e-4, rtol=1e-4)


def test_likeness_is_the_cosine() -> None:
    features = torch.randn(2, 24, 3, 4, generator=torch.Generator().manual_seed(0))
    one, every = figures.patch_similarity(features, (2, 1)), figures.patch_similarity(features)
    torch.testing.assert_close(every[:, 2, 1], one)
    a, b = features[1, :, 2, 1].double(), features[1, :, 0, 3].double()
    assert float(one[1, 0, 3]) == pytest.approx(float(a @ b / a.norm() / b.norm()), abs=1e-6)
    torch.testing.assert_close(one[:, 2, 1], torch.ones(2))
    with pytest.raises(VitrailError, match="no patch in row 3, column 0: the grid is 3 x 4"):
        figures.patch_similarity(features, (3, 0))


def test_a_resnet_has_features_and_colours_but_no_tokens() -> None:
    model = make_resnet()
    pixels = pictures_for(model)
    assert figures.patch_colours(figures.patch_features(model, pixels)).shape == (2, 4, 4, 3)
    with pytest.raises(VitrailError, match="norms of tokens needs attention, which a ResNet has not"):
        figures.token_norms(model, pixels)
    with pytest.raises(VitrailError, match="leave out the layer"):
        figures.patch_features(model, pixels, 2)
