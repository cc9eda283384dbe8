"""Boxes that are blotted out: probability, area and aspect against torchvision's, cutout against its definition."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torchvision.transforms import v2

from vitrail.data.augmentation.mixing import inside
from vitrail.data.augmentation.policy import Augmentation, Drawn, draw
from vitrail.data.batch import Erasing

N, SIZE = 20_000, (96, 128)


def drawn(n: int = N, seed: int = 0, size: tuple[int, int] = SIZE, **settings) -> Drawn:
    index = torch.arange(n)
    return draw(Augmentation(**settings), seed, 0, index, torch.zeros_like(index), size)


@pytest.mark.parametrize("size", [(224, 224), (32, 48), (9, 200)])
@pytest.mark.parametrize("limits", [{}, {"erase_scale": (0.2, 0.9), "erase_ratio": (0.5, 1.0)}], ids=["usual", "large"])
def test_erased_boxes_are_distributed_as_torchvisions(size: tuple[int, int], limits: dict) -> None:
    plan = Augmentation(erase=1.0, **limits)
    box = drawn(4000, size=size, erase=1.0, **limits).erase.numpy()
    theirs = v2.RandomErasing(p=1.0, scale=plan.erase_scale, ratio=plan.erase_ratio)
    torch.manual_seed(0)
    picture = torch.empty(1, *size)
    params = [theirs.make_params([picture]) for _ in range(4000)]
    other = np.array([(p["j"], p["i"], p["w"], p["h"]) for p in params if p["v"] is not None]).reshape(-1, 4)
    wide, tall = box[:, 2] - box[:, 0], box[:, 3] - box[:, 1]
    found = (wide > 0) & (tall > 0)
    assert found.mean() == pytest.approx(len(other) / 4000, abs=0.03)  # where none fits, nothing is erased
    ours = np.stack([box[:, 0], box[:, 1], wide, tall], 1)[found]
    if not len(other):
        return
    for name, measure in {
        "left": lambda b: b[:, 0],
        "top": lambda b: b[:, 1],
        "area": lambda b: b[:, 2] * b[:, 3],
        "aspect": lambda b: b[:, 3] / np.maximum(b[:, 2], 1),
    }.items():
        assert stats.ks_2samp(measure(ours), measure(other)).pvalue > 1e-4, name


@given(height=st.integers(1, 300), width=st.integers(1, 300), seed=st.integers(0, 1000), cutout=st.floats(0, 1))
def test_boxes_lie_inside_the_picture(height: int, width: int, seed: int, cutout: float) -> None:
    found = drawn(50, seed=seed, size=(height, width), erase=1.0, cutout=cutout)
    for left, top, right, bottom in torch.cat([found.erase, found.cutout]).tolist():
        assert 0 <= left <= right <= width
        assert 0 <= top <= bottom <= height


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_erasing_is_as_frequent_as_said(probability: float) -> None:
    box = drawn(size=(224, 224), erase=probability).erase
    erased = (box[:, 2] > box[:, 0]) & (box[:, 3] > box[:, 1])
    assert erased.double().mean() == probability or stats.binomtest(int(erased.sum()), N, probability).pvalue > 1e-4
    assert (box[~erased] == 0).all()


def test_cutout_is_a_box_of_the_said_sides_around_any_pixel_cut_off_at_the_edges() -> None:
    height, width = 40, 60
    box = drawn(size=(height, width), cutout=0.3).cutout.numpy()
    left, top, right, bottom = box.T
    assert (right - left).max() == 18
    assert (bottom - top).max() == 12
    # every pixel is a centre: a box is as wide as those of its 18 columns around x that exist
    wanted = [min(width, x - 9 + 18) - max(0, x - 9) for x in range(width)]
    observed = np.bincount(right - left, minlength=19)
    expected = N * np.bincount(wanted, minlength=19) / width
    assert observed[expected == 0].sum() == 0
    assert stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue > 1e-4
    assert stats.pearsonr(left + right, top + bottom).pvalue > 1e-4


def test_no_cutout_is_an_empty_box() -> None:
    left, top, right, bottom = drawn(500).cutout.T
    assert ((right - left) * (bottom - top) == 0).all()


def test_whether_a_box_is_erased_does_not_depend_on_the_box() -> None:
    always, rarely = drawn(erase=1.0).erase, drawn(erase=0.2).erase
    erased = (rarely != 0).any(1)
    assert torch.equal(always[erased], rarely[erased])
    for measure in (lambda b: (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]), lambda b: b[:, 0], lambda b: b[:, 1]):
        assert stats.ks_2samp(measure(rarely[erased]), measure(always)).pvalue > 1e-4


# -- what is filled in


def test_a_box_becomes_the_mean_which_is_zero_and_nothing_else_changes() -> None:
    found = drawn(64, erase=0.5, cutout=0.3)
    values = torch.randn(64, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    new = Erasing((found.erase, found.cutout))(values)
    for k in range(64):
        wanted = values[k].clone()
        for left, top, right, bottom in (found.erase[k].tolist(), found.cutout[k].tolist()):
            wanted[:, top:bottom, left:right] = 0
        assert torch.equal(new[k], wanted)


def test_noise_is_standard_normal_in_the_erased_box_alone_and_a_function_of_the_sample() -> None:
    found = drawn(40, erase=1.0, cutout=0.2, erase_scale=(0.2, 0.3))
    erasing = Erasing((found.erase, found.cutout), found.noise)
    values = torch.full((40, 3, *SIZE), 7.0)
    new = erasing(values)
    outside = inside(found.erase, values) | inside(found.cutout, values)
    assert (new.masked_select(~outside) == 7).all()
    assert (new.masked_select(inside(found.cutout, values)) == 0).all()
    noise = new[(new != 7) & (new != 0)].numpy()
    assert stats.kstest(noise[:20_000], "norm").pvalue > 1e-4
    alone = Erasing((found.erase[3:4], found.cutout[3:4]), found.noise[3:4])(values[3:4])
    assert torch.equal(alone, new[3:4])
    assert not torch.equal(new[0], new[1])
    channels = inside(found.erase[:1], values[:1])[0, 0]
    assert not torch.equal(new[0, 0][channels], new[0, 1][channels])
