"""Spaces of operations and the tables of AutoAugment, against timm's and torchvision's."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torchvision.transforms import AutoAugmentPolicy, v2

from vitrail.data.augmentation import ops
from vitrail.data.augmentation.autoaugment import POLICIES
from vitrail.data.augmentation.geometry import affine
from vitrail.data.augmentation.ops import AUTOAUGMENT, RANDAUGMENT, Op, trivialaugment

ENHANCE = {Op.BRIGHTNESS, Op.CONTRAST, Op.COLOR, Op.SHARPNESS}
TORCHVISION = {
    "Identity": Op.IDENTITY,
    "ShearX": Op.SHEAR_X,
    "ShearY": Op.SHEAR_Y,
    "TranslateX": Op.TRANSLATE_X,
    "TranslateY": Op.TRANSLATE_Y,
    "Rotate": Op.ROTATE,
    "Brightness": Op.BRIGHTNESS,
    "Color": Op.COLOR,
    "Contrast": Op.CONTRAST,
    "Sharpness": Op.SHARPNESS,
    "Posterize": Op.POSTERIZE,
    "Solarize": Op.SOLARIZE,
    "AutoContrast": Op.AUTOCONTRAST,
    "Equalize": Op.EQUALIZE,
    "Invert": Op.INVERT,
}
TIMM = {
    "AutoContrast": Op.AUTOCONTRAST,
    "Equalize": Op.EQUALIZE,
    "Invert": Op.INVERT,
    "Rotate": Op.ROTATE,
    "PosterizeIncreasing": Op.POSTERIZE,
    "SolarizeIncreasing": Op.SOLARIZE,
    "SolarizeAdd": Op.SOLARIZE_ADD,
    "ColorIncreasing": Op.COLOR,
    "ContrastIncreasing": Op.CONTRAST,
    "BrightnessIncreasing": Op.BRIGHTNESS,
    "SharpnessIncreasing": Op.SHARPNESS,
    "ShearX": Op.SHEAR_X,
    "ShearY": Op.SHEAR_Y,
    "TranslateXRel": Op.TRANSLATE_X,
    "TranslateYRel": Op.TRANSLATE_Y,
}


def value(space: dict, op: Op, strength: float, sign: float = 1.0) -> float:
    strengths, signs = torch.tensor([[strength]], dtype=torch.double), torch.tensor([[sign]], dtype=torch.double)
    return float(ops.values(space, torch.tensor([[op]]), strengths, signs))


def test_randaugment_has_the_operations_of_timms_increasing_set() -> None:
    timm = pytest.importorskip("timm.data.auto_augment", reason="timm is not installed")
    assert {TIMM[name] for name in timm._RAND_INCREASING_TRANSFORMS} == set(RANDAUGMENT)
    assert len(timm._RAND_INCREASING_TRANSFORMS) == len(RANDAUGMENT)


@pytest.mark.parametrize("name", TIMM)
def test_a_level_of_randaugment_means_what_it_means_in_timm(name: str, monkeypatch) -> None:
    timm = pytest.importorskip("timm.data.auto_augment", reason="timm is not installed")
    op, level_to_arg = TIMM[name], timm.LEVEL_TO_ARG[name]
    for sign, chance in ((1, 0.0), (-1, 1.0)):
        monkeypatch.setattr(timm.random, "random", lambda chance=chance: chance)
        for level in np.linspace(0, 10, 101):
            ours = value(RANDAUGMENT, op, level / 10, sign)
            theirs = level_to_arg(level, {})[0] if level_to_arg is not None else 0.0
            if op == Op.POSTERIZE and theirs == 0:
                theirs = 1  # at level 10 timm keeps no bit, which Pillow refuses: one is kept here
            assert ours == pytest.approx(theirs, abs=1e-12), (level, sign)


def torchvision_values(space: dict, name: str, bins: int, height: int, width: int) -> list[tuple[float, bool]]:
    magnitudes, signed = space[name]
    found = magnitudes(bins, height, width)
    return [(float(found[k]) if found is not None else 0.0, signed) for k in range(bins)]


SPACES = {
    "trivialaugment": (trivialaugment, v2.TrivialAugmentWide._AUGMENTATION_SPACE, 31),
    "autoaugment": (lambda height, width: AUTOAUGMENT, v2.AutoAugment._AUGMENTATION_SPACE, 10),
}


@pytest.mark.parametrize(("ours", "theirs", "bins"), SPACES.values(), ids=SPACES.keys())
def test_spaces_are_torchvisions(ours, theirs, bins) -> None:
    height, width = 224, 160
    space = ours(height, width)
    assert set(space) == {TORCHVISION[name] for name in theirs}
    for name in theirs:
        op = TORCHVISION[name]
        for k, (magnitude, signed) in enumerate(torchvision_values(theirs, name, bins, height, width)):
            for sign in (1, -1):
                found = value(space, op, k / (bins - 1), sign)
                wanted = magnitude * (sign if signed else 1)
                if op in ENHANCE:
                    wanted += 1
                elif op == Op.SOLARIZE:
                    # whole levels are below 255 * magnitude as they are below the next whole number
                    wanted = math.ceil(round(255 * magnitude, 3))
                elif op in (Op.TRANSLATE_X, Op.TRANSLATE_Y):
                    wanted /= width if op == Op.TRANSLATE_X else height  # here a fraction of the picture
                assert found == pytest.approx(wanted, abs=2e-5), (name, k, sign)  # theirs is float32


@pytest.mark.parametrize("side", [1, 28, 32, 49, 98, 103, 107, 161, 197, 224, 331, 384])
def test_trivialaugment_moves_by_whole_pixels_up_to_32_whatever_the_size(side: int) -> None:
    # (32 / 49) * 49 is less than 32 in floating point. torchvision moves by 15 where 32 * 15 / 30 is 16: float32
    space = trivialaugment(side, side)
    for k in range(31):
        moved = affine(Op.TRANSLATE_X, value(space, Op.TRANSLATE_X, k / 30, -1), side, side)[2]
        assert moved == int(Fraction(32 * k, 30))
        theirs = int(torch.linspace(0, 32, 31)[k])
        assert moved == theirs or (k, theirs) == (15, 15)


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_autoaugments_tables_are_torchvisions(policy: str) -> None:
    theirs = v2.AutoAugment()._get_policies(AutoAugmentPolicy(policy))
    assert len(POLICIES[policy]) == len(theirs) == 25
    for ours, wanted in zip(POLICIES[policy], theirs, strict=True):
        for (op, probability, level), (name, chance, magnitude) in zip(ours, wanted, strict=True):
            assert (op, probability) == (TORCHVISION[name], chance)
            assert level == magnitude or magnitude is None


def test_a_higher_level_of_randaugment_always_changes_more() -> None:
    neutral = dict.fromkeys(ENHANCE, 1.0) | {Op.POSTERIZE: 8.0, Op.SOLARIZE: 256.0}
    for op in RANDAUGMENT:
        for sign in (1, -1):
            changes = [abs(value(RANDAUGMENT, op, k / 100, sign) - neutral.get(op, 0.0)) for k in range(101)]
            assert changes == sorted(changes)


def test_values_never_leave_what_the_operations_take() -> None:
    strength = torch.linspace(0, 1, 1001, dtype=torch.double)[:, None]
    for space in (RANDAUGMENT, AUTOAUGMENT, trivialaugment(224, 224)):
        for op in space:
            for sign in (1.0, -1.0):
                found = ops.values(
                    space, torch.full((1001, 1), int(op)), strength, torch.full((1001, 1), sign).double()
                )
                low, high = {Op.POSTERIZE: (1, 8), Op.SOLARIZE: (0, 256), Op.SOLARIZE_ADD: (0, 128)}.get(
                    op, (-135, 135)
                )
                low = 0 if op in ENHANCE else low
                assert found.min() >= low
                assert found.max() <= high
                if op in (Op.POSTERIZE, Op.SOLARIZE, Op.SOLARIZE_ADD):
                    assert torch.equal(found, found.round())  # so that both engines cut at the same level
