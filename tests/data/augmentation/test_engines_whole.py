"""Whole pictures through either engine: crops, flips, policies, and stores of another size.

Crops are resized by torch's kernel for bytes in the one engine and by matrices in the other, both rounded after either
direction: a rare pixel differs by two levels, and what follows a crop can make more of it.
"""

import dataclasses
import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from tests.data.augmentation.scenes import FILL, INTERPOLATED, SCENES, Pixels, batch_of, grey, real, smooth
from vitrail.data.augmentation import on_batch, on_picture
from vitrail.data.augmentation.geometry import padded_window, random_box
from vitrail.data.augmentation.ops import RANDAUGMENT
from vitrail.data.augmentation.policy import Augmentation, Drawn, draw
from vitrail.pictures import Preprocessing

RGB = Preprocessing(size=(40, 48), crop_pct=1.0, mean=tuple(level / 255 for level in FILL), std=(0.5, 0.5, 0.5))
GREY = Preprocessing(size=(40, 48), crop_pct=1.0, mean=(FILL[0] / 255,), std=(0.5,))


def drawn_for(plan: Augmentation, n: int, preprocessing: Preprocessing, seed: int = 0) -> Drawn:
    return draw(plan, seed, 0, torch.arange(n), torch.zeros(n, dtype=torch.long), preprocessing.size)


