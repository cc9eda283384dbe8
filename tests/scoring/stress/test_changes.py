"""Turns, scales, styles and the adversarial patch, against closed forms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import vitrail
from vitrail.scoring.stress.adversary import Attack, attacked, squares
from vitrail.scoring.stress.dice import Dice
from vitrail.scoring.stress.geometry import rotated, scaled
from vitrail.scoring.stress.style import bands, joined, restyled, statistics


@pytest.mark.parametrize("quarter", [0, 1, 2, 3])
def test_quarter_turns_are_exact(quarter: int) -> None:
    pictures = torch.randn(2, 3, 14, 14)
    turned = rotated(pictures, torch.full((2,), 90.0 * quarter))
    assert (turned - torch.rot90(pictures, quarter, (2, 3))).abs().max() < 1e-5


def test_each_picture_turns_by_its_own_angle_and_keeps_its_shape() -> None:
    wide = torch.zeros(2, 1, 21, 41)
    wide[:, :, 10, 20:30] = 1  # a line from the middle to the right
    turned = rotated(wide, torch.tensor([90.0, -90.0]))
    assert turned[0, 0, 1:10, 20].mean() == pytest.approx(1, abs=1e-4)  # up
    assert turned[1, 0, 11:20, 20].mean() == pytest.approx(1, abs=1e-4)  # down
    assert turned.sum(dim=(1, 2, 3)).tolist() == pytest.approx([10, 10], rel=0.01)


def test_corners_that_turn_out_of_nowhere_are_the_mean() -> None:
    turned = rotated(torch.ones(1, 1, 20, 20), torch.tensor([45.0]))
    assert turned[0, 0, 0, 0] == 0
    assert turned[0, 0, 10, 10] == pytest.approx(1)


def test_a_scale_of_one_is_the_picture_and_a_smaller_one_stands_amid_the_mean() -> None:
    pictures = torch.randn(2, 3, 24, 24)
    assert (scaled(pictures, 1.0) - pictures).abs().max() < 1e-6
    small = scaled(torch.ones(1, 1, 24, 24), 0.5)
    assert small.sum() == pytest.approx(144, rel=1e-4)
    assert small[0, 0, 6:18, 6:18].min() == pytest.approx(1, abs=1e-4)
    large = scaled(pictures, 2.0)
    assert large.shape == pictures.shape
    assert large[..., 12, 12].sub(pictures[..., 11:13, 11:13].mean(dim=(2, 3))).abs().max() < 2


@given(st.integers(16, 70), st.integers(16, 70))
@settings(max_examples=15, deadline=None)
def test_bands_joined_are_the_picture(height: int, width: int) -> None:
    pictures = torch.rand(2, 3, height, width)
    parts = bands(pictures)
    assert [part.shape[-2] for part in parts[:2]] == [height, -(-height // 2)]
    assert (joined(parts) - pictures).abs().max() < 1e-5


def test_a_picture_in_its_own_style_or_with_no_strength_is_itself() -> None:
    pictures = torch.rand(3, 3, 64, 48)
    assert (restyled(pictures, statistics(pictures), 1.0) - pictures).abs().max() < 1e-4
    other = statistics(torch.rand(3, 3, 64, 48) ** 3)
    assert torch.equal(restyled(pictures, other, 0.0), pictures)


def test_a_style_brings_the_other_pictures_colour_and_contrast() -> None:
    torch.manual_seed(0)
    plain = 0.5 + 0.1 * F.interpolate(torch.randn(1, 3, 8, 8), 64, mode="bicubic") + 0.02 * torch.randn(1, 3, 64, 64)
    other = (torch.tensor([0.7, 0.4, 0.3])[:, None, None] + 0.05 * torch.randn(1, 3, 64, 64)).clamp(0, 1)
    changed = restyled(plain, statistics(other), 1.0)
    assert changed.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0.7, 0.4, 0.3], abs=0.01)
    for own, now, wanted in zip(bands(plain)[:2], bands(changed)[:2], bands(other)[:2], strict=True):
        assert abs(now.std() - wanted.std()) < 0.6 * abs(own.std() - wanted.std())


def test_squares_have_the_side_that_is_asked_for_and_lie_anywhere_inside() -> None:
    where = squares(Dice(torch.arange(4000), 0, "patch"), (20, 28), 0.25)
    assert (where.sum(dim=(1, 2, 3)) == 25).all()
    seen = where.any(dim=0)[0]
    assert seen.all()  # corners too
    rows, columns = where[7, 0].nonzero().unbind(dim=1)
    assert (rows.max() - rows.min(), columns.max() - columns.min()) == (4, 4)


class Linear(nn.Module):
    """Logits that are linear in the pixels: the best attack is known."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(2, 3 * 8 * 8))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.flatten(1) @ self.weight.T


def test_against_a_linear_model_the_attack_ends_at_the_best_corner_of_its_bounds() -> None:
    model, mean, std = (
        Linear(),
        torch.tensor([0.5, 0.4, 0.3])[:, None, None],
        torch.tensor([0.2, 0.3, 0.5])[:, None, None],
    )
    values = torch.rand(4, 3, 8, 8)
    labels = torch.tensor([0, 1, 0, 1])
    where = squares(Dice(torch.arange(4), 0, "patch"), (8, 8), 0.5)
    for eps in (0.1, 1.0):
        changed = attacked(model, (values - mean) / std, labels, where, mean, std, Attack(eps, 10)) * std + mean
        slope = (model.weight[1 - labels] - model.weight[labels]).view(4, 3, 8, 8)  # towards the other class
        best = (values + eps * slope.sign()).clamp(0, 1)
        assert torch.allclose(changed, torch.where(where, best, values), atol=1e-5)


def test_the_loss_climbs_with_steps_and_with_size_and_noise_does_less() -> None:
    torch.manual_seed(0)
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    model = vitrail.create("vit_ti16", zero_head=False, **small)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15)
    model.eval()
    zero, one = torch.zeros(3, 1, 1), torch.ones(3, 1, 1)
    pictures = torch.rand(8, 3, 32, 32)
    with torch.no_grad():
        labels = model(pictures).argmax(dim=1)

    def loss(changed: torch.Tensor) -> float:
        with torch.no_grad():
            return F.cross_entropy(model(changed), labels).item()

    dice = Dice(torch.arange(8), 0, "patch")
    by_steps = [
        loss(attacked(model, pictures, labels, squares(dice, (32, 32), 0.25), zero, one, Attack(0.5, n)))
        for n in (1, 3, 10)
    ]
    assert loss(pictures) < by_steps[0] < by_steps[2]
    assert by_steps[1] < by_steps[2]
    large = squares(dice, (32, 32), 0.5)
    attacked_large = attacked(model, pictures, labels, large, zero, one, Attack(0.5, 10))
    assert loss(attacked_large) > by_steps[2]
    noise = torch.where(large, (pictures + 0.5 * torch.randn_like(pictures).sign()).clamp(0, 1), pictures)
    assert loss(attacked_large) > loss(noise)
    assert torch.equal(attacked_large[~large.expand(-1, 3, -1, -1)], pictures[~large.expand(-1, 3, -1, -1)])
    assert (attacked_large - pictures).abs().max() <= 0.5 + 1e-6
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
