"""What packing does to each picture, in several processes: reads it, proves that it decodes, makes it smaller."""

from __future__ import annotations

import io
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.samples import Names
from vitrail.data.shard_writer import split_suffix
from vitrail.data.source import Readable, Reader
from vitrail.data.workers import Rows, in_order
from vitrail.errors import DataError, PictureError
from vitrail.pictures import as_picture
from vitrail.pictures.decode import FORMATS, decode, decode_at
from vitrail.pictures.draft import reduction
from vitrail.pictures.quiet import quiet_pillow
from vitrail.pictures.sources import opened, printable

_SUFFIXES = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif", "JPEG2000": "jp2"}  # of the others: their name
_LOSSLESS = ("PNG", "GIF", "BMP", "TIFF", "PPM")
_CHUNK = 16  # pictures that one process works on at a time


class Packed(NamedTuple):
    """A picture as it goes into a shard, or the reason why it does not."""

    row: int
    data: bytes
    suffix: str
    resized: bool
    reason: str = ""


@dataclass(frozen=True)
class Packer:
    """Makes of a row what is written. A picture that is not made smaller is copied byte for byte; of a picture that is
    no file, a PNG is written."""

    reader: Reader
    names: Names
    resize: int | None
    quality: int

    def __call__(self, rows: Sequence[int]) -> list[Packed]:
        try:
            found = self.reader.read_many(rows)
        except OSError as error:
            raise DataError(f"{printable(self.names[rows[0]])} and its neighbours: {printable(error)}") from error
        return [self._one(row, one) for row, one in zip(rows, found, strict=True)]

    def _one(self, row: int, found: Readable) -> Packed:
        name = self.names[row]
        try:
            if isinstance(found, Image.Image | np.ndarray):
                picture = as_picture(found, name=name)
                full = picture.size
                data, suffix = b"", ""
            else:
                with opened(found, name) as file:
                    data = file.read()
                picture, full = self._decoded(data, name)
                suffix = split_suffix(name)[1] or _suffix(_format(data))
            if self.resize is not None and min(full) > self.resize:
                kind = "PNG" if not data or _format(data) in _LOSSLESS else "JPEG"
                return Packed(row, self._encoded(self._smaller(picture, full), kind), _suffix(kind), True)
            return Packed(row, data or self._encoded(picture, "PNG"), suffix or "png", False)
        except (PictureError, OSError) as error:
            return Packed(row, b"", "", False, str(error))

    def _decoded(self, data: bytes, name: str) -> tuple[Image.Image, tuple[int, int]]:
        if self.resize is None:
            picture = decode(data, name=name)
            return picture, picture.size
        shorter = self.resize
        return decode_at(data, lambda width, height: min(width, height) / shorter, name=name)

    def _smaller(self, picture: Image.Image, full: tuple[int, int]) -> Image.Image:
        """The shorter side as asked, the longer one in proportion, rounded down as torchvision's Resize does."""
        assert self.resize is not None
        width, height = (max(1, int(self.resize * side / min(full))) for side in full)
        scale = reduction(picture.size, full)
        box = (0.0, 0.0, full[0] / scale, full[1] / scale)
        return picture.resize((width, height), Image.Resampling.BICUBIC, box=box)

    def _encoded(self, picture: Image.Image, kind: str) -> bytes:
        red, green, blue = (band.tobytes() for band in picture.split())
        if red == green == blue:
            picture = picture.getchannel(0)  # decodes to the same pixels and takes less room
        buffer = io.BytesIO()
        # colours at full resolution: at equal length of the files this is nearer to the picture than halving them
        picture.save(buffer, kind, **({"quality": self.quality, "subsampling": 0} if kind == "JPEG" else {}))
        return buffer.getvalue()


def _format(data: bytes) -> str:
    with quiet_pillow(), Image.open(io.BytesIO(data), formats=FORMATS) as picture:
        return picture.format or ""


def _suffix(kind: str) -> str:
    return _SUFFIXES.get(kind, kind.lower())


@dataclass(frozen=True)
class _Packing:
    """The task of a worker process. A picture that takes the process down is a bad one."""

    packer: Packer

    def __call__(self, rows: Rows) -> list[Packed]:
        return self.packer(rows)

    def lost(self, row: int) -> list[Packed]:
        name = printable(self.packer.names[row])
        return [Packed(row, b"", "", False, f"{name}: decoding it ends the process; replace the file")]


def packed(packer: Packer, rows: Sequence[int] | NDArray[np.integer], workers: int) -> Generator[Packed]:
    """The rows in their order, however many processes work on them."""
    numbers = [int(row) for row in rows]
    chunks = [numbers[start : start + _CHUNK] for start in range(0, len(numbers), _CHUNK)]
    for _, made in in_order(_Packing(packer), chunks, 0 if workers <= 1 else workers):
        yield from made
