"""Odd files that hold a picture, each with the pixels it holds by its own definition."""

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageCms, features

from tests.pictures.making import UPRIGHT, chunk, encode, exif, over_white, png, rgb, with_segment, without_segment
from tests.pictures.specimen import Specimen

RNG = np.random.default_rng(11)
NOISE = RNG.integers(0, 256, (13, 21, 3), dtype=np.uint8)
ALPHA = RNG.integers(0, 256, (13, 21), dtype=np.uint8)
RAMP = np.arange(65536, dtype=np.uint16).reshape(256, 256)
X, Y = np.meshgrid(np.arange(51), np.arange(35))
SMOOTH = np.stack([X * 4 + 20, Y * 6 + 20, (X + Y) * 2 + 30], -1).astype(np.uint8)  # what lossy formats keep well
LOSSY = 8  # grey levels

PICTURE = Image.fromarray(NOISE)
PHOTO = Image.fromarray(SMOOTH)
JPEG = encode(PHOTO, "JPEG", quality=95)


def good() -> Iterator[Specimen]:
    for group in (_deep, _turned, _modes, _palettes, _jpegs, _inks, _moving, _portable, _bitmaps, _tagged, _shapes):
        yield from group()


def _deep() -> Iterator[Specimen]:
    """More than eight bits."""
    grey = rgb(np.rint(RAMP / 257))
    yield Specimen("grey 16 bit.png", encode(Image.fromarray(RAMP), "PNG"), grey)
    yield Specimen("grey 16 bit.tif", encode(Image.fromarray(RAMP), "TIFF"), grey)
    yield Specimen("grey 16 bit.jp2", encode(Image.fromarray(RAMP), "JPEG2000"), grey)
    big = Image.frombytes("I;16B", RAMP.shape, RAMP.astype(">u2").tobytes())
    yield Specimen("grey 16 bit big-endian.tif", encode(big, "TIFF"), grey)
    deep = RNG.integers(0, 65536, (9, 14, 4), dtype=np.uint16)
    eight = np.rint(deep / 257)
    for name, colour, planes, expected in (
        ("rgb 16 bit", 2, deep[..., :3], eight[..., :3]),
        ("grey and alpha 16 bit", 4, deep[..., [0, 3]], over_white(eight[..., :1], eight[..., 3])),
        ("rgba 16 bit", 6, deep, over_white(eight[..., :3], eight[..., 3])),
    ):
        rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in planes)
        data = png(14, 9, 16, colour, chunk(b"IDAT", zlib.compress(rows)))
        yield Specimen(f"{name}.png", data, np.broadcast_to(expected, (9, 14, 3)), 2)
    wide = np.array([[-100_000, 0, 100_000]], np.int32)
    yield Specimen("integers 32 bit.tif", encode(Image.fromarray(wide), "TIFF"), rgb(np.array([[0, 128, 255]])))
    unit = (np.arange(256, dtype=np.float32) / 255)[None]
    yield Specimen("floats.tif", encode(Image.fromarray(unit), "TIFF"), rgb(np.arange(256)[None]))
    odd = np.array([[10, 20, 30, np.nan, np.inf, -np.inf]], np.float32)
    spread = rgb(np.array([[0, 128, 255, 0, 255, 0]]))
    yield Specimen("floats with nan.tif", encode(Image.fromarray(odd), "TIFF"), spread)
    nothing = np.full((3, 3), np.nan, np.float32)
    yield Specimen("nothing but nan.tif", encode(Image.fromarray(nothing), "TIFF"), np.zeros((3, 3, 3)))
    yield Specimen("floats.pfm", encode(Image.fromarray(unit), "PPM"), rgb(np.arange(256)[None]))


def _turned() -> Iterator[Specimen]:
    """The eight orientations."""
    for orientation, turn in UPRIGHT.items():
        block = exif(orientation)
        for kind, options in (("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True})):
            data = encode(PICTURE, kind, exif=block, **options)
            yield Specimen(f"orientation {orientation}.{kind.lower()}", data, turn(NOISE))
        data = encode(PHOTO, "JPEG", quality=95, exif=block)
        yield Specimen(f"orientation {orientation}.jpg", data, turn(SMOOTH), LOSSY)
    for odd in (0, 9, 65535):
        yield Specimen(f"orientation {odd}.jpg", encode(PHOTO, "JPEG", quality=95, exif=exif(odd)), SMOOTH, LOSSY)
    words = struct.pack("<HHII", 0x0112, 2, 2, 0x36)  # an ASCII "6"
    yield Specimen("orientation in words.jpg", with_segment(JPEG, 0xE1, _ifd(words)), SMOOTH, LOSSY)
    long = struct.pack("<HHII", 0x0112, 4, 1, 6)  # a LONG where the standard says SHORT
    yield Specimen("orientation as a long.jpg", with_segment(JPEG, 0xE1, _ifd(long)), UPRIGHT[6](SMOOTH), LOSSY)
    loop = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 1) + struct.pack("<HHII", 0x8769, 4, 1, 8)
    yield Specimen("exif that points to itself.jpg", with_segment(JPEG, 0xE1, loop), SMOOTH, LOSSY)
    for name, junk in (("bad exif", b"Exif\0\0junk"), ("endless exif", b"Exif\0\0II*\0\xff\xff\xff\xff")):
        yield Specimen(f"{name}.jpg", with_segment(JPEG, 0xE1, junk), SMOOTH, LOSSY)


def _ifd(entry: bytes) -> bytes:
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 1) + entry + bytes(4)


