"""Corruptions against closed forms, against other people's filters, and as a function of seed and picture."""

import colorsys
import io

import numpy as np
import pytest
import scipy.ndimage
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.errors import VitrailError
from vitrail.scoring.stress.corruptions import CERTAIN, CORRUPTIONS, SEVERITIES, corrupt
from vitrail.scoring.stress.corruptions.blurs import copied_from
from vitrail.scoring.stress.corruptions.digital import sampled
from vitrail.scoring.stress.corruptions.filters import convolved, disk, gaussian_blur, motion_blur, zoomed
from vitrail.scoring.stress.corruptions.severities import LARGE, SMALL, strength
from vitrail.scoring.stress.corruptions.weather import plasma
from vitrail.scoring.stress.dice import Dice

ROWS = torch.arange(3)


def waves(count: int = 3, size: int = 32, channels: int = 3) -> torch.Tensor:
    """Smooth pictures with all grey levels."""
    y, x = np.mgrid[0:size, 0:size] / size
    planes = [[np.sin(5 * x * (k + 1) + c) + np.cos(4 * y + k * c) for c in range(channels)] for k in range(count)]
    return torch.from_numpy(np.clip(64 * np.array(planes) + 127, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_a_function_of_the_seed_and_the_picture(name: str) -> None:
    pixels = waves()
    whole = corrupt(pixels, name, 3, ROWS, seed=1)
    assert whole.dtype == torch.uint8
    assert whole.shape == pixels.shape
    alone = torch.cat([corrupt(pixels[k : k + 1], name, 3, ROWS[k : k + 1], seed=1) for k in (2, 0, 1)])
    assert (whole[[2, 0, 1]].int() - alone.int()).abs().max() <= 1  # a float32 sum may round another way
    other = corrupt(pixels, name, 3, ROWS, seed=2)
    assert torch.equal(whole, other) == (name in CERTAIN)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize(("size", "channels"), [(16, 1), (32, 3), (96, 1)])
def test_grey_and_small_pictures_can_be_corrupted(name: str, size: int, channels: int) -> None:
    pixels = waves(1, size, channels)
    assert corrupt(pixels, name, 5, ROWS[:1]).shape == pixels.shape


@pytest.mark.parametrize("size", [32, 128])
def test_every_corruption_moves_pixels_further_at_severity_5_than_at_1(size: int) -> None:
    pixels = waves(3, size)
    for name in CORRUPTIONS:
        weak, strong = ((corrupt(pixels, name, k, ROWS).float() - pixels).abs().mean() for k in (1, 5))
        stretches = name == "elastic_transform"  # first the whole, then, stronger, small parts
        assert strong > weak or stretches, name


@pytest.mark.parametrize("name", ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "elastic_transform"])
@pytest.mark.parametrize("size", [32, 96])
def test_what_moves_light_about_leaves_one_colour_as_it_is(name: str, size: int) -> None:
    pixels = torch.full((2, 3, size, size), 128, dtype=torch.uint8)
    for severity in SEVERITIES:
        # the published aperture touches the edge of its window where its radius is 8, and adds up to a little over 1
        changed = corrupt(pixels, name, severity, ROWS[:2]).int()
        assert (changed - 128).abs().max() <= (2 if name == "defocus_blur" else 0)


def test_noise_has_the_published_deviation() -> None:
    grey = torch.full((4, 3, 128, 128), 128, dtype=torch.uint8)
    for severity, deviation in enumerate(LARGE["gaussian_noise"][:3], 1):
        noisy = corrupt(grey, "gaussian_noise", severity, torch.arange(4)).double() / 255
        assert noisy.std() == pytest.approx(deviation, rel=0.02)
        assert noisy.mean() == pytest.approx((128 - 0.5) / 255, abs=0.002)  # rounded down


def test_photons_are_poisson_distributed() -> None:
    for level in (20, 128, 230):
        grey = torch.full((4, 3, 128, 128), level, dtype=torch.uint8)
        photons = LARGE["shot_noise"][1]
        noisy = corrupt(grey, "shot_noise", 2, torch.arange(4)).double() / 255 * photons
        counts = torch.ceil(noisy - 0.01)  # grey levels were rounded down
        free = counts[counts < photons]  # what is brighter than white is white
        mean = level / 255 * photons
        wanted = scipy.stats.poisson(mean)
        for k in range(0, photons, 3):
            assert (counts == k).double().mean() == pytest.approx(wanted.pmf(k), abs=0.004)
        assert len(free) / counts.numel() == pytest.approx(wanted.cdf(photons - 1), abs=0.005)


def test_impulses_hit_the_published_share_half_black_half_white() -> None:
    grey = torch.full((4, 3, 128, 128), 100, dtype=torch.uint8)
    for severity, share in enumerate(LARGE["impulse_noise"], 1):
        noisy = corrupt(grey, "impulse_noise", severity, torch.arange(4))
        assert (noisy == 0).double().mean() == pytest.approx(share / 2, rel=0.05)
        assert (noisy == 255).double().mean() == pytest.approx(share / 2, rel=0.05)
        assert ((noisy == 100) | (noisy == 0) | (noisy == 255)).all()


def test_blurs_are_scipys() -> None:
    x = waves(2, 40).double()
    for sigma, edge, truncate in ((0.7, "nearest", 4), (1.5, "nearest", 4), (3.0, "reflect", 3), (60.0, "reflect", 3)):
        theirs = scipy.ndimage.gaussian_filter(x.numpy(), (0, 0, sigma, sigma), mode=edge, truncate=truncate)
        assert np.allclose(gaussian_blur(x, sigma, edge, truncate).numpy(), theirs, atol=1e-9)  # type: ignore[arg-type]


def test_a_convolution_mirrors_at_the_edge_pixel_as_scipys() -> None:
    x, kernel = waves(1, 30).double(), disk(6, 0.5)
    theirs = scipy.ndimage.correlate(x[0, 0].numpy(), kernel.numpy(), mode="mirror")
    assert np.allclose(convolved(x, kernel)[0, 0].numpy(), theirs)


def test_the_zoomed_middle_is_scipys() -> None:
    x = waves(1, 48).double()
    for factor in (1.06, 1.3, 2.5):
        part = int(np.ceil(48 / factor))
        top = (48 - part) // 2
        theirs = scipy.ndimage.zoom(x[0, 0, top : top + part, top : top + part].numpy(), factor, order=1)
        cut = (len(theirs) - 48) // 2
        assert np.allclose(zoomed(x, factor)[0, 0].numpy(), theirs[cut : cut + 48, cut : cut + 48])


def test_motion_to_the_right_is_half_a_gaussian_along_the_row() -> None:
    x = torch.zeros(1, 1, 5, 40).double()
    x[..., 2, 20] = 1
    blurred = motion_blur(x, torch.zeros(1).double(), 10, 3)[0, 0]
    weights = np.exp(-0.5 * (np.arange(21) / 3) ** 2)
    assert np.allclose(blurred[2, :21].numpy(), (weights / weights.sum())[::-1])
    assert blurred[[0, 1, 3, 4]].abs().max() == 0


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(9, 14))
@settings(max_examples=20, deadline=None)
def test_glass_is_the_authors_walk_from_the_last_pixel_to_the_first(seed: int, step: int, size: int) -> None:
    numbers = Dice(torch.tensor([seed, seed + 1]), 0, "glass").uniform(2, size, size)
    for k in range(2):
        x = np.arange(size * size).reshape(size, size)
        across, down = ((numbers[k] * 2 * step).floor().int() - step).numpy()
        for h in range(size - step, step, -1):
            for w in range(size - step, step, -1):
                x[h, w] = x[h + down[h, w], w + across[h, w]]
        assert np.array_equal(copied_from(numbers, step)[k].numpy(), x.ravel())


