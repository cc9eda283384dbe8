"""What packing does to each picture, in several processes: reads it, proves that it decodes, makes it smaller."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitrail.data.samples import Names
from vitrail.data.shard_writer import split_suffix
from vitrail.data.source import Readable, Reader
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


def packed(packer: Packer, rows: Iterable[int], workers: int) -> Generator[Packed, None, None]:
    """The rows in their order, however many processes work on them."""
    chunks = _chunks(rows)
    if workers <= 1:
        for chunk in chunks:
            yield from packer(chunk)
        return
    # a fork shares the table of names and asks nothing of the caller's script, which a fresh process would run again
    way = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    with ProcessPoolExecutor(workers, mp_context=way, initializer=_begin, initargs=(packer,)) as pool:
        waiting: deque[Future[list[Packed]]] = deque()
        try:
            for chunk in chunks:
                waiting.append(pool.submit(_work, chunk))
                if len(waiting) > 2 * workers:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        except BrokenProcessPool as error:
            raise DataError("a worker process was killed, perhaps for want of memory; use fewer workers") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _chunks(rows: Iterable[int]) -> Iterator[list[int]]:
    chunk: list[int] = []
    for row in rows:
        chunk.append(int(row))
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


_packer: Packer | None = None  # of this worker process


def _begin(packer: Packer) -> None:
    global _packer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops, and stops its workers
    _packer = packer


def _work(rows: list[int]) -> list[Packed]:
    assert _packer is not None
    return _packer(rows)


def default_workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