def _modes() -> Iterator[Specimen]:
    """Channels other than red, green and blue."""
    bits = NOISE[..., 0] > 127
    black_white = rgb(bits * 255)
    for kind in ("PNG", "TIFF", "BMP", "GIF"):
        yield Specimen(f"one bit.{kind.lower()}", encode(Image.fromarray(bits), kind), black_white)
    fax = encode(Image.fromarray(bits), "TIFF", compression="group4")
    yield Specimen("fax.tif", fax, black_white)
    for depth in (2, 4):
        levels = NOISE[..., 0] >> (8 - depth)
        rows = b"".join(b"\0" + _packed(row, depth) for row in levels)
        expected = rgb(levels * (255 // (2**depth - 1)))
        yield Specimen(f"grey {depth} bit.png", png(21, 13, depth, 0, chunk(b"IDAT", zlib.compress(rows))), expected)
    rgba = Image.fromarray(np.dstack([NOISE, ALPHA]))
    laid = over_white(NOISE, ALPHA)
    for kind, options in (("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True, "exact": True}), ("JPEG2000", {})):
        yield Specimen(f"rgba.{kind.lower()}", encode(rgba, kind, **options), laid, 1)
    la = Image.merge("LA", [PICTURE.getchannel(0), Image.fromarray(ALPHA)])
    for kind in ("PNG", "TIFF"):
        yield Specimen(
            f"grey and alpha.{kind.lower()}", encode(la, kind), rgb(over_white(NOISE[..., :1], ALPHA)[..., 0]), 1
        )
    yield Specimen("grey.jp2", encode(PICTURE.getchannel(0), "JPEG2000"), rgb(NOISE[..., 0]))
    yield Specimen("lossless.jp2", encode(PICTURE, "JPEG2000"), NOISE)
    yield Specimen("bare stream.j2k", encode(PICTURE, "JPEG2000", no_jp2=True), NOISE)
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
        yield Specimen(f"{compression}.tif", encode(PICTURE, "TIFF", compression=compression), NOISE)
    yield Specimen("lossy.webp", encode(PHOTO, "WEBP", quality=95), SMOOTH, LOSSY)
    if features.check("avif"):
        yield Specimen("lossy.avif", encode(PHOTO, "AVIF", quality=95), SMOOTH, LOSSY)


def _packed(row: np.ndarray, depth: int) -> bytes:
    bits = np.unpackbits(row[:, None], axis=1)[:, 8 - depth :]
    return np.packbits(bits.ravel()).tobytes()


def _palettes() -> Iterator[Specimen]:
    picture = Image.new("P", (3, 1))
    picture.putpalette([10, 20, 30, 40, 50, 60, 0, 0, 0])
    picture.putdata([0, 1, 2])
    opaque = np.array([[[10, 20, 30], [40, 50, 60], [0, 0, 0]]])
    holed = np.array([[[10, 20, 30], [255, 255, 255], [0, 0, 0]]])
    for kind in ("PNG", "GIF", "BMP", "TIFF"):
        yield Specimen(f"palette.{kind.lower()}", encode(picture, kind), opaque)
    for kind in ("PNG", "GIF"):
        yield Specimen(f"palette with a transparent index.{kind.lower()}", encode(picture, kind, transparency=1), holed)
    half = np.array([[[10, 20, 30], [255, 255, 255], [127, 127, 127]]])
    yield Specimen("palette with alpha.png", encode(picture, "PNG", transparency=bytes([255, 0, 128])), half, 1)
    key = encode(PICTURE, "PNG", transparency=tuple(NOISE[0, 0].tolist()))
    keyed = NOISE.copy()
    keyed[0, 0] = 255
    yield Specimen("rgb with a transparent colour.png", key, keyed)


def _jpegs() -> Iterator[Specimen]:
    for name, options in (
        ("progressive", {"progressive": True}),
        ("no subsampling", {"subsampling": 0}),
        ("4-2-0", {"subsampling": 2}),
        ("restarts", {"restart_marker_blocks": 2}),
        ("optimised", {"optimize": True}),
    ):
        yield Specimen(f"{name}.jpg", encode(PHOTO, "JPEG", quality=95, **options), SMOOTH, LOSSY)
    for width, height in ((1, 1), (7, 3), (8, 9), (17, 33)):
        part = PHOTO.crop((0, 0, width, height))
        data = encode(part, "JPEG", quality=95, subsampling=2)
        yield Specimen(f"4-2-0 of {width} x {height}.jpg", data, SMOOTH[:height, :width], 2 * LOSSY)
    grey = PHOTO.getchannel(0)
    yield Specimen("grey.jpg", encode(grey, "JPEG", quality=95), rgb(SMOOTH[..., 0]), LOSSY)
    yield Specimen("with garbage after it.jpg", JPEG + b"\0garbage" * 500, SMOOTH, LOSSY)
    yield Specimen("two pictures.jpg", JPEG + encode(PICTURE, "JPEG"), SMOOTH, LOSSY)
    yield Specimen("mpo.mpo", encode(PHOTO, "MPO", quality=95, save_all=True, append_images=[PICTURE]), SMOOTH, LOSSY)
    padded = JPEG[:2] + b"\xff" * 7 + JPEG[2:]
    yield Specimen("padded markers.jpg", padded, SMOOTH, LOSSY)


def _inks() -> Iterator[Specimen]:
    """Cyan, magenta, yellow and black, in each of the ways a JPEG can hold them."""
    ink = np.stack([X * 3, Y * 4, X + Y, np.full_like(X, 40)], -1)
    expected = np.rint((255 - ink[..., :3]) * (255 - ink[..., 3:]) / 255)
    picture = Image.fromarray(ink.astype(np.uint8), "CMYK")
    adobe = encode(picture, "JPEG", quality=98, subsampling=0)  # inverted, with Adobe's segment, as Photoshop does
    yield Specimen("inks.tif", encode(picture, "TIFF"), expected, 1)
    yield Specimen("inks, inverted.jpg", adobe, expected, LOSSY)
    negative = Image.fromarray((255 - ink).astype(np.uint8), "CMYK")
    plain = without_segment(encode(negative, "JPEG", quality=98, subsampling=0), 0xEE)
    yield Specimen("inks, as they are.jpg", plain, expected, LOSSY)
    luma = np.asarray(Image.fromarray(ink[..., :3].astype(np.uint8)).convert("YCbCr")).astype(int)
    stored = np.dstack([255 - luma, ink[..., 3:]]).astype(np.uint8)  # Pillow inverts all four as it writes
    ycck = encode(Image.fromarray(stored, "CMYK"), "JPEG", quality=98, subsampling=0)
    where = ycck.index(b"Adobe") + 11
    yield Specimen("ycck.jpg", ycck[:where] + b"\2" + ycck[where + 1 :], expected, LOSSY)


def _moving() -> Iterator[Specimen]:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "lime", "blue")]
    red = np.full((6, 8, 3), [255, 0, 0])
    for kind, options in (("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {}), ("TIFF", {})):
        data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        yield Specimen(f"moving.{kind.lower()}", data, red)
    if features.check("avif"):
        data = encode(frames[0], "AVIF", quality=100, save_all=True, append_images=frames[1:])
        yield Specimen("moving.avif", data, red, LOSSY)


def _portable() -> Iterator[Specimen]:
    """Portable any-maps, in words and in bytes."""
    grey, three = rgb(np.array([[0, 100, 255]])), np.array([[[1, 2, 3], [4, 5, 6]]])
    bits = rgb(np.array([[0, 255, 0]]))
    for name, data, expected in (
        ("bits in words.pbm", b"P1\n# a comment\n3 1\n1 0 1\n", bits),
        ("grey in words.pgm", b"P2\n3 1\n255\n0 100 255\n", grey),
        ("colours in words.ppm", b"P3 2 1 255 1 2 3 4 5 6\n", three),
        ("bits.pbm", b"P4 3 1\n\xa0", bits),
        ("grey.pgm", b"P5 3 1 255\n\x00\x64\xff", grey),
        ("colours.ppm", b"P6 2 1 255\n\1\2\3\4\5\6", three),
        ("grey 16 bit.pgm", b"P5 3 1 65535\n" + np.array([0, 25700, 65535], ">u2").tobytes(), grey),
    ):
        yield Specimen(name, data, expected)


def _bitmaps() -> Iterator[Specimen]:
    """Bitmaps of Windows, which Pillow does not write."""
    yield Specimen("plain.bmp", encode(PICTURE, "BMP"), NOISE)
    colours = struct.pack("<8B", 30, 20, 10, 0, 60, 50, 40, 0)
    two = np.array([[[10, 20, 30]] * 3 + [[40, 50, 60]]] * 2)
    runs = b"\x03\x00\x01\x01\x00\x00\x03\x00\x01\x01\x00\x01"  # three of the first, one of the second, end of line
    yield Specimen("run lengths.bmp", _bmp(4, 2, 8, 1, colours, runs, 2), two)
    down = encode(PICTURE, "BMP")
    flipped = down[:22] + struct.pack("<i", -13) + down[26:]  # rows from the top
    yield Specimen("from the top.bmp", flipped, NOISE[::-1])


def _bmp(width: int, height: int, depth: int, compression: int, palette: bytes, data: bytes, colours: int) -> bytes:
    offset = 54 + len(palette)
    file_header = b"BM" + struct.pack("<IHHI", offset + len(data), 0, 0, offset)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, depth, compression, len(data), 0, 0, colours, 0)
    return file_header + header + palette + data


def _tagged() -> Iterator[Specimen]:
    """Pictures with much beside the pixels, and with the wrong suffix."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    yield Specimen("profile.jpg", encode(PHOTO, "JPEG", quality=95, icc_profile=profile), SMOOTH, LOSSY)
    yield Specimen("profile.png", encode(PICTURE, "PNG", icc_profile=profile), NOISE)
    yield Specimen("broken profile.png", encode(PICTURE, "PNG", icc_profile=b"junk"), NOISE)
    xmp = b"http://ns.adobe.com/xap/1.0/\0" + b"<x:xmpmeta>" * 5000
    yield Specimen("xmp without end.jpg", with_segment(JPEG, 0xE1, xmp), SMOOTH, LOSSY)
    start = png(1, 1, 8, 2)[:8]
    plain = encode(PICTURE, "PNG")
    squeezed = zlib.compress(b"\0" * 200_000_000, 9)
    for kind, extra in (
        ("zTXt", b"Comment\0\0" + squeezed),
        ("iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + squeezed),
        ("iCCP", b"profile\0\0" + squeezed),
    ):
        data = start + plain[8:33] + chunk(kind.encode(), extra) + plain[33:]
        yield Specimen(f"bomb in {kind}.png", data, NOISE)
    torn = chunk(b"tEXt", b"Comment\0text")[:-4] + b"\0\0\0\0"  # a wrong checksum, on what is not the picture
    yield Specimen("wrong checksum of a comment.png", plain[:33] + torn + plain[33:], NOISE)
    yield Specimen("really a png.jpg", plain, NOISE)
    yield Specimen("really a jpeg.png", JPEG, SMOOTH, LOSSY)
    yield Specimen(
        "really a gif.TIFF", encode(PICTURE.quantize(4), "GIF"), np.asarray(PICTURE.quantize(4).convert("RGB"))
    )
    yield Specimen("no suffix", plain, NOISE)
    yield Specimen("garbage after it.png", plain + bytes(1000), NOISE)
    yield Specimen("two pictures.gif", _pair("GIF"), np.full((6, 8, 3), [255, 0, 0]))
    yield Specimen("two pictures.png", plain + encode(PHOTO, "PNG"), NOISE)


def _pair(kind: str) -> bytes:
    return b"".join(encode(Image.new("RGB", (8, 6), colour), kind) for colour in ("red", "blue"))


def _shapes() -> Iterator[Specimen]:
    one = np.array([[[7, 8, 9]]], np.uint8)
    for kind in ("PNG", "BMP", "TIFF", "PPM", "GIF"):
        yield Specimen(f"one pixel.{kind.lower()}", encode(Image.fromarray(one), kind), one)
    line = np.stack([np.arange(50_000) % 256, np.arange(50_000) // 256, np.arange(50_000) % 7], -1).astype(np.uint8)
    for kind in ("PNG", "TIFF", "PPM"):
        yield Specimen(f"wide.{kind.lower()}", encode(Image.fromarray(line[None]), kind), line[None])
        yield Specimen(f"high.{kind.lower()}", encode(Image.fromarray(line[:, None]), kind), line[:, None])
    flat = Image.new("RGB", (50_000, 1), (100, 150, 200))
    yield Specimen("wide.jpg", encode(flat, "JPEG"), np.full((1, 50_000, 3), [100, 150, 200]), LOSSY)