@pytest.mark.parametrize(("mirror", "mode"), [("pixel", "mirror"), ("edge", "reflect")])
def test_places_between_pixels_and_beyond_the_edge_are_scipys(mirror: str, mode: str) -> None:
    rng = np.random.default_rng(0)
    x = waves(2, 12).double()
    rows, columns = (torch.from_numpy(rng.uniform(-15, 27, (2, 20, 20))) for _ in range(2))
    ours = sampled(x, rows, columns, mirror)
    for k in range(2):
        theirs = scipy.ndimage.map_coordinates(
            x[k, 1].numpy(), [rows[k].numpy(), columns[k].numpy()], order=1, mode=mode
        )
        assert np.allclose(ours[k, 1].numpy(), theirs)


def test_brightness_raises_the_value_of_hsv_alone() -> None:
    pixels = waves(1, 32)
    pixels[0, :, 0, 0] = 0
    changed = corrupt(pixels, "brightness", 5, ROWS[:1])
    more = strength("brightness", 5, (32, 32))
    for place in range(32):
        h, s, v = colorsys.rgb_to_hsv(*(pixels[0, :, place, place].double() / 255).tolist())
        wanted = np.array(colorsys.hsv_to_rgb(h, s, min(1, v + more))) * 255
        assert np.abs(changed[0, :, place, place].numpy() - wanted).max() <= 1


