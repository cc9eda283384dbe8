"""One look at one picture: can it be read, how is it stored, is anything odd about it, and what are its hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.checking.hashes import SIDE, perceptual_hashes
from vitrail.checking.records import KINDS, RECORD, Doubt, Records, Trait
from vitrail.data.samples import Names
from vitrail.data.source import Readable, Reader
from vitrail.errors import PictureError
from vitrail.pictures import as_picture, decode, decode_at, reduction
from vitrail.pictures.decode import FORMATS
from vitrail.pictures.png import without_remarks
from vitrail.pictures.quiet import quiet_pillow
from vitrail.pictures.sources import opened, printable

TINY = 16  # pixels of the shorter side
LONG = 5  # times the shorter side: a square crop keeps a fifth of it, or less
HUGE = 50_000_000  # pixels
PLAIN = 8  # grey levels between the darkest and the brightest value of each colour

SUFFIXES = {
    "JPEG": {".jpg", ".jpeg", ".jpe", ".jfif", ".jif", ".mpo"},
    "PNG": {".png", ".apng"},
    "WEBP": {".webp"},
    "GIF": {".gif"},
    "BMP": {".bmp", ".dib"},
    "TIFF": {".tif", ".tiff"},
    "PPM": {".ppm", ".pgm", ".pbm", ".pnm", ".pfm"},
    "AVIF": {".avif", ".avifs"},
    "JPEG2000": {".jp2", ".j2k", ".jpx", ".jpf", ".j2c", ".jpc"},
}
_KNOWN_SUFFIXES = set().union(*SUFFIXES.values())
_ORIENTATION = 0x0112
_BLOCK = 1 << 20

Looks = tuple[Records, dict[int, str]]


@dataclass(frozen=True)
class Looker:
    """Looks at rows of a source: their records, and why some rows could not be read."""

    reader: Reader
    names: Names

    def __call__(self, rows: Sequence[int]) -> Looks:
        records = np.zeros(len(rows), RECORD)
        reasons = {}
        for row, record, readable in zip(rows, records, self.reader.read_many(rows), strict=True):
            name = self.names[row]
            try:
                look(readable, name, record)
            except PictureError as error:
                reasons[row] = str(error).removeprefix(f"{printable(name)}: ")
            except Exception as error:  # no file, whatever it holds, may stop the others from being looked at
                reasons[row] = f"cannot be looked at ({type(error).__name__}: {printable(error)}); replace the file"
        return records, reasons

    def lost(self, row: int) -> Looks:
        """What is said of a picture that took the process down which looked at it."""
        return np.zeros(1, RECORD), {row: "its decoder crashed, or ran out of memory; replace the file"}


def look(readable: Readable, name: str, record: np.void) -> None:
    """Fills in the record of a picture, or raises a `PictureError`."""
    if isinstance(readable, np.ndarray | Image.Image):
        _look_at_pixels(readable, name, record)
        return
    label = printable(name)
    with opened(readable, label) as file:
        record["digest"], record["size"] = _digest(file, label)
        small, (record["width"], record["height"]) = decode_at(file, _shrink, name=name)
        _look_at_header(file, name, record)
        if _is_plain(small) and (small.size == _size(record) or _is_plain(decode(file, name=name))):
            record["doubts"] |= Doubt.PLAIN
    _look_at_colours(small, record)


def _look_at_pixels(pixels: Any, name: str, record: np.void) -> None:
    picture = as_picture(pixels, name=name)
    record["kind"] = len(FORMATS)
    record["width"], record["height"] = picture.size
    record["traits"] = _traits(pixels) if isinstance(pixels, Image.Image) else _traits_of_array(pixels)
    raw = picture.tobytes()
    record["size"] = len(raw)
    record["digest"] = _two(hashlib.blake2b(raw, digest_size=16, salt=_salt(picture.size)))
    if _is_plain(picture):
        record["doubts"] |= Doubt.PLAIN
    _look_at_colours(picture, record)


def _look_at_header(file: BinaryIO, name: str, record: np.void) -> None:
    with quiet_pillow(), _opened_again(file) as picture:
        kind = "JPEG" if picture.format == "MPO" else str(picture.format)
        record["kind"] = KINDS.index(kind)
        record["traits"] = _traits(picture)
        suffix = PurePath(name).suffix.lower()
        if suffix in _KNOWN_SUFFIXES and suffix not in SUFFIXES[kind]:
            record["doubts"] |= Doubt.SUFFIX
        if picture.format != "MPO" and _has_frames(picture):  # the second picture of an MPO is not the next one
            record["doubts"] |= Doubt.ANIMATED


def _opened_again(file: BinaryIO) -> Image.Image:
    """The picture, as `decode` came to open it."""
    file.seek(0)
    try:
        return Image.open(file, formats=FORMATS)
    except (ValueError, SyntaxError, OSError):
        bare = without_remarks(file)
        if bare is None:
            raise
        return Image.open(bare, formats=FORMATS)


def _look_at_colours(small: Image.Image, record: np.void) -> None:
    width, height = _size(record)
    short, long = sorted((width, height))
    for doubt, found in (
        (Doubt.TINY, short < TINY),
        (Doubt.LONG, long > LONG * short),
        (Doubt.HUGE, width * height > HUGE),
    ):
        record["doubts"] |= doubt if found else 0
    record["traits"] |= Trait.READABLE
    if not record["traits"] & Trait.GREY and _is_colourless(small):
        record["traits"] |= Trait.COLOURLESS
    hashes = None if short < SIDE or record["doubts"] & Doubt.PLAIN else perceptual_hashes(_cut(small, width, height))
    if hashes is not None:
        record["phash"], record["dhash"] = hashes
        record["traits"] |= Trait.HASHED


def _traits(picture: Image.Image) -> Trait:
    mode = picture.mode
    traits = Trait(0)
    for trait, found in (
        (Trait.GREY, mode in ("1", "L", "LA", "La", "I", "F") or mode.startswith("I;16")),
        (Trait.ALPHA, picture.has_transparency_data),
        (Trait.DEEP, mode in ("I", "F") or mode.startswith("I;16") or ";16" in _raw_mode(picture)),
        (Trait.CMYK, mode == "CMYK"),
        (Trait.PALETTE, mode in ("P", "PA")),
        (Trait.TURNED, _is_turned(picture)),
    ):
        traits |= trait if found else 0
    return traits


def _traits_of_array(array: NDArray[Any]) -> Trait:
    channels = array.shape[2] if array.ndim == 3 else 1
    deep = Trait.DEEP if array.dtype.itemsize > 1 else Trait(0)
    return deep | {1: Trait.GREY, 4: Trait.ALPHA}.get(channels, Trait(0))


def _raw_mode(picture: Any) -> str:
    """How Pillow's decoder names the layout of the values: it alone tells 16-bit colours from 8-bit ones."""
    return str(picture.tile[0][3]) if getattr(picture, "tile", None) else ""


