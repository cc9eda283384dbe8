"""Files of pictures, made byte by byte or by Pillow; what the tests of reading share."""

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, features

from vitrail.errors import PictureError
from vitrail.pictures import decode

NOISE = Image.fromarray(np.random.default_rng(7).integers(0, 256, (37, 53, 3), dtype=np.uint8))

UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    # the EXIF standard: where row 0 and column 0 of the stored picture are to be seen
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


def encode(picture: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(picture: Image.Image) -> np.ndarray:
    assert picture.mode == "RGB"
    return np.asarray(picture)


def rgb(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[:, :, None], 3, 2)


def over_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Alpha composed over white, by its definition."""
    a = alpha.astype(float)[..., None] / 255
    return np.rint(colour * a + 255 * (1 - a))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, colour: int, *chunks: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IEND", b"")


def png_bomb(width: int, height: int) -> bytes:
    """A black 1-bit PNG: a kilobyte for eight million pixels."""
    squeeze = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    data = b"".join([squeeze.compress(row) for _ in range(height)] + [squeeze.flush()])
    return png(width, height, 1, 0, chunk(b"IDAT", data))


def exif(orientation: int) -> bytes:
    block = Image.Exif()
    block[0x0112] = orientation
    return block.tobytes()


def with_segment(jpeg: bytes, marker: int, data: bytes) -> bytes:
    """The JPEG with one more segment at its start."""
    return jpeg[:2] + bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data + jpeg[2:]


def without_segment(jpeg: bytes, marker: int) -> bytes:
    start = jpeg.index(bytes([0xFF, marker]))
    (length,) = struct.unpack(">H", jpeg[start + 2 : start + 4])
    return jpeg[:start] + jpeg[start + 2 + length :]


def attempt(data: bytes, **options: object) -> Image.Image | str:
    """The picture, or the line that refuses it."""
    try:
        return decode(data, **options)  # type: ignore[arg-type]
    except PictureError as error:
        return str(error)


def refusal(source: object, **options: object) -> str:
    """The one line that refuses it."""
    with pytest.raises(PictureError) as caught:
        decode(source, **options)  # type: ignore[arg-type]
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    line.encode()
    return line


FILES = {
    "jpeg": encode(NOISE, "JPEG", quality=95),
    "progressive": encode(NOISE, "JPEG", progressive=True),
    "jpeg with exif": encode(NOISE, "JPEG", exif=exif(6)),
    "mpo": encode(NOISE, "MPO", save_all=True, append_images=[NOISE.rotate(180)]),
    "png": encode(NOISE, "PNG"),
    "interlaced palette png": encode(NOISE.quantize(31), "PNG", transparency=bytes(range(31))),
    "webp": encode(NOISE, "WEBP", lossless=True),
    "gif": encode(NOISE, "GIF"),
    "bmp": encode(NOISE, "BMP"),
    "tiff": encode(NOISE, "TIFF"),
    "tiff lzw": encode(NOISE, "TIFF", compression="tiff_lzw"),
    "ppm": encode(NOISE, "PPM"),
    "jpeg 2000": encode(NOISE, "JPEG2000"),
    **({"avif": encode(NOISE, "AVIF")} if features.check("avif") else {}),
}
