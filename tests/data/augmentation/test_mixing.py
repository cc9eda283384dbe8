"""Mixup and CutMix: quantiles against SciPy's, arithmetic against torchvision's, and one result for any slicing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torchvision.transforms import v2

from vitrail.data.augmentation import Augmentation
from vitrail.data.augmentation.mixing import Mix, _beta, draw_mix

SIZE = (24, 32)
N = 4000
PLANS = {
    "mixup": Augmentation(mixup=0.8),
    "cutmix": Augmentation(cutmix=1.0),
    "both": Augmentation(mixup=0.8, cutmix=1.0),
    "sometimes": Augmentation(mixup=0.2, cutmix=0.5, mix_prob=0.3),
}


def mix(plan: Augmentation, n: int = N, seed: int = 0, epoch: int = 0, size: tuple[int, int] = SIZE) -> Mix:
    return draw_mix(plan, seed, epoch, torch.arange(n), size)


def pictures(n: int, size: tuple[int, int] = SIZE) -> torch.Tensor:
    return torch.randn(n, 3, *size, generator=torch.Generator().manual_seed(1))


# -- shares


@pytest.mark.parametrize(("alpha", "tolerance"), [
    (0.05, 1e-6), (0.1, 1e-6), (0.2, 1e-6), (0.4, 1e-6), (0.8, 1e-6), (1.0, 1e-9), (1.5, 1e-6), (2.0, 1e-5),
    (5.0, 1e-3), (20.0, 1e-2), (100.0, 1e-2),
])  # fmt: skip
def test_quantiles_are_scipys(alpha: float, tolerance: float) -> None:
    number = torch.linspace(0, 1, 20_001, dtype=torch.double)[:-1]
    ours, wanted = _beta(alpha, number).numpy(), stats.beta.ppf(number.numpy(), alpha, alpha)
    assert np.abs(ours - wanted).max() < tolerance
    middle = (number > 0.001) & (number < 0.999)  # beyond, the table's first cells are coarse where alpha is large
    assert np.abs(ours - wanted)[middle].max() < 2e-4
    assert (np.diff(ours) >= 0).all()


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 3.0])
def test_shares_of_mixup_follow_the_beta_distribution(alpha: float) -> None:
    shares = mix(Augmentation(mixup=alpha), 20_000).blend[::2].numpy()
    lower = shares[shares < 0.5]  # near 1 float32 has few numbers, and Beta(0.1, 0.1) much of its mass
    assert stats.binomtest(len(lower), len(shares)).pvalue > 1e-4
    assert stats.kstest(lower, lambda x: 2 * stats.beta.cdf(x, alpha, alpha)).pvalue > 1e-4


def test_an_alpha_of_any_size_gives_shares() -> None:
    number = torch.linspace(0, 1, 1001, dtype=torch.double)[:-1]
    for alpha in (1e-3, 1e3, 1e5):
        found = _beta(alpha, number)
        assert found.isfinite().all()
        assert found.min() >= 0
        assert found.max() <= 1
        assert found.mean() == pytest.approx(0.5, abs=0.01)


def test_boxes_are_distributed_as_torchvisions() -> None:
    torch.manual_seed(0)
    theirs = v2.CutMix(alpha=1.0, num_classes=2)
    picture = torch.empty(2, 3, *SIZE)
    wanted = np.array([theirs.make_params([picture])["box"] for _ in range(N)])
    ours = mix(PLANS["cutmix"], 2 * N).box[::2].numpy()
    for name, measure in {
        "area": lambda b: (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]),
        "x": lambda b: b[:, 0] + b[:, 2],
        "y": lambda b: b[:, 1] + b[:, 3],
        "left": lambda b: b[:, 0],
        "bottom": lambda b: b[:, 3],
    }.items():
        assert stats.ks_2samp(measure(ours), measure(wanted)).pvalue > 1e-4, name


@pytest.mark.parametrize("size", [(24, 32), (100, 60), (1, 1), (7, 3)])
def test_the_share_of_the_label_is_the_share_of_the_area_exactly(size: tuple[int, int]) -> None:
    found = mix(PLANS["cutmix"], size=size)
    left, top, right, bottom = found.box.T
    assert (found.box >= 0).all()
    assert (right <= size[1]).all()
    assert (bottom <= size[0]).all()
    area = ((right - left) * (bottom - top)).double()
    torch.testing.assert_close(found.share.double(), 1 - area / (size[0] * size[1]), rtol=0, atol=6e-8)
    ones = torch.ones(N, 1, *size)
    ones[1::2] = 0
    own = found.pixels(ones).mean((1, 2, 3))  # a pixel of 1 is of the first of a pair, of 0 of the second
    assert torch.allclose(own[::2], found.share[::2], atol=1e-6)
    assert torch.allclose(1 - own[1::2], found.share[1::2], atol=1e-6)


# -- arithmetic


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_pixels_and_targets_are_what_torchvision_makes_of_each_pair(plan: Augmentation) -> None:
    n, classes = 60, 5
    found, values, labels = mix(plan, n), pictures(n), torch.arange(n) % classes
    pixels, targets = found.pixels(values), found.targets(labels, classes)
    for first in range(0, n, 2):
        pair = slice(first, first + 2)
        params = {"labels": labels[pair], "batch_size": 2}
        box, share = found.box[first], float(found.share[first])
        if box.any():
            theirs, params = v2.CutMix(num_classes=classes), params | {"box": box.tolist(), "lam_adjusted": share}
            wanted = theirs.transform(values[pair], params)
            assert torch.equal(pixels[pair], wanted)
        else:
            theirs, params = v2.MixUp(num_classes=classes), params | {"lam": share}
            torch.testing.assert_close(pixels[pair], theirs.transform(values[pair], params), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(targets[pair], theirs.transform(params["labels"], params), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_the_two_of_a_pair_take_the_same_from_one_another(plan: Augmentation) -> None:
    found = mix(plan)
    for column in (found.share, found.blend, found.box):
        assert torch.equal(column[::2], column[1::2])
    mixed = found.partner != torch.arange(N)
    assert torch.equal(found.partner[mixed], (torch.arange(N) ^ 1)[mixed])
    assert torch.equal(found.partner[found.partner], torch.arange(N))
    values = pictures(N, (8, 8)).double()
    small = mix(plan, size=(8, 8))
    sums = small.pixels(values)
    torch.testing.assert_close(sums[::2] + sums[1::2], values[::2] + values[1::2])  # nothing is lost


def test_targets_sum_to_one_and_several_labels_are_mixed_too() -> None:
    found = mix(PLANS["both"], 50)
    targets = found.targets(torch.arange(50) % 7, 7)
    torch.testing.assert_close(targets.sum(1), torch.ones(50))
    assert targets.min() >= 0
    rows = (torch.rand(50, 7, generator=torch.Generator().manual_seed(0)) < 0.4).float()
    share = found.share[:, None]
    wanted = share * rows + (1 - share) * rows[found.partner]
    torch.testing.assert_close(found.targets(rows, 7), wanted)
    assert torch.equal(mix(Augmentation(mixup=1.0, mix_prob=0.0), 50).targets(rows, 7), rows)


# -- which, and how often


def test_only_what_was_asked_for_happens() -> None:
    mixup, cutmix = mix(PLANS["mixup"]), mix(PLANS["cutmix"])
    assert not mixup.box.any()
    assert (mixup.share == mixup.blend).all()
    assert (cutmix.blend == 1).all()
    both = mix(PLANS["both"])
    is_box = both.box[::2].any(1)
    cut = (both.blend[::2] == 1).sum().item()
    assert stats.binomtest(cut, N // 2, 0.5).pvalue > 1e-4  # one or the other, evenly
    assert not (is_box & (both.blend[::2] < 1)).any()


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.8, 1.0])
def test_pairs_are_mixed_as_often_as_said_and_others_are_left_bit_for_bit(probability: float) -> None:
    found = mix(Augmentation(mixup=0.8, cutmix=1.0, mix_prob=probability))
    alone = found.partner == torch.arange(N)
    mixed = int((~alone[::2]).sum())
    assert mixed / (N / 2) == probability or stats.binomtest(mixed, N // 2, probability).pvalue > 1e-4
    values, labels = pictures(N, (4, 4)), torch.arange(N) % 10
    small = mix(Augmentation(mixup=0.8, cutmix=1.0, mix_prob=probability), size=(4, 4))
    assert torch.equal(small.pixels(values)[alone], values[alone])
    assert torch.equal(small.targets(labels, 10)[alone], torch.nn.functional.one_hot(labels, 10).float()[alone])
    assert (found.share[alone] == 1).all()


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@given(pairs=st.integers(1, 40), parts=st.integers(1, 8), start=st.integers(0, 10**6), seed=st.integers(0, 2**40))
def test_any_slicing_into_even_parts_mixes_the_same(plan, pairs: int, parts: int, start: int, seed: int) -> None:
    n = 2 * pairs * parts
    place = torch.arange(2 * start, 2 * start + n)
    values, labels = pictures(n, (6, 5)), torch.arange(n) % 3
    whole = draw_mix(plan, seed, 1, place, (6, 5))
    cut = [slice(k, k + 2 * pairs) for k in range(0, n, 2 * pairs)]
    several = [draw_mix(plan, seed, 1, place[part], (6, 5)) for part in cut]
    of_whole = [whole.part(part.start, part.stop) for part in cut]
    for mixes in (several, of_whole):
        pixels = [one.pixels(values[part]) for one, part in zip(mixes, cut, strict=True)]
        targets = [one.targets(labels[part], 3) for one, part in zip(mixes, cut, strict=True)]
        assert torch.equal(torch.cat(pixels), whole.pixels(values))
        assert torch.equal(torch.cat(targets), whole.targets(labels, 3))


@pytest.mark.parametrize("plan", [PLANS["mixup"], PLANS["cutmix"], PLANS["both"]])
@pytest.mark.parametrize("n", [1, 3, 9])
def test_the_last_of_an_odd_number_stays_itself(plan: Augmentation, n: int) -> None:
    for seed in range(20):
        found, values, labels = mix(plan, n, seed), pictures(n), torch.arange(n)
        assert found.partner[-1] == n - 1
        assert torch.equal(found.pixels(values)[-1], values[-1])
        assert torch.equal(found.targets(labels, n)[-1], torch.eye(n)[-1])
        assert found.share[-1] == 1


def test_seeds_and_epochs_mix_differently_and_nobody_is_fine() -> None:
    first = mix(PLANS["both"])
    assert not torch.equal(first.share, mix(PLANS["both"], seed=1).share)
    assert not torch.equal(first.share, mix(PLANS["both"], epoch=1).share)
    assert len(mix(PLANS["both"], 0).pixels(pictures(0))) == 0


def test_the_alpha_of_mixup_does_not_change_the_boxes_of_cutmix() -> None:
    one, other = mix(PLANS["both"]), mix(Augmentation(mixup=0.1, cutmix=1.0))
    assert torch.equal(one.box, other.box)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_mixes_the_same() -> None:
    for plan in PLANS.values():
        place = torch.arange(2000)
        here, there = draw_mix(plan, 0, 0, place, SIZE), draw_mix(plan, 0, 0, place.cuda(), SIZE)
        assert torch.equal(here.box, there.box.cpu())
        assert torch.equal(here.partner, there.partner.cpu())
        torch.testing.assert_close(here.blend, there.blend.cpu(), rtol=0, atol=1e-7)
