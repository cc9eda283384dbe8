"""Files that hold no picture, half of one, or far too much of one."""

import struct
import zlib
from collections.abc import Iterator

from PIL import Image

from tests.pictures.making import FILES, chunk, encode, png, png_bomb
from tests.pictures.specimen import Specimen

SUFFIX = {
    "jpeg": "jpg",
    "progressive": "jpg",
    "jpeg with exif": "jpg",
    "interlaced palette png": "png",
    "tiff lzw": "tif",
    "jpeg 2000": "jp2",
}


def broken() -> Iterator[Specimen]:
    for group in (_foreign, _cut, _damaged, _vast):
        yield from group()


def _foreign() -> Iterator[Specimen]:
    """No pictures at all, or of kinds that are not read."""
    for name, data in (
        ("zero bytes.jpg", b""),
        ("text.jpg", b"This is not the picture you are looking for.\n" * 40),
        ("page.png", b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head></html>\n"),
        ("answer.jpg", b'{"error": "quota exceeded"}'),
        ("drawing.png", b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'),
        ("noise.png", bytes(range(128, 256)) * 40),
        ("zeros.jpg", bytes(4096)),
        ("one byte.gif", b"G"),
        ("postscript.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%stdin) (r) file\n"),
        ("portable document.jpg", b"%PDF-1.7\n\xff\xd8\xff"),
        ("photoshop.jpg", b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 9, 9, 8, 3) + bytes(300)),
        ("program.jpg", b"\x7fELF\2\1\1" + bytes(200)),
        ("archive.jpg", b"PK\3\4" + bytes(200)),
        ("pointer.jpg", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"),
        ("icon.png", encode(Image.new("RGB", (16, 16)), "ICO")),
    ):
        yield Specimen(name, data)


def _cut() -> Iterator[Specimen]:
    """Every kind of file, cut within its header and within its pixels."""
    for kind, data in FILES.items():
        suffix = SUFFIX.get(kind, kind)
        yield Specimen(f"header of {kind}.{suffix}", data[:10])
        yield Specimen(f"half of {kind}.{suffix}", data[: len(data) // 2])
    yield Specimen("end of jpeg.jpg", FILES["jpeg"][-400:])


def _damaged() -> Iterator[Specimen]:
    plain = FILES["png"]
    pixels = plain.index(b"IDAT") + 40
    yield Specimen("wrong checksum of the header.png", plain[:30] + b"\0\0" + plain[32:])
    yield Specimen("wrong byte among the pixels.png", plain[:pixels] + b"\0\1\2\3\4\5" + plain[pixels + 6 :])
    yield Specimen("no pixels.png", png(9, 9, 8, 2))
    yield Specimen("no columns.png", png(0, 9, 8, 2, chunk(b"IDAT", zlib.compress(bytes(9)))))
    yield Specimen("unheard-of depth.png", png(9, 9, 3, 2, chunk(b"IDAT", zlib.compress(bytes(252)))))
    jpeg = FILES["jpeg"]
    frame = jpeg.index(b"\xff\xc0")
    yield Specimen("no rows.jpg", jpeg[: frame + 5] + b"\0\0" + jpeg[frame + 7 :])
    yield Specimen("no tables.jpg", jpeg[:20] + jpeg[jpeg.index(b"\xff\xc0") :])
    yield Specimen("first marker only.jpg", b"\xff\xd8\xff\xe0\0\x10JFIF\0")
    yield Specimen("strip out of the file.tif", _tiff(9, 9, strip=2**31))
    yield Specimen("bits beyond counting.tif", _tiff(9, 9, bits=65535))


def _vast() -> Iterator[Specimen]:
    """Small files that speak of more pixels than memory should hold."""
    yield Specimen("bomb.png", png_bomb(13_400, 13_400))
    gif = encode(Image.new("P", (1, 1)), "GIF")
    yield Specimen("vast.gif", gif[:6] + struct.pack("<HH", 65535, 65535) + gif[10:])
    frame = gif.index(b",", 13)
    yield Specimen("vast frame.gif", gif[: frame + 5] + struct.pack("<HH", 65535, 65535) + gif[frame + 9 :])
    bmp = encode(Image.new("RGB", (1, 1)), "BMP")
    yield Specimen("vast.bmp", bmp[:18] + struct.pack("<ii", 100_000, 100_000) + bmp[26:])
    yield Specimen("vast.tif", _tiff(100_000, 100_000))
    yield Specimen("vast.ppm", b"P6 100000 100000 255\n" + bytes(100))
    yield Specimen("vast beyond numbers.ppm", b"P6 " + b"9" * 5000 + b" 1 255\n" + bytes(100))
    canvas = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (2**14 * 4 - 1).to_bytes(3, "little") * 2
    yield Specimen("vast.webp", b"RIFF" + struct.pack("<I", 4 + len(canvas)) + b"WEBP" + canvas)
    lossless = b"VP8L" + struct.pack("<IBI", 6, 0x2F, 0x0FFF_FFFF) + b"\0"
    yield Specimen("vast lossless.webp", b"RIFF" + struct.pack("<I", 4 + len(lossless)) + b"WEBP" + lossless)
    jpeg = FILES["jpeg"]
    size = jpeg.index(b"\xff\xc0") + 5
    yield Specimen("vast.jpg", jpeg[:size] + struct.pack(">HH", 65500, 65500) + jpeg[size + 4 :])
    codestream = FILES["jpeg 2000"]
    boxed = codestream.index(b"ihdr") + 4
    siz = codestream.index(b"\xff\x51") + 6
    vast = struct.pack(">II", 100_000, 100_000)
    data = codestream[:boxed] + vast + codestream[boxed + 8 : siz] + vast + codestream[siz + 8 :]
    yield Specimen("vast.jp2", data)
    yield Specimen("vast.j2k", data[codestream.index(b"\xff\x4f\xff\x51") :])
    if "avif" in FILES:
        avif = FILES["avif"]
        at = avif.index(b"ispe") + 8
        yield Specimen("vast.avif", avif[:at] + vast + avif[at + 8 :])


def _tiff(width: int, height: int, bits: int = 8, strip: int = 8) -> bytes:
    """One grey strip that is said to hold everything."""
    tags = ((256, 4, width), (257, 4, height), (258, 3, bits), (259, 3, 1), (262, 3, 1), (273, 4, strip), (277, 3, 1))
    tags += ((278, 4, height), (279, 4, min(width * height, 2**32 - 1)))
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
