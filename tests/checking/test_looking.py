"""What one look at a picture says of it."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.checking.looking import look
from vitrail.checking.records import KINDS, RECORD, Doubt, Trait
from vitrail.errors import PictureError
from vitrail.pictures import decode

RNG = np.random.default_rng(0)
SMOOTH = Image.fromarray(RNG.integers(0, 256, (6, 8, 3), np.uint8)).resize((96, 72), Image.Resampling.BICUBIC)


def encoded(picture: Image.Image, form: str, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def seen(readable: object, name: str = "picture") -> np.void:
    record = np.zeros(1, RECORD)[0]
    look(readable, name, record)
    return record


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(SMOOTH, "JPEG", exif=exif)


@pytest.mark.parametrize(
    ("readable", "name", "doubts"),
    [
        (encoded(SMOOTH, "JPEG"), "a.jpg", 0),
        (encoded(SMOOTH, "JPEG"), "a.JPEG", 0),
        (encoded(SMOOTH, "JPEG"), "a", 0),
        (encoded(SMOOTH, "JPEG"), "a.b.data", 0),
        (encoded(SMOOTH, "PNG"), "a.jpg", Doubt.SUFFIX),
        (encoded(SMOOTH.resize((40, 15)), "PNG"), "a.png", Doubt.TINY),
        (encoded(SMOOTH.resize((205, 40)), "PNG"), "a.png", Doubt.LONG),
        (encoded(SMOOTH.resize((200, 40)), "PNG"), "a.png", 0),
        (encoded(Image.new("RGB", (64, 64), "navy"), "JPEG"), "a.jpg", Doubt.PLAIN),
        (encoded(Image.new("RGB", (900, 900), "navy"), "JPEG"), "a.jpg", Doubt.PLAIN),
        (encoded(Image.new("L", (8000, 7000)), "PNG"), "a.png", Doubt.PLAIN | Doubt.HUGE),
        (encoded(SMOOTH, "GIF", save_all=True, append_images=[SMOOTH.rotate(90)]), "a.gif", Doubt.ANIMATED),
        (encoded(SMOOTH, "WEBP", save_all=True, append_images=[SMOOTH.rotate(90)]), "a.webp", Doubt.ANIMATED),
        (encoded(SMOOTH, "GIF"), "a.gif", 0),
        (encoded(SMOOTH, "MPO", save_all=True, append_images=[SMOOTH.rotate(90)]), "a.jpg", 0),
    ],
)
def test_doubts(readable: bytes, name: str, doubts: int) -> None:
    assert Doubt(int(seen(readable, name)["doubts"])) == doubts


def test_a_speck_on_a_large_plain_picture_is_not_overlooked() -> None:
    picture = Image.new("RGB", (1600, 1600), "white")
    picture.putpixel((801, 803), (0, 0, 0))
    assert not seen(encoded(picture, "JPEG", quality=95))["doubts"] & Doubt.PLAIN


DEEP = Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64) * 16)
PALETTE = encoded(SMOOTH.quantize(16), "PNG")


def sixteen_bit_colours() -> bytes:
    """A PNG that Pillow reads and does not write."""
    rows = RNG.integers(0, 65536, (40, 40 * 3)).astype(">u2")
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 40, 40, 16, 2, 0, 0, 0)), (b"IDAT", body), (b"IEND", b"")]
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("readable", "traits"),
    [
        (encoded(SMOOTH, "JPEG"), 0),
        (encoded(SMOOTH.convert("L"), "JPEG"), Trait.GREY),
        (encoded(SMOOTH.convert("L").convert("RGB"), "JPEG"), Trait.COLOURLESS),
        (encoded(SMOOTH.convert("RGBA"), "PNG"), Trait.ALPHA),
        (encoded(SMOOTH.convert("LA"), "PNG"), Trait.ALPHA | Trait.GREY),
        (encoded(DEEP, "PNG"), Trait.DEEP | Trait.GREY),
        (sixteen_bit_colours(), Trait.DEEP),
        (encoded(DEEP, "TIFF"), Trait.DEEP | Trait.GREY),
        (encoded(SMOOTH.convert("CMYK"), "JPEG"), Trait.CMYK),
        (PALETTE, Trait.PALETTE),
        (turned(6), Trait.TURNED),
        (turned(1), 0),
        (np.asarray(SMOOTH), 0),
        (np.asarray(SMOOTH.convert("L")), Trait.GREY),
        (np.asarray(DEEP), Trait.GREY | Trait.DEEP),
        (SMOOTH.convert("RGBA"), Trait.ALPHA),
    ],
)
def test_traits(readable: object, traits: int) -> None:
    assert Trait(int(seen(readable)["traits"])) == traits | Trait.READABLE | Trait.HASHED


def test_the_size_is_the_upright_one_of_the_whole_picture() -> None:
    large = SMOOTH.resize((1500, 1101))
    exif = Image.Exif()
    exif[0x0112] = 6
    record = seen(content := encoded(large, "JPEG", exif=exif))
    assert (record["width"], record["height"], record["size"]) == (1101, 1500, len(content))
    assert KINDS[record["kind"]] == "JPEG"


def test_a_turned_copy_hashes_as_the_upright_one() -> None:
    upright = seen(encoded(SMOOTH, "PNG"))
    exif = Image.Exif()
    exif[0x0112] = 8
    other = seen(encoded(SMOOTH.transpose(Image.Transpose.ROTATE_270), "PNG", exif=exif))
    assert upright["phash"] == other["phash"]
    assert upright["dhash"] == other["dhash"]


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("part", np.linspace(0.02, 0.98, 25).round(2).tolist())
def test_a_jpeg_that_ends_early_is_noticed_although_it_is_decoded_small(part: float, progressive: bool) -> None:
    content = encoded(SMOOTH.resize((1200, 900)), "JPEG", quality=85, progressive=progressive)
    with pytest.raises(PictureError):
        seen(content[: int(part * len(content))])


def test_real_pictures_that_end_early_are_noticed(imagenet_sample: Path) -> None:
    for path in sorted(imagenet_sample.rglob("*.JPEG"))[:40]:
        content = path.read_bytes()
        for part in (0.3, 0.6, 0.9, 0.99):
            with pytest.raises(PictureError, match="truncated"):
                seen(content[: int(part * len(content))], "a.jpg")


def test_a_png_with_a_broken_remark_is_looked_at_all_the_same() -> None:
    content = encoded(SMOOTH, "PNG")
    remark = struct.pack(">I", 7) + b"tEXta\0hello" + b"\0\0\0\0"  # a wrong checksum
    record = seen(content[:33] + remark + content[33:], "a.png")
    assert KINDS[record["kind"]] == "PNG"
    assert not record["doubts"]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000"])
def test_of_damaged_files_those_are_readable_that_decode_reads(form: str) -> None:
    rng = np.random.default_rng(len(form))
    content = np.frombuffer(encoded(SMOOTH, form), np.uint8)
    for _ in range(40):
        damaged = content.copy()
        places = rng.integers(0, min(len(damaged), 400), 3)
        damaged[places] = rng.integers(0, 256, 3)
        try:
            decode(damaged.tobytes())
        except PictureError:
            with pytest.raises(PictureError):
                seen(damaged.tobytes())
        else:
            assert seen(damaged.tobytes())["traits"] & Trait.READABLE
