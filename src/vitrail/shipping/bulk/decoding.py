"""From inputs to pixels, in processes beside the one that computes. A bad picture costs its own row and no other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.workers import Rows
from vitrail.errors import PictureError
from vitrail.pictures import Preprocessing
from vitrail.pictures.sources import printable
from vitrail.shipping.bulk.items import Item, read_many
from vitrail.shipping.bulk.listing import Listing, from_text

_LONGEST_ERROR = 500


class Decoded(NamedTuple):
    pixels: NDArray[np.uint8]  # (n, height, width, channels); zeros where a picture cannot be read
    errors: dict[int, str]  # why not, by the place among the n


@dataclass(frozen=True)
class Decoder:
    """Runs in worker processes: numbers of inputs in, pixels out."""

    listing: Listing
    preprocessing: Preprocessing

    def __call__(self, rows: Rows) -> Decoded:
        return decode(list(self.listing.items(rows[0], rows[-1] + 1)), self.preprocessing)

    def lost(self, row: int) -> Decoded:
        (item,) = self.listing.items(row, row + 1)
        return Decoded(_zeros(1, self.preprocessing), {0: f"{printable(item.path)}: the decoder crashes on it"})


@dataclass(frozen=True)
class RowDecoder:
    """Runs in tasks of Ray: one picture, or why there is none. Nothing here loads torch, which a task need not wait
    for."""

    preprocessing: Preprocessing
    __name__ = "decode"  # Ray asks for it

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        pixels, errors = decode([from_text(row["item"])], self.preprocessing)
        return {"pixels": pixels[0], "error": errors.get(0, "")}


def decode(items: Sequence[Item], preprocessing: Preprocessing) -> Decoded:
    pixels, errors = _zeros(len(items), preprocessing), {}
    for k, content in enumerate(read_many(items)):
        try:
            if isinstance(content, PictureError):
                raise content
            pixels[k] = preprocessing.pixels(content)
        except PictureError as error:
            errors[k] = _about(items[k], content, error)
    return Decoded(pixels, errors)


def _about(item: Item, content: str | bytes | PictureError, error: PictureError) -> str:
    """The error in one line; bytes have no name of their own, so the message gets the item's."""
    text = str(error)
    if isinstance(content, bytes):
        text = f"{printable(item.path)}: {text.partition(': ')[2] or text}"
    return text if len(text) <= _LONGEST_ERROR else text[: _LONGEST_ERROR - 1] + "…"


def _zeros(count: int, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    return np.zeros((count, *preprocessing.size, preprocessing.channels), np.uint8)


def batches_of(parts: Iterable[range], size: int) -> Iterable[range]:
    """The inputs of parts in batches that do not reach from one part into the next, so that what a batch is made of
    does not depend on which parts are done already."""
    for part in parts:
        for start in range(part.start, part.stop, size):
            yield range(start, min(start + size, part.stop))
