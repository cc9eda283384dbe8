"""Small pictures inside the page, so that it is one file that can be sent to somebody."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable

import numpy as np
from PIL import Image

from vitrail.data.source import Readable, Source
from vitrail.errors import PictureError
from vitrail.pictures import as_picture, decode_at

SIDE = 128
_QUALITY = 60
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
    picture.thumbnail((SIDE, SIDE))
    page = io.BytesIO()
    picture.save(page, "JPEG", quality=_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(page.getvalue()).decode()
