"""What is drawn for a sample: frequencies, ranges, boxes, and that one setting leaves the draws of another alone."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torchvision.transforms import v2

from vitrail.data.augmentation.autoaugment import POLICIES
from vitrail.data.augmentation.ops import AUTOAUGMENT, RANDAUGMENT, Op, trivialaugment, values
from vitrail.data.augmentation.plan import Augmentation
from vitrail.data.augmentation.policy import Drawn, draw
from vitrail.errors import ConfigError

N, SIZE = 20_000, (96, 128)
ALL = ("none", "randaugment", "trivialaugment", "autoaugment-imagenet", "autoaugment-cifar10", "three-augment")


def drawn(n: int = N, seed: int = 0, epoch: int = 0, size: tuple[int, int] = SIZE, **settings) -> Drawn:
    index = torch.arange(n)
    return draw(Augmentation(**settings), seed, epoch, index, torch.zeros_like(index), size)


def fair(hits: torch.Tensor, probability: float) -> bool:
    return stats.binomtest(int(hits.sum()), hits.numel(), probability).pvalue > 1e-4


def equal(one: Drawn, other: Drawn, *, but: tuple[str, ...] = ()) -> bool:
    return all(torch.equal(column, getattr(other, name)) for name, column in vars(one).items() if name not in but)


# -- policies


def test_randaugments_operations_are_equally_frequent_and_applied_as_often_as_said() -> None:
    for op_prob in (0.0, 0.3, 0.5, 1.0):
        ops = drawn(policy="randaugment", num_ops=2, op_prob=op_prob).ops
        applied = ops != Op.IDENTITY
        assert fair(applied, op_prob) if 0 < op_prob < 1 else applied.all() == bool(op_prob)
        if op_prob:
            counts = np.bincount(ops[applied].numpy(), minlength=19)[list(RANDAUGMENT)]
            assert counts.sum() == applied.sum()
            assert stats.chisquare(counts).pvalue > 1e-4


def test_randaugments_slots_are_independent() -> None:
    ops = drawn(policy="randaugment", op_prob=1.0).ops
    table = np.zeros((19, 19))
    np.add.at(table, (ops[:, 0].numpy(), ops[:, 1].numpy()), 1)
    used = list(RANDAUGMENT)
    assert stats.chi2_contingency(table[np.ix_(used, used)]).pvalue > 1e-4


@pytest.mark.parametrize(("magnitude", "std"), [(5.0, 0.5), (5.0, 1.5), (9.0, 0.0), (9.0, 0.5), (0.0, 0.0)])
def test_randaugments_levels_are_normal_around_the_magnitude_and_end_at_ten(magnitude: float, std: float) -> None:
    found = drawn(40_000, policy="randaugment", op_prob=1.0, magnitude=magnitude, magnitude_std=std)
    level = 10 * found.values[found.ops == Op.ROTATE] / 30
    assert magnitude == 0 or fair(level > 0, 0.5)  # the sign
    level = level.abs().numpy()
    assert level.max() <= 10 + 1e-12
    if std == 0:
        assert np.allclose(level, magnitude)
    else:
        inner = level[level < 10 - 1e-9]
        wanted = stats.truncnorm(-magnitude / std, (10 - magnitude) / std, magnitude, std)
        assert stats.kstest(inner, wanted.cdf).pvalue > 1e-4
        beyond = stats.norm.sf((10 - magnitude) / std)
        assert stats.binomtest(len(level) - len(inner), len(level), beyond).pvalue > 1e-4


def test_a_magnitude_above_ten_is_as_strong_as_it_says() -> None:
    found = drawn(policy="randaugment", op_prob=1.0, magnitude=15.0, magnitude_std=0.0)
    assert np.allclose(found.values[found.ops == Op.ROTATE].abs(), 45)


def test_trivialaugment_draws_one_operation_and_one_of_31_strengths_evenly() -> None:
    found = drawn(60_000, policy="trivialaugment")
    assert found.ops.shape == (60_000, 1)
    space = trivialaugment(*SIZE)
    counts = np.bincount(found.ops[:, 0].numpy(), minlength=19)[list(space)]
    assert counts.sum() == 60_000
    assert stats.chisquare(counts).pvalue > 1e-4
    turns = found.values[found.ops == Op.ROTATE].numpy()
    steps = np.round(turns / 4.5)
    assert np.allclose(turns, 4.5 * steps)
    counts = np.bincount(np.abs(steps).astype(int), minlength=31)
    assert len(counts) == 31
    assert stats.chisquare(counts).pvalue > 1e-4
    assert stats.binomtest(int((steps > 0).sum()), int((steps != 0).sum())).pvalue > 1e-4


@pytest.mark.parametrize("name", POLICIES)
def test_autoaugment_draws_its_pairs_evenly_with_their_probabilities(name: str) -> None:
    found = drawn(50_000, policy=f"autoaugment-{name}")
    expected = np.zeros((19, 19))
    for (first, chance, _), (second, other, _) in POLICIES[name]:
        expected[first, second] += chance * other / 25
        expected[first, 0] += chance * (1 - other) / 25
        expected[0, second] += (1 - chance) * other / 25
        expected[0, 0] += (1 - chance) * (1 - other) / 25
    table = np.zeros((19, 19))
    np.add.at(table, (found.ops[:, 0].numpy(), found.ops[:, 1].numpy()), 1)
    possible = expected > 0
    assert table[~possible].sum() == 0
    assert stats.chisquare(table[possible], 50_000 * expected[possible]).pvalue > 1e-4


@pytest.mark.parametrize("name", POLICIES)
def test_autoaugments_levels_and_signs_are_those_of_the_table(name: str) -> None:
    found = drawn(policy=f"autoaugment-{name}")
    for slot in (0, 1):
        for op in {pair[slot][0] for pair in POLICIES[name] if pair[slot][1] > 0}:
            levels = torch.tensor([pair[slot][2] for pair in POLICIES[name] if pair[slot][0] == op and pair[slot][1]])
            n = len(levels)
            both = [
                values(AUTOAUGMENT, torch.full((n,), int(op)), levels.double() / 9, torch.full((n,), sign).double())
                for sign in (1.0, -1.0)
            ]
            seen = set(np.round(found.values[:, slot][found.ops[:, slot] == op].tolist(), 9))
            assert seen == set(np.round(torch.cat(both).tolist(), 9))


def test_three_augment_is_grey_solarize_or_blur_with_a_uniform_radius() -> None:
    found = drawn(policy="three-augment")
    counts = np.bincount(found.ops[:, 0].numpy(), minlength=19)
    assert counts.sum() == counts[[Op.GREY, Op.SOLARIZE, Op.BLUR]].sum()
    assert stats.chisquare(counts[[Op.GREY, Op.SOLARIZE, Op.BLUR]]).pvalue > 1e-4
    assert set(found.values[found.ops == Op.SOLARIZE].tolist()) == {128.0}
    assert stats.kstest(found.values[found.ops == Op.BLUR].numpy(), stats.uniform(0.1, 1.9).cdf).pvalue > 1e-4


@pytest.mark.parametrize("policy", ALL)
def test_what_is_drawn_is_among_what_is_possible(policy) -> None:
    plan = {"policy": policy, "brightness": 0.3, "hue": 0.1}
    ops = set(drawn(5000, **plan).ops.unique().tolist())
    assert ops - {Op.IDENTITY} == Augmentation(**plan).possible_ops()


def test_grey_blur_and_solarize_come_with_their_chances_one_after_the_other() -> None:
    found = drawn(20_000, grey=0.2, blur=0.5, solarize=0.1)
    assert found.ops.shape[1] == 3
    for slot, (op, chance) in enumerate(((Op.GREY, 0.2), (Op.BLUR, 0.5), (Op.SOLARIZE, 0.1))):
        came = found.ops[:, slot] == op
        assert ((found.ops[:, slot] == Op.IDENTITY) | came).all()
        assert abs(came.double().mean() - chance) < 4 * (chance * (1 - chance) / 20_000) ** 0.5
    blurs = found.values[:, 1][found.ops[:, 1] == Op.BLUR]
    assert stats.kstest(blurs.numpy(), stats.uniform(0.1, 1.9).cdf).pvalue > 1e-4
    both = ((found.ops[:, 0] == Op.GREY) & (found.ops[:, 1] == Op.BLUR)).double().mean()
    assert abs(both - 0.1) < 0.01  # one says nothing about the other


def test_colour_jitter_comes_as_a_whole_or_not_at_all() -> None:
    found = drawn(20_000, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, jitter_prob=0.8)
    count = (found.ops != Op.IDENTITY).sum(1)
    assert set(count.tolist()) == {0, 4}
    assert abs((count == 4).double().mean() - 0.8) < 4 * (0.16 / 20_000) ** 0.5


@pytest.mark.parametrize("policy", ALL)
def test_each_slot_draws_from_its_own_operations(policy) -> None:
    plan = {"policy": policy, "brightness": 0.3, "hue": 0.1, "grey": 0.5, "blur": 0.5, "solarize": 0.5}
    found, slots = drawn(2000, **plan), Augmentation(**plan).slots()
    assert found.ops.shape[1] == len(slots)
    for column, slot in zip(found.ops.unbind(1), slots, strict=True):
        assert set(column.unique().tolist()) - {Op.IDENTITY} <= slot


# -- flips and colour jitter


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 1.0])
def test_flips_are_as_frequent_as_said_and_independent(probability: float) -> None:
    found = drawn(hflip=probability, vflip=probability)
    for flips in (found.hflip, found.vflip):
        assert flips.double().mean() == probability or fair(flips, probability)
    assert fair(found.hflip & found.vflip, probability**2)


JITTERS = {"brightness": Op.BRIGHTNESS, "contrast": Op.CONTRAST, "saturation": Op.COLOR, "hue": Op.HUE}


@pytest.mark.parametrize("setting", JITTERS)
@pytest.mark.parametrize("most", [0.2, 0.5, 1.5])
def test_jitter_is_uniform_in_torchvisions_range(setting: str, most: float) -> None:
    most = min(most, 0.5) if setting == "hue" else most
    found = drawn(**{setting: most})
    low, high = getattr(v2.ColorJitter(**{setting: most}), setting)
    assert (found.ops == JITTERS[setting]).all()
    assert stats.kstest(found.values[:, 0].numpy(), stats.uniform(low, high - low).cdf).pvalue > 1e-4


def test_jitters_come_in_every_order_equally_often() -> None:
    found = drawn(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    orders, counts = np.unique(found.ops.numpy(), axis=0, return_counts=True)
    assert len(orders) == math.factorial(4)
    assert stats.chisquare(counts).pvalue > 1e-4
    assert all(sorted(order) == sorted(JITTERS.values()) for order in orders.tolist())


def test_switching_a_jitter_on_leaves_the_others_and_their_order_alone() -> None:
    both = drawn(contrast=0.4, hue=0.1)
    more = drawn(contrast=0.4, hue=0.1, brightness=0.4, saturation=0.9)
    kept = (more.ops == Op.CONTRAST) | (more.ops == Op.HUE)
    assert torch.equal(more.ops[kept].view(-1, 2), both.ops)
    assert torch.equal(more.values[kept].view(-1, 2), both.values)


# -- draws as a function


@pytest.mark.parametrize("policy", ALL)
@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 5)), min_size=1, max_size=12), st.data())
def test_a_sample_drawn_alone_equals_the_same_sample_drawn_among_others(policy, samples, data) -> None:
    plan = Augmentation(policy=policy, brightness=0.4, hue=0.1, erase=0.5, cutout=0.2)
    index, repeat = torch.tensor(samples).T
    together = draw(plan, 4, 2, index, repeat, SIZE)
    at = data.draw(st.integers(0, len(samples) - 1))
    part = slice(at, at + 1)
    assert equal(draw(plan, 4, 2, index[part], repeat[part], SIZE), together[part])


SETTINGS = {
    "crop": "pad", "scale": (0.5, 1.0), "ratio": (1.0, 1.0), "padding": 9, "padding_mode": "constant",
    "interpolation": "bilinear", "hflip": 0.1, "alternate": True, "vflip": 0.7,
    "policy": "trivialaugment", "num_ops": 3, "magnitude": 3.0,
    "magnitude_std": 0.0, "op_prob": 1.0, "brightness": 0.9, "contrast": 0.9, "saturation": 0.9, "hue": 0.4,
    "jitter_prob": 0.5, "grey": 0.2, "blur": 0.3, "solarize": 0.4,
    "erase": 0.9, "erase_scale": (0.1, 0.2), "erase_ratio": (1.0, 1.0), "erase_fill": "noise", "cutout": 0.9,
    "mixup": 0.8, "cutmix": 1.0, "mix_prob": 0.2, "repeats": 3,
}  # fmt: skip
DECIDES = {
    "hflip": ("hflip",), "alternate": ("hflip",), "vflip": ("vflip",), "erase": ("erase",), "erase_scale": ("erase",),
    "erase_ratio": ("erase",), "cutout": ("cutout",),
    **dict.fromkeys(("policy", "num_ops", "magnitude", "magnitude_std", "op_prob"), ("ops", "values")),
    **dict.fromkeys(("brightness", "contrast", "saturation", "hue"), ("ops", "values")), "jitter_prob": ("ops",),
    **dict.fromkeys(("grey", "blur", "solarize"), ("ops", "values")),
}  # fmt: skip


def test_every_setting_is_in_the_next_test() -> None:
    assert set(SETTINGS) == {field.name for field in dataclasses.fields(Augmentation)}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_changes_the_draws_it_is_for_and_no_others(name: str) -> None:
    usual = {"policy": "randaugment", "brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.1}
    usual |= {"erase": 0.25, "cutout": 0.3, "vflip": 0.2}
    before, after = (drawn(300, epoch=1, **settings) for settings in (usual, usual | {name: SETTINGS[name]}))
    assert equal(before, after, but=DECIDES.get(name, ()))
    for column in DECIDES.get(name, ()):
        one, other = getattr(before, column), getattr(after, column)
        assert one.shape != other.shape or not torch.equal(one, other) or column == "ops"


def test_a_policy_leaves_the_colour_jitter_alone_and_more_operations_the_first_ones() -> None:
    with_policy = drawn(500, policy="randaugment", num_ops=3, brightness=0.4, contrast=0.4)
    without = drawn(500, brightness=0.4, contrast=0.4)
    fewer = drawn(500, policy="randaugment", num_ops=1)
    assert torch.equal(with_policy.values[:, 3:], without.values)
    assert torch.equal(with_policy.ops[:, 3:], without.ops)
    assert torch.equal(with_policy.values[:, :1], fewer.values)


def test_what_is_drawn_for_one_thing_says_nothing_of_another() -> None:
    found = drawn(policy="randaugment", num_ops=2, op_prob=1.0, brightness=0.4, erase=1.0, cutout=0.1, vflip=0.5)
    columns = {
        "crop": found.crop[:, 0], "place of the crop": found.crop[:, -1], "hflip": found.hflip, "vflip": found.vflip,
        "first operation": found.ops[:, 0], "second operation": found.ops[:, 1], "jitter": found.values[:, 2],
        "erase x": found.erase[:, 0] / (SIZE[1] - found.erase[:, 2] + found.erase[:, 0]),
        "erase area": (found.erase[:, 2:] - found.erase[:, :2]).prod(1),
        "cutout x": found.cutout[:, 0], "cutout y": found.cutout[:, 1], "noise": found.noise,
    }  # fmt: skip
    result = stats.spearmanr(np.stack([column.double().numpy() for column in columns.values()], 1))
    chance = result.pvalue[~np.eye(len(columns), dtype=bool)]
    assert chance.min() > 1e-5


def test_seeds_epochs_and_repeats_draw_differently() -> None:
    plan = Augmentation(policy="randaugment", brightness=0.4, erase=1.0, cutout=0.2, vflip=0.5)
    index = torch.arange(400)
    first = draw(plan, 0, 0, index, torch.zeros_like(index), SIZE)
    for seed, epoch, repeat in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        other = draw(plan, seed, epoch, index, torch.full_like(index, repeat), SIZE)
        for name, column in vars(first).items():
            assert not torch.equal(column, getattr(other, name)), name


@pytest.mark.parametrize("policy", [*ALL, "autoaugment-svhn"])
@pytest.mark.parametrize("n", [0, 1])
def test_no_sample_and_no_operation_are_fine(policy, n: int) -> None:
    found = drawn(n, policy=policy, num_ops=0, erase=1.0, hue=0.1)
    assert all(len(column) == n for column in vars(found).values())
    if policy == "randaugment":
        assert found.ops.shape == (n, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("policy", [*ALL, "autoaugment-svhn"])
def test_a_gpu_draws_the_same(policy) -> None:
    plan = Augmentation(policy=policy, brightness=0.4, hue=0.1, erase=0.5, cutout=0.2)
    index = torch.arange(20_000)
    here = draw(plan, 0, 0, index, index % 3, SIZE)
    there = draw(plan, 0, 0, index.cuda(), index.cuda() % 3, SIZE)
    for name, column in vars(here).items():
        other = getattr(there, name).cpu()
        # logarithms and cosines may differ in the last bit
        assert torch.equal(column, other) or torch.allclose(column.double(), other.double(), rtol=1e-12, atol=1e-12)


# -- errors


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("hflip", "vflip", "op_prob", "erase", "cutout", "mix_prob")
          for value in (-0.1, 1.1, math.nan)),
        *((name, value) for name in ("magnitude", "magnitude_std", "brightness", "contrast", "saturation")
          for value in (-1.0, math.inf, math.nan)),
        ("mixup", -0.1), ("cutmix", math.nan), ("hue", 0.6), ("hue", -0.1),
        ("scale", (0.0, 1.0)), ("scale", (0.5, 0.4)), ("scale", (0.5, 1.5)), ("scale", (0.5,)),
        ("ratio", (0.0, 1.0)), ("ratio", (1.0, math.inf)), ("ratio", (2.0, 1.0)), ("ratio", (math.nan, 1.0)),
        ("erase_scale", (0.1, 2.0)), ("erase_ratio", (-1.0, 1.0)),
        ("padding", -1), ("num_ops", -1), ("repeats", 0),
        ("crop", "centre"), ("policy", "autoaugment"), ("padding_mode", "edge"), ("interpolation", "nearest"),
        ("erase_fill", "pink"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_refused_in_one_line_that_names_it(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Augmentation(**{name: value})
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "must" in str(caught.value) or "choose from" in str(caught.value)


def test_alternating_mirrors_come_every_other_epoch_and_half_of_them_at_first() -> None:
    plan, index = Augmentation(alternate=True), torch.arange(10_000)
    flips = [draw(plan, 3, epoch, index, torch.zeros_like(index), (32, 32)).hflip for epoch in range(4)]
    assert torch.equal(flips[0], flips[2])
    assert torch.equal(flips[0], ~flips[1])
    assert torch.equal(flips[1], flips[3])
    assert abs(flips[0].double().mean().item() - 0.5) < 4 * 0.5 / 100
    other = draw(plan, 4, 0, index, torch.zeros_like(index), (32, 32)).hflip
    assert abs((other == flips[0]).double().mean().item() - 0.5) < 4 * 0.5 / 100
