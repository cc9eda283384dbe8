"""Each operation by either engine, against one another and against Pillow, torchvision and torch.

Colours are exact, hue included. Turns, shears and blurs may differ by one level, where a sum is nearly whole.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from tests.data.augmentation.scenes import FILL, INTERPOLATED, SCENES, Pixels, batch_of, grey, real
from vitrail.data.augmentation import on_batch, on_picture
from vitrail.data.augmentation.ops import Op
from vitrail.data.augmentation.resampling import resample, weights

TURNS = [4.5 * k * sign for k in range(31) for sign in (1, -1)]
SHEARS = [0.3 * k / 9 * sign for k in range(10) for sign in (1, -1)] + [0.99, -0.99, 0.5, -0.123]
MOVES = [-1.0, -0.45, -0.1, 0.0, 0.01, 0.333, 0.9]
FACTORS = [0.0, 0.01, 0.1, 0.37, 0.5, 0.9, 1.0, 1.001, 1.33, 1.9, 1.99, 3.0]
VALUES: dict[Op, list[float]] = {
    Op.SHEAR_X: SHEARS, Op.SHEAR_Y: SHEARS, Op.ROTATE: [*TURNS, 180.0, 33.3, -0.01],
    Op.TRANSLATE_X: MOVES, Op.TRANSLATE_Y: MOVES,
    Op.BRIGHTNESS: FACTORS, Op.CONTRAST: FACTORS, Op.COLOR: FACTORS, Op.SHARPNESS: FACTORS,
    Op.POSTERIZE: [1, 2, 3, 4, 5, 6, 7, 8], Op.SOLARIZE: [0, 1, 26, 128, 238, 255, 256],
    Op.SOLARIZE_ADD: [0, 11, 99, 110],
    Op.AUTOCONTRAST: [0], Op.EQUALIZE: [0], Op.INVERT: [0], Op.GREY: [0],
    Op.HUE: [-0.5, -0.2, -0.1, -0.003, 0.0, 0.1, 0.2, 0.3333, 0.4, 0.5], Op.BLUR: [0.1, 0.3, 0.5, 0.9, 1.3, 2.0],
}  # fmt: skip


def as_picture(pixels: Pixels) -> Image.Image:
    return Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0])


def both_engines(op: Op, values: list[float], pixels: Pixels) -> tuple[np.ndarray, np.ndarray]:
    """(values, height, width, channels) of one operation at all its values, by either engine."""
    fill = FILL[: pixels.shape[-1]]
    one = [np.array(on_picture.apply(as_picture(pixels), op, value, fill)) for value in values]
    many = on_batch.changed(
        batch_of([pixels] * len(values)).float(),
        torch.full((len(values),), int(op)),
        torch.tensor(values, dtype=torch.double),
        frozenset({op}),
        torch.tensor(fill).float().view(1, -1, 1, 1),
    )
    assert torch.equal(many, many.round().clamp(0, 255))
    return np.stack(one).reshape(len(values), *pixels.shape).astype(int), many.permute(0, 2, 3, 1).numpy().astype(int)


# -- operations


def test_every_operation_is_tested() -> None:
    assert set(VALUES) == set(Op) - {Op.IDENTITY}


@pytest.mark.parametrize("channels", [3, 1], ids=["RGB", "grey"])
@pytest.mark.parametrize("op", VALUES, ids=lambda op: op.name)
def test_operations_are_equal_in_both_engines_interpolated_ones_within_one_level(op: Op, channels: int) -> None:
    for name, make in SCENES.items():
        pixels = make(52, 38) if channels == 3 else grey(make(52, 38))
        one, many = both_engines(op, VALUES[op], pixels)
        difference = np.abs(one - many)
        assert difference.max() <= (op in INTERPOLATED), name
        if name == "real":
            assert (difference > 0).mean() < 0.015


@pytest.mark.parametrize("op", sorted(set(VALUES) - {Op.BLUR}), ids=lambda op: op.name)
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 2), (3, 2), (16, 17), (17, 15)], ids=str)
def test_operations_on_tiny_pictures_are_equal_in_both_engines(op: Op, size: tuple[int, int]) -> None:
    for make in (SCENES["noise"], SCENES["dark_noise"], SCENES["two_valued"]):
        one, many = both_engines(op, VALUES[op], make(*size))
        assert np.abs(one - many).max() <= (op in INTERPOLATED)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (5, 4), (9, 40)], ids=str)
def test_blur_reaches_no_further_than_a_small_picture(size: tuple[int, int]) -> None:
    one, many = both_engines(Op.BLUR, VALUES[Op.BLUR], SCENES["noise"](*size))
    assert np.abs(one - many).max() <= 1


@given(seed=st.integers(0, 2**31), hue=st.floats(-0.5, 0.5))
def test_hue_is_exact_on_any_colours(seed: int, hue: float) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8)
    one, many = both_engines(Op.HUE, [hue], pixels)
    assert np.array_equal(one, many)


def test_each_sample_of_a_batch_has_its_own_operation() -> None:
    pixels = real(52, 38)
    cases = [(op, value) for op, values in VALUES.items() for value in (values[0], values[-1])] + [(Op.IDENTITY, 0.0)]
    ops = torch.tensor([op for op, _ in cases])
    values = torch.tensor([value for _, value in cases], dtype=torch.double)
    colour = torch.tensor(FILL).float().view(1, -1, 1, 1)
    many = on_batch.changed(batch_of([pixels] * len(cases)).float(), ops, values, frozenset(VALUES), colour)
    for (op, value), new in zip(cases, many.permute(0, 2, 3, 1).numpy().astype(int), strict=True):
        wanted = on_picture.apply(as_picture(pixels), op, value, FILL) if op else pixels
        assert np.abs(np.array(wanted).astype(int) - new).max() <= (op in INTERPOLATED), op.name


PILLOW = {
    Op.BRIGHTNESS: lambda picture, value: ImageEnhance.Brightness(picture).enhance(value),
    Op.CONTRAST: lambda picture, value: ImageEnhance.Contrast(picture).enhance(value),
    Op.COLOR: lambda picture, value: ImageEnhance.Color(picture).enhance(value),
    Op.SHARPNESS: lambda picture, value: ImageEnhance.Sharpness(picture).enhance(value),
    Op.POSTERIZE: lambda picture, value: ImageOps.posterize(picture, int(value)),
    Op.SOLARIZE: lambda picture, value: ImageOps.solarize(picture, int(value)),
    Op.AUTOCONTRAST: lambda picture, value: ImageOps.autocontrast(picture),
    Op.EQUALIZE: lambda picture, value: ImageOps.equalize(picture),
    Op.INVERT: lambda picture, value: ImageOps.invert(picture),
    Op.GREY: lambda picture, value: picture.convert("L").convert(picture.mode),
    Op.TRANSLATE_X: lambda picture, value: moved(picture, math.trunc(value * picture.width), 0),
    Op.TRANSLATE_Y: lambda picture, value: moved(picture, 0, math.trunc(value * picture.height)),
}


def moved(picture: Image.Image, x: int, y: int) -> Image.Image:
    page = Image.new(picture.mode, picture.size, FILL)
    page.paste(picture, (x, y))
    return page


@pytest.mark.parametrize("op", PILLOW, ids=lambda op: op.name)
def test_colours_and_moves_are_pillows_exactly(op: Op) -> None:
    for make in SCENES.values():
        pixels = make(52, 38)
        one, many = both_engines(op, VALUES[op], pixels)
        wanted = np.stack([np.array(PILLOW[op](Image.fromarray(pixels), value)) for value in VALUES[op]])
        assert np.array_equal(one, wanted)
        assert np.array_equal(many, wanted)


def test_solarize_add_is_timms() -> None:
    timm = pytest.importorskip("timm.data.auto_augment", reason="timm is not installed")
    pixels = SCENES["noise"](52, 38)
    one, many = both_engines(Op.SOLARIZE_ADD, VALUES[Op.SOLARIZE_ADD], pixels)
    wanted = [np.array(timm.solarize_add(Image.fromarray(pixels), int(value))) for value in VALUES[Op.SOLARIZE_ADD]]
    assert np.array_equal(one, np.stack(wanted))
    assert np.array_equal(many, np.stack(wanted))


def test_shear_is_timms() -> None:
    timm = pytest.importorskip("timm.data.auto_augment", reason="timm is not installed")
    pixels = real(52, 38)
    for op, theirs in ((Op.SHEAR_X, timm.shear_x), (Op.SHEAR_Y, timm.shear_y)):
        one, _ = both_engines(op, SHEARS, pixels)
        kwargs = {"fillcolor": FILL, "resample": Image.Resampling.BILINEAR}
        assert np.array_equal(one, np.stack([np.array(theirs(Image.fromarray(pixels), v, **kwargs)) for v in SHEARS]))


def torchvisions(picture: Image.Image, op: Op, value: float) -> Image.Image:
    if op == Op.ROTATE:
        return F.rotate(picture, value, InterpolationMode.BILINEAR, fill=list(FILL))
    degrees = math.degrees(math.atan(value))
    shear = [degrees, 0.0] if op == Op.SHEAR_X else [0.0, degrees]
    return F.affine(picture, 0.0, [0, 0], 1.0, shear, InterpolationMode.BILINEAR, list(FILL), [0, 0])


@pytest.mark.parametrize("op", [Op.ROTATE, Op.SHEAR_X, Op.SHEAR_Y], ids=lambda op: op.name)
def test_turns_and_shears_are_torchvisions_within_one_level(op: Op) -> None:
    pixels = real(52, 38)
    values = [
        value for value in VALUES[op] if op == Op.ROTATE or round(abs(value) * 15, 6) % 1
    ]  # for the others see below
    for value, one, many in zip(values, *both_engines(op, values, pixels), strict=True):
        theirs = np.array(torchvisions(Image.fromarray(pixels), op, value))
        assert np.abs(one - theirs).max() <= 1
        assert np.abs(many - theirs).max() <= 1


@pytest.mark.parametrize("shear", [0.3 * k / 9 * sign for k in range(1, 10) for sign in (1, -1)])
def test_points_on_the_very_edge_are_inside_or_outside_for_both(shear: float) -> None:
    # at AutoAugment's levels 2 and 6, 1/15 and 1/5, points fall on the edge exactly: a pixel inside, the fill outside
    pixels = SCENES["black"](224, 224)
    for op in (Op.SHEAR_X, Op.SHEAR_Y):
        one, many = both_engines(op, [shear], pixels)
        assert np.array_equal(one, many)


def test_blur_is_torchvisions_gaussian_within_one_level() -> None:
    pixels = real(52, 38)
    one, many = both_engines(Op.BLUR, VALUES[Op.BLUR], pixels)
    wanted = np.stack([np.array(F.gaussian_blur(Image.fromarray(pixels), [13, 13], [v, v])) for v in VALUES[Op.BLUR]])
    assert np.array_equal(one, wanted)
    assert np.abs(many - wanted).max() <= 1


# -- resampling


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("old", "new"),
    [((64, 48), (32, 32)), ((37, 91), (24, 60)), ((20, 30), (64, 50)), ((33, 33), (33, 33)), ((300, 7), (10, 20))],
)
def test_matrices_resize_as_pillow_and_torch_do_within_one_level(kind: str, old, new) -> None:
    (width, height), (new_w, new_h) = old, new
    for make in SCENES.values():
        pixels = make(width, height)
        planes, zero = batch_of([pixels]), torch.zeros(1, dtype=torch.double)
        down = weights(zero, zero + height / new_h, torch.arange(new_h)[None].double(), new_h, height, kind)
        along = weights(zero, zero + width / new_w, torch.arange(new_w)[None].double(), new_w, width, kind)
        torch.testing.assert_close(down.sum(2), torch.ones(1, new_h, dtype=torch.double))
        ours = resample(planes.float(), down.float(), along.float())[0].permute(1, 2, 0).numpy().astype(int)
        pillow = np.array(Image.fromarray(pixels).resize((new_w, new_h), Image.Resampling[kind.upper()]))
        torchs = torch.nn.functional.interpolate(planes, (new_h, new_w), mode=kind, antialias=True)[0]
        assert np.abs(ours - torchs.permute(1, 2, 0).numpy()).max() <= 1
        # where that is less work Pillow goes down first, and what is cut off at 0 and 255 in between is something else
        turned = resample(planes.mT.float(), along.float(), down.float())[0].permute(2, 1, 0).numpy().astype(int)
        assert min(np.abs(ours - pillow).max(), np.abs(turned - pillow).max()) <= 1


@given(
    size=st.integers(1, 200), new=st.integers(1, 60), kind=st.sampled_from(["bilinear", "bicubic"]),
    start=st.floats(0, 1), length=st.floats(0, 1),
)  # fmt: skip
def test_weights_of_any_part_sum_to_one_and_look_at_that_part_alone(size, new, kind, start, length) -> None:
    begin = start * size * 0.999
    width = max(1e-3, length * (size - begin))
    of = torch.tensor([begin], dtype=torch.double)
    found = weights(
        of, torch.tensor([width / new], dtype=torch.double), torch.arange(new)[None].double(), new, size, kind
    )
    assert found.isfinite().all()
    torch.testing.assert_close(found.sum(2), torch.ones(1, new, dtype=torch.double))
    used = found[0].abs().sum(0).nonzero()[:, 0]
    assert used.min() >= math.floor(begin - 1e-5) - (width < 1)
    assert used.max() <= math.ceil(begin + width + 1e-5) - 1 + (width < 1)