def both(
    plan: Augmentation, scenes: list[Pixels], preprocessing: Preprocessing, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(n, channels, height, width) of the same pictures and draws by either engine; all pictures of one size."""
    drawn = drawn_for(plan, len(scenes), preprocessing, seed)
    rows = on_picture.rows(drawn)
    one = [
        on_picture.augmented(scene if preprocessing.channels == 3 else scene[..., 0], plan, row, preprocessing)
        for scene, row in zip(scenes, rows, strict=True)
    ]
    full = torch.tensor([[scene.shape[1], scene.shape[0]] for scene in scenes])
    colour = torch.tensor(on_picture.fill_colour(preprocessing))
    many = on_batch.augmented(batch_of(scenes), full, plan, drawn, preprocessing.size, colour)
    assert many.dtype == torch.uint8
    return torch.stack(one).numpy().astype(int), many.numpy().astype(int)


def pictures(size: tuple[int, int], channels: int = 3, times: int = 4) -> list[Pixels]:
    scenes = [make(*size) for make in SCENES.values()] * times
    return scenes if channels == 3 else [grey(scene) for scene in scenes]


CROPS = {
    "random-resized": {"crop": "random-resized"},
    "random-resized bilinear": {"crop": "random-resized", "interpolation": "bilinear"},
    "random-resized of any aspect": {"crop": "random-resized", "scale": (0.01, 1.0), "ratio": (0.2, 5.0)},
    "pad, reflected": {"crop": "pad", "padding": 6},
    "pad, filled": {"crop": "pad", "padding": 6, "padding_mode": "constant"},
    "pad bilinear": {"crop": "pad", "padding": 6, "interpolation": "bilinear"},
    "pad by nothing": {"crop": "pad", "padding": 0},
    "pad by more than there is": {"crop": "pad", "padding": 60},
}


@pytest.mark.parametrize("size", [(48, 40), (80, 60), (30, 90), (20, 16)], ids=str)
@pytest.mark.parametrize("preprocessing", [RGB, GREY], ids=["RGB", "grey"])
@pytest.mark.parametrize("crop", CROPS.values(), ids=CROPS.keys())
def test_crops_and_flips_are_equal_in_both_engines_within_two_levels(crop, preprocessing, size) -> None:
    plan = Augmentation(hflip=0.5, vflip=0.5, **crop)
    one, many = both(plan, pictures(size, preprocessing.channels), preprocessing)
    difference = np.abs(one - many)
    assert difference.max() <= 2
    assert (difference > 1).mean() < 1e-3
    assert (difference > 0).mean() < (0.02 if size != (20, 16) else 0.1)  # enlarged 2.5 times, many sums are halves


@pytest.mark.parametrize("preprocessing", [RGB, GREY], ids=["RGB", "grey"])
@pytest.mark.parametrize("mode", ["reflect", "constant"])
def test_pictures_of_the_models_size_are_padded_and_flipped_exactly(preprocessing, mode) -> None:
    plan = Augmentation(crop="pad", padding=5, padding_mode=mode, hflip=0.5, vflip=0.5)
    scenes = pictures((48, 40), preprocessing.channels)
    one, many = both(plan, scenes, preprocessing)
    assert np.array_equal(one, many)
    rows = on_picture.rows(drawn_for(plan, len(scenes), preprocessing))
    colours = on_picture.fill_colour(preprocessing)
    for scene, row, found in zip(scenes, rows, one, strict=True):
        window = padded_window(plan, row.crop, 48, 40, (40, 48))
        border = [(5, 5), (5, 5)]
        if mode == "reflect":
            padded = np.pad(scene, [*border, (0, 0)], mode="reflect")
        else:
            planes = [np.pad(scene[..., c], border, constant_values=colours[c]) for c in range(scene.shape[2])]
            padded = np.stack(planes, -1)
        wanted = padded[window.top + 5 : window.top + 45, window.left + 5 : window.left + 53]
        wanted = wanted[::-1] if row.vflip else wanted
        wanted = wanted[:, ::-1] if row.hflip else wanted
        assert np.array_equal(found, wanted.transpose(2, 0, 1))


@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_random_resized_crops_are_torchvisions_exactly_and_pillows_within_two_levels(kind: str) -> None:
    plan = Augmentation(interpolation=kind, hflip=0.5)
    scenes = pictures((70, 90))
    one, many = both(plan, scenes, RGB)
    for scene, row, ours, other in zip(
        scenes, on_picture.rows(drawn_for(plan, len(scenes), RGB)), one, many, strict=True
    ):
        left, top, right, bottom = random_box(plan, row.crop, 70, 90)
        box, how = (top, left, bottom - top, right - left), InterpolationMode(kind)
        theirs = F.resized_crop(batch_of([scene]), *box, [40, 48], how, antialias=True)[0]
        theirs = (F.horizontal_flip(theirs) if row.hflip else theirs).numpy()
        assert np.array_equal(ours, theirs)
        assert np.abs(other - theirs).max() <= 2
        pillow = F.resized_crop(Image.fromarray(scene), *box, [40, 48], how)
        pillow = np.array(F.horizontal_flip(pillow) if row.hflip else pillow).transpose(2, 0, 1)
        if not (kind == "bicubic" and clipped(scene)):
            assert np.abs(ours - pillow).max() <= 2
            assert np.abs(other - pillow).max() <= 2


def clipped(scene: Pixels) -> bool:
    """Whether a bicubic kernel may overshoot the range, so that it matters which direction Pillow resizes first."""
    return scene.min() < 40 or scene.max() > 215


def test_nothing_but_flips_is_the_evaluation_picture() -> None:
    plan = Augmentation(crop="none", hflip=0.5)
    scenes = pictures((48, 40))
    one, many = both(plan, scenes, RGB)
    assert np.array_equal(one, many)
    for scene, flipped, found in zip(scenes, drawn_for(plan, len(scenes), RGB).hflip, one, strict=True):
        wanted = RGB.pixels(scene).transpose(2, 0, 1)
        assert np.array_equal(found, wanted[:, :, ::-1] if flipped else wanted)


JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}


@pytest.mark.parametrize("preprocessing", [RGB, GREY], ids=["RGB", "grey"])
def test_colour_jitter_in_any_order_is_exact(preprocessing) -> None:
    plan = Augmentation(crop="pad", padding=4, **JITTER)
    one, many = both(plan, pictures((48, 40), preprocessing.channels), preprocessing)
    assert np.array_equal(one, many)


POLICIES = [
    "randaugment",
    "trivialaugment",
    "autoaugment-imagenet",
    "autoaugment-cifar10",
    "autoaugment-svhn",
    "three-augment",
]


@pytest.mark.parametrize("preprocessing", [RGB, GREY], ids=["RGB", "grey"])
@pytest.mark.parametrize("policy", POLICIES)
def test_whole_policies_on_photographs_differ_by_a_twentieth_of_a_level_in_the_mean(policy, preprocessing) -> None:
    # one level of a crop or a turn, made more by what follows it: equalize, posterize, contrast
    plan = Augmentation(policy=policy, op_prob=1.0, scale=(0.3, 1.0), **JITTER)
    scene = real(90, 70)
    scenes = [scene if preprocessing.channels == 3 else grey(scene)] * 64
    one, many = both(plan, scenes, preprocessing)
    difference = np.abs(one - many)
    assert difference.mean() < 0.05
    assert (difference > 1).mean() < 0.01


@pytest.mark.parametrize("policy", POLICIES)
def test_whole_policies_on_pictures_that_need_no_resizing_are_equal_where_nothing_turns(policy) -> None:
    plan = Augmentation(crop="pad", padding=4, policy=policy, op_prob=1.0, **JITTER)
    scenes = [real(48, 40)] * 200
    drawn = drawn_for(plan, len(scenes), RGB)
    one, many = both(plan, scenes, RGB)
    still = ~torch.isin(drawn.ops, torch.tensor(sorted(INTERPOLATED))).any(1).numpy()
    assert still.sum() > 20
    assert np.array_equal(one[still], many[still])
    assert still.all() or np.abs(one - many)[~still].mean() < 0.05


def test_one_picture_alone_equals_itself_among_others() -> None:
    plan = Augmentation(policy="randaugment", **JITTER)
    scenes = pictures((60, 50))
    drawn = drawn_for(plan, len(scenes), RGB)
    full, colour = torch.tensor([[60, 50]] * len(scenes)), torch.tensor(FILL)
    together = on_batch.augmented(batch_of(scenes), full, plan, drawn, (40, 48), colour)
    for k in range(0, len(scenes), 5):
        part = slice(k, k + 1)
        alone = on_batch.augmented(batch_of(scenes)[part], full[part], plan, drawn[part], (40, 48), colour)
        difference = (alone.int() - together[part].int()).abs()
        assert difference.max() <= 1  # a product of matrices sums in another order
        assert (difference > 0).float().mean() < 1e-3


# -- pictures that are stored at another size than theirs


@pytest.mark.parametrize("crop", ["random-resized", "pad"])
@pytest.mark.parametrize("full", [(120, 90), (90, 120), (200, 60)], ids=str)
def test_a_squashed_store_is_cropped_as_the_full_picture_would_be(crop, full: tuple[int, int]) -> None:
    plan = Augmentation(crop=crop, scale=(0.3, 1.0), hflip=0.5, interpolation="bilinear")
    store = Preprocessing(size=(70, 64), fit="squash", crop_pct=1.0)
    drawn = drawn_for(plan, 40, RGB)
    picture = smooth(*full)
    stored = batch_of([store.pixels(picture)] * 40)
    sizes, colour = torch.tensor([full] * 40), torch.tensor(FILL)
    many = on_batch.augmented(stored, sizes, plan, drawn, (40, 48), colour).numpy().astype(int)
    one = [on_picture.augmented(picture, plan, row, RGB).numpy() for row in on_picture.rows(drawn)]
    difference = np.abs(np.stack(one).astype(int) - many)
    assert difference.mean() < 0.7  # levels; a crop that is off by one pixel gives 3
    assert difference.max() <= 8
    shifted = np.abs(np.roll(np.stack(one), 1, axis=3).astype(int) - many)[..., 2:-2]
    assert shifted.mean() > 2 * difference.mean()


@pytest.mark.parametrize("full", [(5000, 10), (10, 5000), (3000, 1), (1, 1)], ids=str)
def test_a_part_that_is_less_than_a_stored_pixel_is_that_pixel(full: tuple[int, int]) -> None:
    plan = Augmentation()
    stored = batch_of([smooth(40, 40)] * 50)
    drawn = drawn_for(plan, 50, RGB)
    found = on_batch.augmented(stored, torch.tensor([full] * 50), plan, drawn, (40, 48), torch.tensor(FILL)).int()
    for k, row in enumerate(on_picture.rows(drawn)):
        left, top, right, bottom = random_box(plan, row.crop, *full)
        x, y = int((left + right) / 2 * 40 / full[0]), int((top + bottom) / 2 * 40 / full[1])
        wanted = stored[k, :, min(y, 39), min(x, 39)].int()
        middle = found[k, :, 20, 24]
        assert (middle - wanted).abs().max() <= 12  # the picture changes by up to 12 levels from pixel to pixel


@pytest.mark.parametrize("full", [(384, 384), (385, 385), (391, 700), (1001, 751)], ids=str)
@pytest.mark.parametrize("crop", ["random-resized", "pad"])
def test_a_jpeg_that_is_decoded_smaller_is_cut_at_the_same_place(crop, full: tuple[int, int]) -> None:
    # a side that eight does not divide has a last pixel that is partly beyond the edge
    plan = Augmentation(crop=crop, padding=2, scale=(0.6, 1.0), hflip=0.5)
    small = dataclasses.replace(RGB, size=(32, 32))
    buffer = io.BytesIO()
    Image.fromarray(smooth(*full)).save(buffer, "JPEG", quality=97)
    whole = Image.open(buffer).convert("RGB")
    for row in on_picture.rows(drawn_for(plan, 20, small)):
        drafted = on_picture.augmented(buffer.getvalue(), plan, row, small).numpy().astype(int)
        difference = np.abs(drafted - on_picture.augmented(whole, plan, row, small).numpy())
        assert difference.mean() < 1.2  # of a random box the corners are rounded to what was decoded
        assert difference.max() <= 6


def test_randaugments_operations_can_all_be_applied_at_full_strength() -> None:
    plan = Augmentation(policy="randaugment", num_ops=1, op_prob=1.0, magnitude=10.0, magnitude_std=0.0)
    drawn = drawn_for(plan, 150, RGB)
    assert set(drawn.ops.flatten().tolist()) == set(RANDAUGMENT)
    one, many = both(plan, [real(90, 70)] * 150, RGB)
    assert np.abs(one - many).mean() < 0.05


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("crop", ["random-resized", "pad", "none"])
def test_a_gpu_makes_the_same_pictures(policy, crop) -> None:
    plan = Augmentation(crop=crop, policy=policy, op_prob=1.0, **JITTER)
    scenes = [make(48, 40) for make in SCENES.values() if make.__name__ in ("real", "smooth", "text")] * 40
    drawn = drawn_for(plan, len(scenes), RGB)
    there = Drawn(**{name: column.cuda() for name, column in vars(drawn).items()})
    full, colour = torch.tensor([[48, 40]] * len(scenes)), torch.tensor(FILL)
    here = on_batch.augmented(batch_of(scenes), full, plan, drawn, (40, 48), colour).int()
    gpu = on_batch.augmented(batch_of(scenes).cuda(), full.cuda(), plan, there, (40, 48), colour.cuda()).int().cpu()
    difference = (here - gpu).abs().float()
    assert difference.mean() < 0.02
    assert (difference > 1).float().mean() < 0.005
