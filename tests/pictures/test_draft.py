"""JPEGs decoded smaller: what is asked for, how far the pixels move, and that every way in gives the same."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.pictures.making import FILES, UPRIGHT, encode, exif, pixels
from vitrail.errors import PictureError
from vitrail.pictures import MARGIN, Preprocessing, as_picture, decode, decode_at, reduction

X, Y = np.meshgrid(np.arange(803), np.arange(605))
WAVES = np.stack([X * 255 / 802, Y * 255 / 604, 128 + 120 * np.sin(X / 40 + Y / 30)], -1).astype(np.uint8)
PHOTO = Image.fromarray(WAVES)


def resized(picture: Image.Image, full: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    scale = reduction(picture.size, full)
    return np.asarray(picture.resize(size, Image.Resampling.BICUBIC, (0, 0, full[0] / scale, full[1] / scale)))


def difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.abs(one.astype(int) - other.astype(int))


@pytest.mark.parametrize(("shrink", "scale"), [(0.0, 1), (1, 1), (2.9, 1), (3, 2), (5.9, 2), (6, 4), (12, 8), (1e9, 8)])
def test_what_comes_is_still_larger_than_what_is_wanted(shrink: float, scale: int) -> None:
    picture, full = decode_at(encode(PHOTO, "JPEG"), lambda width, height: shrink)
    assert full == PHOTO.size
    assert picture.size == (-(-803 // scale), -(-605 // scale))
    assert reduction(picture.size, full) == scale
    assert scale == 1 or MARGIN * scale <= shrink


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 75},
        {"quality": 95, "subsampling": 0},
        {"progressive": True},
        {"exif": exif(3)},
        {"restart_marker_rows": 1},
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_smaller_decoding_resizes_to_the_same_picture(mode: str, options: dict[str, Any]) -> None:
    data = encode(PHOTO.crop((0, 0, 800, 600)).convert(mode), "JPEG", **options)
    whole = decode(data)
    for shrink, size in ((6.5, (120, 90)), (3.2, (250, 187))):
        picture, full = decode_at(data, lambda width, height, shrink=shrink: shrink)
        assert picture.width < whole.width / 1.9
        moved = difference(resized(picture, full, size), resized(whole, whole.size, size))
        assert moved.mean() < 1
        assert moved.max() < 16


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("size", [(800, 600), (803, 605), (803, 600), (800, 605)])
def test_no_turn_shifts_the_picture(orientation: int, size: tuple[int, int]) -> None:
    """A column that is partly beyond the edge, at the wrong end, would move everything by up to three pixels here."""
    data = encode(PHOTO.crop((0, 0, *size)), "JPEG", quality=95, exif=exif(orientation))
    asked = []
    picture, full = decode_at(data, lambda *size: asked.append(size) or 6.5)  # type: ignore[func-returns-value]
    whole = decode(data)
    assert asked == [full] == [whole.size]
    inner = difference(resized(picture, full, (100, 100)), resized(whole, whole.size, (100, 100)))[2:-2, 2:-2]
    assert inner.mean() < 0.7
    assert inner.max() < 8
    if size == (800, 600):
        assert picture.width < full[0] / 1.9


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.floats(0.1, 30), st.integers(1, 8), st.booleans())
def test_any_size_can_be_asked_for_by_any_amount(
    width: int, height: int, shrink: float, orientation: int, progressive: bool
) -> None:
    data = encode(PHOTO.crop((0, 0, width, height)), "JPEG", exif=exif(orientation), progressive=progressive)
    picture, full = decode_at(data, lambda *_: shrink)
    assert full == decode(data).size
    scale = reduction(picture.size, full)
    assert picture.size == (-(-full[0] // scale), -(-full[1] // scale))
    assert scale <= max(1, shrink / MARGIN)


@pytest.mark.parametrize("kind", sorted(FILES))
def test_other_formats_come_whole(kind: str) -> None:
    picture, full = decode_at(FILES[kind], lambda *_: 1.0)
    np.testing.assert_array_equal(pixels(picture), pixels(decode(FILES[kind])))
    assert full == picture.size
    large, size = decode_at(FILES[kind], lambda *_: 100.0)
    assert size == full
    assert (large.size == full) == (kind not in ("jpeg", "progressive", "mpo"))  # 53 x 37 turned has a rest


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("size", [(800, 600), (803, 605)])
def test_a_truncated_jpeg_is_filled_at_the_smaller_size_too(size: tuple[int, int], progressive: bool) -> None:
    data = encode(PHOTO.crop((0, 0, *size)), "JPEG", progressive=progressive)
    half = data[: len(data) // 2]
    with pytest.raises(PictureError, match="is truncated"):
        decode_at(half, lambda *_: 6.5)
    picture, full = decode_at(half, lambda *_: 6.5, truncated="fill")
    assert full == size
    assert reduction(picture.size, full) == 4
    whole, _ = decode_at(data, lambda *_: 6.5)
    rows = 8 if progressive else picture.height // 4
    assert difference(pixels(picture), pixels(whole))[:rows].mean() < (40 if progressive else 0.01)


def test_a_reduction_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="100 x 100 is no reduction of 150 x 150"):
        reduction((100, 100), (150, 150))


# ---- preprocessing


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
@pytest.mark.parametrize("size", [(803, 605), (605, 803), (800, 100)])
def test_the_preprocessing_of_a_file_is_that_of_its_picture(size: tuple[int, int], fit: Any, tmp_path: Path) -> None:
    data = encode(PHOTO.resize(size), "JPEG", quality=90)
    path = tmp_path / "photo.jpg"
    path.write_bytes(data)
    chosen = Preprocessing(64, fit)
    exact = chosen.pixels(as_picture(data))
    drafted = chosen.pixels(data)
    moved = difference(drafted, exact)
    assert moved.mean() < 1
    assert moved.max() < 24
    with open(path, "rb") as file:
        for source in (path, str(path), bytearray(data), io.BytesIO(data), file):
            np.testing.assert_array_equal(chosen.pixels(source), drafted)
    np.testing.assert_array_equal(chosen(path), chosen.normalise(drafted))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"])
def test_nearest_is_never_drafted_and_the_others_are(interpolation: Any) -> None:
    data = encode(PHOTO, "JPEG", quality=90)
    chosen = Preprocessing(32, "squash", 1.0, interpolation)
    same = np.array_equal(chosen.pixels(data), chosen.pixels(as_picture(data)))
    assert same == (interpolation == "nearest")


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_below_twice_the_margin_the_pixels_of_a_file_are_exact(fit: Any) -> None:
    data = encode(PHOTO, "JPEG", quality=90)
    chosen = Preprocessing(round(605 / (2 * MARGIN)) + 2, fit, 1.0)
    assert (chosen.pixels(data) == chosen.pixels(as_picture(data))).all() == (fit != "pad")


def test_real_photographs_move_by_less_than_a_grey_level_in_the_mean(imagenet_sample: Path) -> None:
    """Real pictures, at 224 / 0.9 from four times the size that the sample has, and their difference after drafting."""
    chosen = Preprocessing()
    paths = sorted(imagenet_sample.rglob("*.JPEG"))[::200]
    moved = []
    for path in paths:
        picture = decode(path)
        large = picture.resize((picture.width * 5, picture.height * 5), Image.Resampling.LANCZOS)
        data = encode(large, "JPEG", quality=90)
        moved.append(difference(chosen.pixels(data), chosen.pixels(as_picture(data))))
    assert max(one.mean() for one in moved) < 1.5
    assert np.mean([one.mean() for one in moved]) < 0.8
