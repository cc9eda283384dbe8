"""PNGs that are whole but for a remark: Pillow refuses a picture for a comment that has a wrong checksum, or that
unpacks to more than a megabyte."""

import io
import struct
from typing import BinaryIO

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_OF_PIXELS = (b"tRNS", b"eXIf")  # among what a reader may skip, this makes a difference to us


def without_remarks(file: BinaryIO) -> BinaryIO | None:
    """The PNG less all that says nothing of its pixels; None if it is no PNG, or has nothing of the kind."""
    try:
        file.seek(0)
        if file.read(8) != _SIGNATURE:
            return None
        data = file.read()
    except Exception:  # the stream of a user can raise anything; why, is said where the picture is refused
        return None
    kept = [_SIGNATURE]
    position, left_out = 0, False
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        if kind[0] & 0x20 and kind not in _OF_PIXELS:  # the case of the first letter says whether it is needed
            left_out = True
        else:
            kept.append(data[position:end])
        position = end
    return io.BytesIO(b"".join(kept)) if left_out else None
