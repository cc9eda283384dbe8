"""Every mode of picture, and every kind of array, becomes 8-bit RGB."""

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.pictures.making import NOISE, chunk, encode, over_white, pixels, png, rgb
from vitrail.errors import PictureError
from vitrail.pictures import as_picture, decode, modes

RNG = np.random.default_rng(7)


def test_sixteen_bit_grey_is_scaled_by_257_and_not_clipped() -> None:
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    expected = np.rint(ramp / 257)
    for kind in ("PNG", "TIFF"):
        picture = pixels(decode(encode(Image.fromarray(ramp), kind)))
        np.testing.assert_array_equal(picture, rgb(expected))
    big_endian = Image.frombytes("I;16B", (256, 256), ramp.astype(">u2").tobytes())
    np.testing.assert_array_equal(pixels(as_picture(big_endian))[:, :, 0], expected)
    np.testing.assert_array_equal(pixels(as_picture(ramp))[:, :, 0], expected)
    np.testing.assert_array_equal(pixels(as_picture(ramp.astype(">u2")))[:, :, 0], expected)


def test_integers_that_fit_in_sixteen_bits_are_sixteen_bit() -> None:
    values = np.array([[0, 257, 65535]], np.int32)
    assert pixels(as_picture(Image.fromarray(values)))[0, :, 0].tolist() == [0, 1, 255]
    pgm = b"P5 3 1 65535\n" + values.astype(">u2").tobytes()
    assert pixels(decode(pgm))[0, :, 0].tolist() == [0, 1, 255]


def test_wider_integers_are_spread_from_least_to_greatest() -> None:
    values = np.array([[-100_000, 0, 100_000]], np.int32)
    assert pixels(decode(encode(Image.fromarray(values), "TIFF")))[0, :, 0].tolist() == [0, 128, 255]
    constant = Image.fromarray(np.full((2, 2), 70_000, np.int32))
    assert (pixels(as_picture(constant)) == 128).all()


def test_a_float_ramp_in_the_unit_interval_is_multiplied_by_255() -> None:
    ramp = (np.arange(256, dtype=np.float32) / 255)[None]
    assert pixels(decode(encode(Image.fromarray(ramp), "TIFF")))[0, :, 1].tolist() == list(range(256))


def test_floats_beyond_one_are_spread_and_nan_is_black() -> None:
    values = np.array([[10, 20, 30, np.nan, np.inf, -np.inf]], np.float32)
    assert pixels(decode(encode(Image.fromarray(values), "TIFF")))[0, :, 2].tolist() == [0, 128, 255, 0, 255, 0]
    for odd in (np.nan, -np.inf):
        assert (pixels(as_picture(Image.fromarray(np.full((1, 2), odd, np.float32)))) == 0).all()
    assert pixels(as_picture(Image.fromarray(np.array([[np.nan, 1.0]], np.float32))))[0, :, 0].tolist() == [0, 255]


def test_no_kind_of_nan_complains() -> None:
    values = np.array([0x7FA00000, 0x41200000, 0x41F00000], np.uint32).view(np.float32)[
        None
    ]  # a signalling one, 10, 30
    data = encode(Image.frombytes("F", (3, 1), values.tobytes()), "TIFF")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pixels(decode(data))[0, :, 0].tolist() == [0, 0, 255]


def test_a_large_deep_picture_is_scaled_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    values = RNG.normal(50, 1000, (40, 30)).astype(np.float32)
    whole = pixels(as_picture(Image.fromarray(values)))
    expected = np.rint((values - values.min()) / np.float64(values.max() - values.min()) * 255)
    assert np.abs(whole[..., 0] - expected).max() <= 1
    monkeypatch.setattr(modes, "_BAND", 70)
    np.testing.assert_array_equal(pixels(as_picture(Image.fromarray(values))), whole)


def test_alpha_is_composed_over_white() -> None:
    rgba = RNG.integers(0, 256, (16, 16, 4), dtype=np.uint8)
    expected = over_white(rgba[..., :3], rgba[..., 3])
    for picture in (decode(encode(Image.fromarray(rgba), "PNG")), as_picture(rgba)):
        assert np.abs(pixels(picture) - expected).max() <= 0.5 + 1e-9
    la = Image.merge("LA", [Image.fromarray(rgba[..., 0]), Image.fromarray(rgba[..., 3])])
    grey = over_white(rgba[..., :1], rgba[..., 3])
    assert np.abs(pixels(decode(encode(la, "PNG"))) - grey).max() <= 0.5 + 1e-9
    premultiplied = pixels(as_picture(Image.fromarray(rgba).convert("RGBa")))
    assert np.abs(premultiplied - expected).max() <= 1.5
    assert pixels(as_picture(la.convert("La"))).shape == (16, 16, 3)


def test_an_opaque_alpha_channel_changes_nothing() -> None:
    opaque = NOISE.copy()
    opaque.putalpha(255)
    np.testing.assert_array_equal(pixels(as_picture(opaque)), np.asarray(NOISE))