def _is_turned(picture: Image.Image) -> bool:
    try:
        orientation = picture.getexif().get(_ORIENTATION)
    except Exception:  # a broken EXIF block turns nothing
        return False
    return isinstance(orientation, int) and 2 <= orientation <= 8


def _has_frames(picture: Image.Image) -> bool:
    try:
        return bool(getattr(picture, "is_animated", False))
    except Exception:  # a second frame that cannot be found is not used either
        return False


def _shrink(width: int, height: int) -> float:
    return max(1.0, min(width, height) / SIDE)


def _cut(small: Image.Image, width: int, height: int) -> Image.Image:
    """Without the part of the last column and row that lies beyond the edge of the picture."""
    scale = reduction(small.size, (width, height))
    whole = (max(1, width // scale), max(1, height // scale))
    return small if whole == small.size else small.crop((0, 0, *whole))


def _is_plain(picture: Image.Image) -> bool:
    return all(high - low <= PLAIN for low, high in _extrema(picture))


def _is_colourless(picture: Image.Image) -> bool:
    red, green, blue = (np.asarray(picture.getchannel(i), np.int16) for i in range(3))
    return bool(np.abs(red - green).max() <= 1 and np.abs(green - blue).max() <= 1)


def _extrema(picture: Image.Image) -> Any:
    return picture.getextrema()


def _size(record: np.void) -> tuple[int, int]:
    return int(record["width"]), int(record["height"])


def _digest(file: BinaryIO, label: str) -> tuple[tuple[int, int], int]:
    digest, size = hashlib.blake2b(digest_size=16), 0
    try:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
        file.seek(0)
    except OSError as error:
        raise PictureError(f"{label}: cannot be read ({printable(error)}); check the disk") from error
    return _two(digest), size


def _two(digest: Any) -> tuple[int, int]:
    first, second = np.frombuffer(digest.digest(), "<u8").tolist()
    return first, second


def _salt(size: tuple[int, int]) -> bytes:
    """Equal pixels in another shape are another picture."""
    return np.array(size, "<u8").tobytes()
