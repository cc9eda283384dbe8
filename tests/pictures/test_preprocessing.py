"""The preprocessing of a model: the pixels of timm, and what is refused."""

import io
import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.errors import ConfigError, PictureError
from vitrail.pictures import Preprocessing, preprocessing

INTERPOLATIONS = ["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
CROP_MODES = {"crop": "center", "squash": "squash", "pad": "border"}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def timm_pixels(chosen: Preprocessing, picture: Image.Image) -> np.ndarray:
    data = pytest.importorskip("timm.data", reason="compares with timm, which is not installed")
    transform = data.create_transform(**chosen.to_timm(), is_training=False, normalize=False)
    return np.asarray(transform(picture).permute(1, 2, 0))


sides = st.one_of(st.integers(1, 12), st.integers(20, 90), st.integers(100, 700))
ratios = st.one_of(st.sampled_from([1.0, 0.875, 0.9, 0.95, 224 / 248]), st.floats(0.3, 1.0))


# ---- the pixels of timm


@settings(max_examples=150, deadline=None)
@given(sides, sides, st.integers(1, 48), ratios, st.sampled_from(sorted(CROP_MODES)), st.sampled_from(INTERPOLATIONS))
def test_square_pixels_are_those_of_timm(
    width: int, height: int, side: int, crop_pct: float, fit: Any, interpolation: Any
) -> None:
    chosen = Preprocessing(side, fit, crop_pct, interpolation, **IMAGENET)
    picture = noise(width, height)
    if fit == "pad" and min(width, height) * (side // crop_pct) / max(width, height) <= 0.5:
        assert chosen.pixels(picture).shape == (side, side, 3)  # timm fails: it resizes to a width of zero
    else:
        np.testing.assert_array_equal(chosen.pixels(picture), timm_pixels(chosen, picture))


@settings(max_examples=100, deadline=None)
@given(
    sides,
    sides,
    st.tuples(st.integers(2, 40), st.integers(2, 40)),
    ratios,
    st.sampled_from(sorted(CROP_MODES)),
    st.sampled_from(INTERPOLATIONS),
)
def test_pixels_of_other_shapes_are_those_of_timm(
    width: int, height: int, size: tuple[int, int], crop_pct: float, fit: Any, interpolation: Any
) -> None:
    if fit == "crop" and size[0] != size[1]:
        interpolation = "bilinear"  # timm always takes this one here
    chosen = Preprocessing(size, fit, crop_pct, interpolation)
    picture = noise(width, height)
    large = [math.floor(n / crop_pct) for n in size]
    if fit == "pad" and min(height, width) / max(height / large[0], width / large[1]) <= 0.5:
        assert chosen.pixels(picture).shape == (*size, 3)
    else:
        np.testing.assert_array_equal(chosen.pixels(picture), timm_pixels(chosen, picture))


@pytest.mark.parametrize("fit", CROP_MODES)
def test_the_interpolation_holds_for_every_shape(fit: Any) -> None:
    for size in ((96, 96), (96, 64)):
        pixels = [Preprocessing(size, fit, 0.9, how).pixels(noise(120, 130)) for how in ("bilinear", "bicubic")]
        assert (pixels[0] != pixels[1]).mean() > 0.5


@pytest.mark.parametrize("fit", CROP_MODES)
@pytest.mark.parametrize("size", [(640, 480), (333, 500), (100, 80), (224, 224), (1200, 60), (60, 1200)])
def test_a_full_sized_picture_goes_through_exactly_as_in_timm(size: tuple[int, int], fit: Any) -> None:
    data = pytest.importorskip("timm.data", reason="compares with timm, which is not installed")
    chosen = Preprocessing(224, fit, 0.9, **IMAGENET)
    picture = noise(*size)
    theirs = data.create_transform(**chosen.to_timm(), is_training=False)(picture).numpy()
    ours = chosen(picture)
    assert ours.dtype == np.float32
    assert ours.shape == (3, 224, 224)
    assert ours.flags.c_contiguous
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(chosen.normalise(chosen.pixels(picture)), ours)


def test_a_grey_model_sees_what_timm_shows_it() -> None:
    data = pytest.importorskip("timm.data", reason="compares with timm, which is not installed")
    chosen = Preprocessing(28, "pad", 1.0, mean=(0.1307,), std=(0.3081,))
    picture = noise(50, 31)
    theirs = data.create_transform(**chosen.to_timm(), is_training=False)(picture.convert("L")).numpy()
    assert chosen(picture).shape == (1, 28, 28)
    np.testing.assert_allclose(chosen(picture), theirs, rtol=0, atol=1e-6)


# ---- closed forms


def test_normalising_is_the_formula() -> None:
    chosen = Preprocessing(4, **IMAGENET)
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5
    expected = (pixels.astype(np.float64) / 255 - IMAGENET["mean"]) / IMAGENET["std"]
    np.testing.assert_allclose(chosen.normalise(pixels), expected.transpose(2, 0, 1), rtol=0, atol=1e-6)
    batch = chosen.normalise(np.stack([pixels, pixels[::-1]]))
    assert batch.shape == (2, 3, 4, 4)
    assert batch.flags.c_contiguous
    np.testing.assert_array_equal(batch[0], chosen.normalise(pixels))


def test_normalising_floats_or_other_channels_is_refused() -> None:
    with pytest.raises(ValueError, match="not uint8"):
        Preprocessing(4).normalise(np.zeros((4, 4, 3)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not uint8"):
        Preprocessing(4).normalise(np.zeros((4, 4, 1), np.uint8))


def test_padding_is_centred_and_has_the_colour_of_the_mean() -> None:
    chosen = Preprocessing(8, "pad", 1.0, "nearest", **IMAGENET)
    pixels = chosen.pixels(Image.new("RGB", (8, 4), "red"))
    border = [round(255 * value) for value in IMAGENET["mean"]]
    assert (pixels[2:6] == [255, 0, 0]).all()
    assert (pixels[:2] == border).all()
    assert (pixels[6:] == border).all()
    assert np.abs(chosen.normalise(pixels)[:, :2]).max() < 0.01


def test_padding_keeps_at_least_a_line_of_the_thinnest_picture() -> None:
    pixels = Preprocessing(16, "pad", 1.0, "nearest").pixels(Image.new("RGB", (3000, 1), "red"))
    assert (pixels == [255, 0, 0]).all(-1).sum() == 16


def test_anything_that_is_a_picture_is_taken() -> None:
    chosen = Preprocessing(16)
    picture = noise(40, 30)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    for source in (picture, np.asarray(picture), buffer.getvalue(), buffer):
        np.testing.assert_array_equal(chosen(source), chosen(picture))
    with pytest.raises(PictureError):
        chosen(b"no picture")


@pytest.mark.parametrize("size", [(60, 1), (1, 60), (35, 44)])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_leaving_out_what_the_crop_drops_changes_no_more_than_a_grey_level(
    size: tuple[int, int], interpolation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Preprocessing(32, "crop", 0.9, interpolation)
    picture = noise(*size)
    whole = chosen.pixels(picture).astype(int)
    monkeypatch.setattr(preprocessing, "_LARGEST_RESIZED", 0)
    assert np.abs(chosen.pixels(picture) - whole).max() <= 1


def test_a_thread_of_a_picture_does_not_fill_the_memory() -> None:
    for size in ((100_000, 1), (1, 100_000)):  # resized in whole, this is 25 million x 248
        assert Preprocessing().pixels(Image.new("RGB", size, "red")).tolist()[0][0] == [255, 0, 0]


# ---- validation


def test_numbers_and_lists_become_tuples() -> None:
    chosen = Preprocessing(size=32, mean=[0, 0, 0], std=[1, 1, 1])  # type: ignore[arg-type]
    assert chosen == Preprocessing(size=[32, 32], mean=(0.0,) * 3, std=(1.0,) * 3)  # type: ignore[arg-type]
    assert chosen.size == (32, 32)
    assert isinstance(chosen.mean[0], float)
    assert hash(chosen) == hash(replace(chosen))
    assert Preprocessing(np.int64(8)).size == (8, 8)  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        chosen.size = (1, 1)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"size": 0}, "at least 1 x 1"),
        ({"size": (3, 224, 224)}, r"neither a whole number nor \(height, width\)"),
        ({"size": 2.5}, "neither a whole number"),
        ({"size": "224"}, "neither a whole number"),
        ({"size": True}, "neither a whole number"),
        ({"size": None}, "neither a whole number"),
        ({"fit": "stretch"}, "fit='stretch' is not known; choose from crop, squash, pad"),
        ({"fit": ["crop"]}, "is not known"),
        ({"interpolation": "cubic"}, "choose from nearest"),
        ({"crop_pct": 0}, "above 0 and at most 1"),
        ({"crop_pct": 1.5}, "above 0 and at most 1"),
        ({"crop_pct": float("nan")}, "finite"),
        ({"crop_pct": "most"}, "finite"),
        ({"mean": 0.5}, "one for each channel"),
        ({"mean": ()}, "one for each channel"),
        ({"mean": (0.5, 0.5)}, "3 for RGB or 1 for grey"),
        ({"mean": (0.5,)}, "as many of each"),
        ({"mean": (0.5, float("inf"), 0.5)}, "finite"),
        ({"std": (0.5, 0.0, 0.5)}, "above 0"),
        ({"std": (0.5, "a", 0.5)}, "finite"),
    ],
)
def test_a_wrong_value_is_named_with_the_reason(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        Preprocessing(**wrong)
    assert len(str(caught.value).splitlines()) == 1
    assert next(iter(wrong)) in str(caught.value)


def test_the_description_says_what_is_done() -> None:
    said = Preprocessing(224, "crop", 0.9, **IMAGENET).describe()
    expected = "resize shorter side to 248 (bicubic), centre crop 224 x 224, mean (0.485, 0.456, 0.406), "
    assert said == expected + "std (0.229, 0.224, 0.225)"
    assert Preprocessing((192, 96)).describe().startswith("resize to cover 213 x 106 (bicubic), centre crop 192 x 96")
    assert Preprocessing(224, "squash", 1.0).describe().startswith("resize to 224 x 224 (bicubic), mean")
    assert (
        Preprocessing(28, "pad", 1.0, mean=(0.1,), std=(0.3,)).describe().startswith("grey, resize to fit in 28 x 28")
    )