@pytest.mark.parametrize("transparency", [1, bytes([255, 0, 128])])
def test_a_palette_with_transparency_is_composed_over_white(transparency: int | bytes) -> None:
    picture = Image.new("P", (3, 1))
    picture.putpalette([10, 20, 30, 40, 50, 60, 0, 0, 0])
    picture.putdata([0, 1, 2])
    last = [0, 0, 0] if isinstance(transparency, int) else [127, 127, 127]
    expected = [[10, 20, 30], [255, 255, 255], last]
    data = encode(picture, "PNG", transparency=transparency)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pixels(decode(data))[0].tolist() == expected
        with Image.open(io.BytesIO(data)) as given_picture:
            given_picture.load()
            palette = given_picture.im.getpalette("RGBA", "RGBA")
            assert pixels(as_picture(given_picture))[0].tolist() == expected
            assert given_picture.im.getpalette("RGBA", "RGBA") == palette  # the user's picture is as it was
    assert pixels(decode(encode(picture, "PNG")))[0].tolist() == [[10, 20, 30], [40, 50, 60], [0, 0, 0]]


def test_a_transparent_colour_in_sixteen_bits_is_white() -> None:
    grey = chunk(b"tRNS", struct.pack(">H", 1000)) + chunk(b"IDAT", zlib.compress(struct.pack(">xHH", 1000, 25700)))
    assert pixels(decode(png(2, 1, 16, 0, grey)))[0, :, 0].tolist() == [255, 100]
    values = [0x1234, 0x5678, 0x9ABC]
    rgb = chunk(b"tRNS", struct.pack(">3H", *values)) + chunk(
        b"IDAT", zlib.compress(struct.pack(">x6H", *values, 0x0A00, 0x1400, 0x1E00))
    )
    assert pixels(decode(png(2, 1, 16, 2, rgb)))[0].tolist() == [[255, 255, 255], [10, 20, 30]]


def test_cmyk_follows_the_formula_also_through_an_inverted_adobe_jpeg() -> None:
    ink = Image.new("CMYK", (16, 16), (0, 128, 255, 40))
    k = 1 - 40 / 255
    expected = np.array([255 * k, 255 * (1 - 128 / 255) * k, 0])
    assert np.abs(pixels(as_picture(ink))[0, 0] - expected).max() <= 1
    assert np.abs(pixels(decode(encode(ink, "JPEG", quality=100)))[0, 0] - expected).max() <= 4
    assert np.abs(pixels(decode(encode(ink, "TIFF")))[0, 0] - expected).max() <= 1


def test_one_bit_pictures_are_black_and_white() -> None:
    bits = np.array([[True, False], [False, True]])
    for picture in (decode(encode(Image.fromarray(bits), "PNG")), as_picture(bits)):
        assert pixels(picture)[..., 0].tolist() == [[255, 0], [0, 255]]


@pytest.mark.parametrize("mode", ["YCbCr", "HSV", "LAB", "RGBX"])
def test_other_colour_spaces_come_back_to_rgb(mode: str) -> None:
    colours = Image.new("RGB", (4, 4), (200, 100, 50))
    stored = colours.convert(mode)
    assert np.abs(pixels(as_picture(stored)).astype(int) - np.asarray(colours)).max() <= 4


def test_a_palette_with_its_own_alpha_band_is_read() -> None:
    picture = Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 255, 0, 0, 0, 0], "RGBA")
    picture.putdata([0, 1])
    assert pixels(as_picture(picture))[0].tolist() == [[10, 20, 30], [255, 255, 255]]
    assert pixels(as_picture(picture.convert("PA")))[0].tolist() == [[10, 20, 30], [255, 255, 255]]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_a_moving_picture_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert (pixels(decode(data)) == [255, 0, 0]).all()


# ---- arrays


def test_arrays_of_every_allowed_shape_become_pictures() -> None:
    grey = RNG.integers(0, 256, (5, 7), dtype=np.uint8)
    for array in (grey, grey[:, :, None], rgb(grey), grey.astype(np.float64) / 255):
        np.testing.assert_array_equal(pixels(as_picture(array))[..., 0], grey)
    np.testing.assert_array_equal(pixels(as_picture(grey[::-1, ::2]))[..., 0], grey[::-1, ::2])
    rgba = np.dstack([np.asarray(NOISE), np.full((37, 53), 255, np.uint8)])
    np.testing.assert_array_equal(pixels(as_picture(rgba)), np.asarray(NOISE))


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.array([[0.0, 255.0]]), r"do not lie in \[0, 1\]"),
        (np.array([[-0.1, 0.5]]), r"do not lie in \[0, 1\]"),
        (np.array([[0.5, np.nan]]), "NaN"),
        (np.zeros((3, 8, 9), np.uint8), "channels last"),
        (np.zeros((8, 9, 2), np.uint8), "change the shape"),
        (np.zeros((2, 8, 9, 3), np.uint8), "is not height x width"),
        (np.zeros((), np.uint8), "is not height x width"),
        (np.zeros((0, 9, 3), np.uint8), "no pixels"),
        (np.zeros((8, 9), np.int64), "no known range"),
        (np.array([["a"]]), "no known range"),
    ],
)
def test_an_array_that_is_no_picture_is_refused_with_the_reason(array: np.ndarray, why: str) -> None:
    with pytest.raises(PictureError, match=why) as caught:
        as_picture(array, name="frame\n7")
    assert str(caught.value).startswith("frame\\n7: ")
    assert len(str(caught.value).splitlines()) == 1


def test_a_hair_outside_the_unit_interval_is_rounding() -> None:
    assert pixels(as_picture(np.array([[-1e-7, 1 + 1e-7]])))[0, :, 0].tolist() == [0, 255]


def test_something_else_is_refused_by_its_type() -> None:
    with pytest.raises(PictureError, match="a dict is not a picture"):
        as_picture({})  # type: ignore[arg-type]