def test_contrast_is_a_factor_about_the_mean() -> None:
    pixels = waves(2, 128)
    changed = corrupt(pixels, "contrast", 4, ROWS[:2]).double()
    mean = pixels.double().mean(dim=(2, 3), keepdim=True)
    assert (changed - (mean + 0.1 * (pixels - mean))).abs().max() <= 1


def test_jpeg_and_large_pixels_are_pillows() -> None:
    pixels = waves(1, 100)
    picture = Image.fromarray(pixels[0].permute(1, 2, 0).numpy())
    page = io.BytesIO()
    picture.save(page, "JPEG", quality=LARGE["jpeg_compression"][4])
    wanted = np.asarray(Image.open(page))
    assert np.array_equal(corrupt(pixels, "jpeg_compression", 5, ROWS[:1])[0].permute(1, 2, 0).numpy(), wanted)
    wanted = np.asarray(picture.resize((25, 25), Image.Resampling.BOX).resize((100, 100), Image.Resampling.BOX))
    assert np.array_equal(corrupt(pixels, "pixelate", 5, ROWS[:1])[0].permute(1, 2, 0).numpy(), wanted)


def test_fog_is_a_landscape_from_0_to_1_that_joins_at_its_edges() -> None:
    land = plasma(Dice(torch.arange(50), 0, "fog"), 32, 2.0)
    assert land.amin(dim=(1, 2)).abs().max() == 0
    assert (land.amax(dim=(1, 2)) == 1).all()
    across = (land[:, :, 0] - land[:, :, -1]).abs().mean()
    inside = (land[:, :, 15] - land[:, :, 16]).abs().mean()
    assert across < 2 * inside


def test_small_pictures_get_the_strengths_of_cifar_10_c() -> None:
    assert strength("jpeg_compression", 1, (32, 32)) == SMALL["jpeg_compression"][0] == 80
    assert strength("jpeg_compression", 1, (224, 224)) == LARGE["jpeg_compression"][0] == 25
    assert set(LARGE) == set(SMALL)
    assert all(len(table[name]) == 5 for table in (LARGE, SMALL) for name in CORRUPTIONS)


def test_what_does_not_exist_is_refused_in_one_line() -> None:
    for name, severity in (("rain", 1), ("snow", 0), ("snow", 6)):
        with pytest.raises(VitrailError, match=f"there is no {name} of severity {severity}"):
            corrupt(waves(), name, severity, ROWS)
