"""What is kept of each picture after one look at it: some fifty bytes, so that a million fit in memory."""

from __future__ import annotations

from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from vitrail.pictures.decode import FORMATS

KINDS = (*FORMATS, "pixels")  # the last: no file, but an array or a picture in memory


class Trait(IntFlag):
    """How a picture is stored, and what it shows of colour. Nothing is wrong with any of these."""

    READABLE = 1
    HASHED = 2  # it is large enough, and has enough structure, for its hashes to mean something
    GREY = 4  # stored without colours
    COLOURLESS = 8  # stored with colours, and all of them grey
    ALPHA = 16
    DEEP = 32  # more than 8 bits to a value
    CMYK = 64
    PALETTE = 128
    TURNED = 256  # by its EXIF orientation


class Doubt(IntFlag):
    """Why a picture that can be read should be looked at."""

    PLAIN = 1
    TINY = 2
    LONG = 4
    SUFFIX = 8
    ANIMATED = 16
    HUGE = 32


RECORD = np.dtype(
    [
        ("width", np.uint32),  # upright, of the whole picture
        ("height", np.uint32),
        ("size", np.int64),  # bytes of the file
        ("kind", np.uint8),  # into KINDS
        ("traits", np.uint16),
        ("doubts", np.uint8),
        ("digest", np.uint64, (2,)),  # of the bytes of the file; of the pixels where there is no file
        ("phash", np.uint64),
        ("dhash", np.uint64),
    ]
)

Records = NDArray[np.void]


def with_trait(records: Records, trait: Trait) -> NDArray[np.bool_]:
    return (records["traits"] & np.uint16(trait)) != 0


def with_doubt(records: Records, doubt: Doubt) -> NDArray[np.bool_]:
    return (records["doubts"] & np.uint8(doubt)) != 0
