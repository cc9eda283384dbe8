"""Deletion and insertion by hand-made models whose probabilities are known."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.figures.models import make, make_resnet, pictures_for
from vitrail import figures
from vitrail.errors import VitrailError
from vitrail.model import ResNetConfig


class Counting(nn.Module):
    """The logit of class 1 is the sum of the pixels; of class 0, nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.config = ResNetConfig(img_size=4, num_classes=2)
        self.factor = nn.Parameter(torch.ones(1))
        self.batches: list[int] = []

    def forward(self, pixels: Tensor) -> Tensor:
        self.batches.append(len(pixels))
        total = pixels.sum((1, 2, 3)) * self.factor
        return torch.stack([torch.zeros_like(total), total], dim=-1)


def test_patches_go_and_come_in_the_order_of_the_map() -> None:
    pixels = torch.zeros(1, 1, 4, 4)
    pixels[0, 0, :2, :2], pixels[0, 0, 2:, 2:] = 1.0, 0.25  # 4 at the first patch, 1 at the last, out of 5
    maps = torch.tensor([[[9.0, 1.0], [2.0, 7.0]]])
    curves = figures.removal_curves(Counting(), pixels, maps, 1, steps=4, batch_size=3)
    left = np.array([5.0, 1.0, 0.0, 0.0, 0.0])
    wanted = 1 / (1 + np.exp(-left))
    back = 1 / (1 + np.exp(-np.array([0.0, 4.0, 5.0, 5.0, 5.0])))
    assert curves.fractions.tolist() == [0, 0.25, 0.5, 0.75, 1]
    np.testing.assert_allclose(curves.deletion[0], wanted, rtol=1e-6)
    np.testing.assert_allclose(curves.insertion[0], back, rtol=1e-6)
    np.testing.assert_allclose(curves.deletion_area, [np.trapezoid(wanted, dx=0.25)], rtol=1e-6)
    np.testing.assert_allclose(curves.insertion_area, [np.trapezoid(back, dx=0.25)], rtol=1e-6)


def test_batches_are_as_large_as_asked_and_the_predicted_class_is_watched() -> None:
    model = Counting()
    pixels = torch.stack([torch.ones(1, 4, 4), -torch.ones(1, 4, 4)])
    curves = figures.removal_curves(model, pixels, torch.rand(2, 2, 2), steps=4, batch_size=4)
    assert curves.classes.tolist() == [1, 0]
    assert (curves.deletion[:, 0] > 0.99).all()
    torch.testing.assert_close(curves.deletion[:, -1], torch.full((2,), 0.5))
    assert model.batches == [2, 4, 4, 2, 4, 4, 2]


@pytest.mark.parametrize("kind", ["class token", "mean", "overlapping", "convolutions first", "not square"])
def test_the_ends_are_the_whole_picture_and_none(kind: str) -> None:
    model = make(kind).eval()
    pixels = pictures_for(model)
    curves = figures.removal_curves(model, pixels, figures.saliency(model, pixels), 2, steps=3)
    whole, none = (model(x).softmax(-1)[:, 2].detach() for x in (pixels, torch.zeros_like(pixels)))
    for first, last, line in ((whole, none, curves.deletion), (none, whole, curves.insertion)):
        torch.testing.assert_close(line[:, 0], first, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(line[:, -1], last, rtol=1e-4, atol=1e-6)


def test_a_resnet_is_judged_by_the_cells_of_its_map() -> None:
    model = make_resnet()
    pixels = pictures_for(model)
    curves = figures.removal_curves(model, pixels, figures.saliency(model, pixels), steps=2)
    assert curves.deletion.shape == (2, 3)


def test_random_order_is_a_function_of_its_seed() -> None:
    assert torch.equal(figures.random_maps((2, 3, 4), 7), figures.random_maps((2, 3, 4), 7))
    assert not torch.equal(figures.random_maps((2, 3, 4), 7), figures.random_maps((2, 3, 4), 8))


def test_maps_that_do_not_belong_to_the_pictures_are_refused() -> None:
    model = make()
    with pytest.raises(VitrailError, match="maps must be"):
        figures.removal_curves(model, pictures_for(model), torch.rand(3, 4, 4))
    with pytest.raises(VitrailError, match="steps and batch_size"):
        figures.removal_curves(model, pictures_for(model), torch.rand(2, 4, 4), steps=0)
