"""Boxes, windows and maps: one picture at a time against many at once, and both against NumPy, Pillow, torchvision."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from scipy import stats
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from vitrail.data.augmentation import geometry
from vitrail.data.augmentation.draws import Stream, keys, uniform
from vitrail.data.augmentation.ops import GEOMETRIC, Op
from vitrail.data.augmentation.policy import CROP_NUMBERS, Augmentation

side = st.integers(1, 5000)
seed = st.integers(0, 2**32)
aspects = st.tuples(st.floats(0.05, 20), st.floats(0.05, 20)).map(lambda pair: tuple(sorted(pair)))
scales = st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)).map(lambda pair: tuple(sorted(pair)))
PLAN = Augmentation()


def numbers(n: int, seed: int = 0) -> torch.Tensor:
    return uniform(keys(Stream.CROP, seed, 0, torch.arange(n)), CROP_NUMBERS)


def sides(*pairs: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    width, height = torch.tensor(pairs, dtype=torch.double).T
    return width, height


# -- random resized crops


@given(width=side, height=side, seed=seed, scale=scales, ratio=aspects)
@example(width=1, height=1, seed=0, scale=(0.08, 1.0), ratio=(0.75, 4 / 3))
@example(width=5000, height=1, seed=0, scale=(0.08, 1.0), ratio=(0.75, 4 / 3))
@example(width=1, height=5000, seed=0, scale=(0.001, 0.001), ratio=(20.0, 20.0))
def test_boxes_lie_inside_and_are_the_same_for_one_and_for_many(width, height, seed, scale, ratio) -> None:
    plan = Augmentation(scale=scale, ratio=ratio)
    drawn = numbers(6, seed)
    many = geometry.random_boxes(plan, drawn, *sides(*[(width, height)] * 6))
    for row, together in zip(drawn.tolist(), many.tolist(), strict=True):
        box = geometry.random_box(plan, row, width, height)
        left, top, right, bottom = box
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        assert list(box) == together


def test_pictures_of_all_sizes_in_one_batch_have_the_boxes_they_would_have_alone() -> None:
    sizes = np.random.default_rng(0).integers(1, 3000, (4000, 2)).tolist()
    drawn = numbers(4000)
    many = geometry.random_boxes(PLAN, drawn, *sides(*sizes)).long().tolist()
    for row, (width, height), box in zip(drawn.tolist(), sizes, many, strict=True):
        assert geometry.random_box(PLAN, row, width, height) == tuple(box)


@pytest.mark.parametrize("size", [(500, 375), (32, 32), (375, 500), (1200, 300), (28, 300), (3000, 10)])
@pytest.mark.parametrize("settings", [{}, {"scale": (0.5, 1.0), "ratio": (0.5, 3.0)}], ids=["usual", "other"])
def test_boxes_are_distributed_as_torchvisions(size: tuple[int, int], settings: dict) -> None:
    n, (width, height), plan = 4000, size, Augmentation(**settings)
    ours = geometry.random_boxes(plan, numbers(n), *sides(*[size] * n)).numpy()
    torch.manual_seed(0)
    theirs = v2.RandomResizedCrop(8, scale=plan.scale, ratio=plan.ratio)
    picture = Image.new("L", size)
    params = [theirs.make_params([picture]) for _ in range(n)]
    other = np.array([(p["left"], p["top"], p["left"] + p["width"], p["top"] + p["height"]) for p in params])
    for name, measure in {
        "left": lambda b: b[:, 0],
        "top": lambda b: b[:, 1],
        "area": lambda b: (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]),
        "aspect": lambda b: (b[:, 2] - b[:, 0]) / (b[:, 3] - b[:, 1]),
        "right": lambda b: width - b[:, 2],
        "bottom": lambda b: height - b[:, 3],
    }.items():
        assert stats.ks_2samp(measure(ours), measure(other)).pvalue > 1e-4, name


@pytest.mark.parametrize("size", [(5000, 3), (3, 5000), (400, 10), (10, 400)])
def test_where_nothing_fits_the_largest_central_part_is_taken_as_in_torchvision(size: tuple[int, int]) -> None:
    width, height = size
    params = v2.RandomResizedCrop(8, scale=(0.9, 1.0)).make_params([Image.new("L", size)])
    left, top = params["left"], params["top"]
    box = geometry.random_box(Augmentation(scale=(0.9, 1.0)), numbers(1)[0].tolist(), width, height)
    assert box == (left, top, left + params["width"], top + params["height"])


# -- pad and crop


@given(width=side, height=side, seed=seed, padding=st.integers(0, 40), size=st.tuples(side, side))
def test_windows_cover_their_target_and_are_the_same_for_one_and_for_many(width, height, seed, padding, size) -> None:
    plan = Augmentation(crop="pad", padding=padding)
    drawn = numbers(5, seed)
    tall, wide, top, left = geometry.padded_windows(plan, drawn, *sides(*[(width, height)] * 5), size)
    for k, row in enumerate(drawn.tolist()):
        window = geometry.padded_window(plan, row, width, height, size)
        assert window == (tall[k], wide[k], top[k], left[k])
        assert window.height == size[0] or window.width == size[1]  # it just covers
        assert window.height >= size[0]
        assert window.width >= size[1]
        assert -padding <= window.top <= window.height + padding - size[0]
        assert -padding <= window.left <= window.width + padding - size[1]


def test_every_window_is_equally_likely() -> None:
    plan, n = Augmentation(crop="pad", padding=4), 20_000
    _, _, top, left = geometry.padded_windows(plan, numbers(n), *sides(*[(32, 32)] * n), (32, 32))
    table = np.histogram2d(top.numpy(), left.numpy(), bins=9, range=[[-4.5, 4.5]] * 2)[0]
    assert table.sum() == n
    assert stats.chisquare(table.ravel()).pvalue > 1e-4


@given(size=st.integers(1, 40), before=st.integers(0, 100), after=st.integers(0, 100))
def test_reflection_is_numpys(size: int, before: int, after: int) -> None:
    wanted = np.pad(np.arange(size), (before, after), mode="reflect")
    index = np.arange(-before, size + after)
    assert np.array_equal(geometry.reflect(index, size), wanted)
    many = geometry.reflects(torch.from_numpy(index)[None].double(), torch.tensor([[size]]).double())
    assert np.array_equal(many[0].numpy(), wanted)


# -- affine maps


@given(
    op=st.sampled_from(GEOMETRIC),
    value=st.floats(-180, 180),
    height=st.integers(1, 600),
    width=st.integers(1, 600),
)
def test_maps_are_the_same_for_one_and_for_many(op: Op, value: float, height: int, width: int) -> None:
    value = value if op == Op.ROTATE else value / 180
    one = geometry.affine(op, value, height, width)
    ops, values = torch.tensor([op, Op.INVERT]), torch.tensor([value, 7.0], dtype=torch.double)
    many = geometry.affines(ops, values, height, width)
    assert many[0].tolist() == pytest.approx(one, abs=1e-9)
    assert many[1].tolist() == [1, 0, 0, 0, 1, 0]


@given(degrees=st.floats(-180, 180), height=st.integers(1, 300), width=st.integers(1, 300))
def test_a_turn_leaves_the_middle_where_it_is_and_lengths_as_they_are(degrees, height, width) -> None:
    a, b, c, d, e, f = geometry.affine(Op.ROTATE, degrees, height, width)
    x, y = width / 2, height / 2
    assert (a * x + b * y + c, d * x + e * y + f) == pytest.approx((x, y), abs=1e-9)
    assert a * e - b * d == pytest.approx(1)
    assert math.hypot(a, d) == pytest.approx(1)


def scene(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    planes = [128 + 120 * np.sin(x / 7), 255 * y / height, ((x // 9 + y // 6) % 2) * 255]
    return Image.fromarray(np.stack(planes, -1).astype(np.uint8))


def moved(picture: Image.Image, op: Op, value: float) -> np.ndarray:
    data = geometry.affine(op, value, picture.height, picture.width)
    new = picture.transform(
        picture.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR, fillcolor=(9, 99, 199)
    )
    return np.array(new).astype(int)


@pytest.mark.parametrize("size", [(64, 64), (90, 50), (51, 77)])
@pytest.mark.parametrize("degrees", [-135.0, -90.0, -33.3, -4.5, 0.0, 9.0, 27.7, 45.0, 90.0, 130.5])
def test_turning_is_torchvisions_rotate_within_one_level(size: tuple[int, int], degrees: float) -> None:
    picture = scene(*size)
    theirs = F.rotate(picture, degrees, InterpolationMode.BILINEAR, fill=[9, 99, 199])
    difference = np.abs(moved(picture, Op.ROTATE, degrees) - np.array(theirs))
    assert difference.max() <= 1


@pytest.mark.parametrize("size", [(64, 64), (90, 50), (51, 77)])
@pytest.mark.parametrize("value", [-0.99, -0.31, -0.05, 0.0, 0.123, 0.27, 0.66])
def test_shearing_is_torchvisions_affine_within_one_level(size: tuple[int, int], value: float) -> None:
    picture = scene(*size)
    degrees = math.degrees(math.atan(value))
    for op, shear in ((Op.SHEAR_X, [degrees, 0.0]), (Op.SHEAR_Y, [0.0, degrees])):
        theirs = F.affine(picture, 0.0, [0, 0], 1.0, shear, InterpolationMode.BILINEAR, [9, 99, 199], [0, 0])
        assert np.abs(moved(picture, op, value) - np.array(theirs)).max() <= 1


@pytest.mark.parametrize("pixels", [-70, -13, 0, 1, 32])
def test_moving_is_torchvisions_affine_exactly(pixels: int) -> None:
    picture = scene(90, 50)
    for op, size, translate in ((Op.TRANSLATE_X, 90, [pixels, 0]), (Op.TRANSLATE_Y, 50, [0, pixels])):
        theirs = F.affine(picture, 0.0, translate, 1.0, [0.0, 0.0], InterpolationMode.BILINEAR, [9, 99, 199])
        assert np.array_equal(moved(picture, op, pixels / size), np.array(theirs))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_finds_the_same_boxes() -> None:
    n = 100_000
    sizes = torch.randint(1, 3000, (n, 2), generator=torch.Generator().manual_seed(0)).double()
    drawn = numbers(n)
    here = geometry.random_boxes(PLAN, drawn, *sizes.T)
    there = geometry.random_boxes(PLAN, drawn.cuda(), *sizes.cuda().T).cpu()
    assert torch.equal(here, there)
