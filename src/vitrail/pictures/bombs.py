"""Files that would take far more memory or time than a picture is worth, told by their headers."""

import os
from typing import BinaryIO

from PIL import Image, ImageFile

from vitrail.errors import PictureError

MAX_PIXELS = 178_956_970  # where Pillow's own protection refuses
LONGEST_SIDE = 2**20  # every row costs something of its own: 150 million rows of one pixel are 20 s and 4 GB
_SMALL = 2**22  # pixels that may come from any number of bytes

# The most pixels a byte can hold: a bit for the mean of an 8 x 8 block, deflate at its best (1032) on single bits, the
# longest strings of a full LZW table. WebP, AVIF and JPEG 2000, and the faxes in a TIFF, have no such bound.
_MOST_PER_BYTE = {"JPEG": 512, "MPO": 512, "PNG": 8 * 1032, "GIF": 4096}
_MOST_PER_RAW_BYTE = 8


def check_size(picture: Image.Image, max_pixels: int, label: str) -> None:
    width, height = picture.size
    if width < 1 or height < 1:
        raise PictureError(f"{label}: {width} x {height} holds no pixels; replace it")
    if width * height > max_pixels:
        raise too_large(label, max_pixels, f"{width} x {height} is ")
    if max(width, height) > LONGEST_SIDE:
        raise PictureError(f"{label}: {width} x {height} is longer than {LONGEST_SIDE} pixels; cut it in pieces")


def check_promise(picture: ImageFile.ImageFile, file: BinaryIO, label: str) -> None:
    """Refuses a large picture in a file that is too short for it, before memory is taken for its pixels."""
    width, height = picture.size
    if width * height <= _SMALL:
        return
    most = _MOST_PER_BYTE.get(str(picture.format))
    if picture.tile and all(tile.codec_name == "raw" for tile in picture.tile):
        most = _MOST_PER_RAW_BYTE
    position = file.tell()
    length = file.seek(0, os.SEEK_END)
    file.seek(position)  # the reader goes on from here
    if most is not None and width * height > most * length:
        raise PictureError(f"{label}: is truncated ({width} x {height} pixels in {length} bytes); replace the file")


def too_large(label: str, max_pixels: int, size: str = "") -> PictureError:
    pillow = 2 * (Image.MAX_IMAGE_PIXELS or max_pixels)
    if max_pixels > pillow:
        return PictureError(
            f"{label}: {size}more than the {pillow} pixels Pillow allows; raise PIL.Image.MAX_IMAGE_PIXELS as well"
        )
    return PictureError(
        f"{label}: {size}more than {max_pixels} pixels; make it smaller, or raise max_pixels if you trust it"
    )
