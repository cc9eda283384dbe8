"""Small pictures inside the page, so that it is one file that can be sent to somebody."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from PIL import Image

from vitrail.data.source import Readable, Source
from vitrail.errors import PictureError
from vitrail.pages.document import picture_address
from vitrail.pictures import as_picture, decode_at

SIDE = 128
_CHUNK = 64


def thumbnails(source: Source, rows: Iterable[int]) -> dict[int, str]:
    """Data addresses of small JPEGs; a row that cannot be read has none."""
    wanted = sorted(set(rows))
    found = {}
    for start in range(0, len(wanted), _CHUNK):
        chunk = wanted[start : start + _CHUNK]
        for row, readable in zip(chunk, source.reader.read_many(chunk), strict=True):
            try:
                found[row] = _small(readable)
            except PictureError:
                continue
    return found


def _small(readable: Readable) -> str:
    if isinstance(readable, np.ndarray | Image.Image):
        picture = as_picture(readable)
    else:
        picture, _ = decode_at(readable, lambda width, height: max(width, height) / SIDE)
    return picture_address(picture, SIDE)
