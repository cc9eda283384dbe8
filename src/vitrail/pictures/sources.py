"""Where the bytes of a picture come from: opened, given a name that is safe to print, and closed."""

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from vitrail.errors import PictureError

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO

# how the files end that `decode` can read, whatever their case
SUFFIXES = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".jif", ".mpo", ".png", ".apng"),
        *(".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".avif", ".avifs"),
        *(".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".jp2"),
        *(".j2k", ".jpc", ".jpf", ".jpx", ".j2c"),
    )
)

_LONGEST_NAME = 200


def printable(text: object) -> str:
    """The text on one line: whatever a terminal might obey or cannot show (newlines, stray bytes) is escaped."""
    plain = str(text)
    if len(plain) > _LONGEST_NAME:
        plain = plain[: _LONGEST_NAME // 2] + "…" + plain[-_LONGEST_NAME // 2 :]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)


def name_of(source: object) -> str:
    """What to call a source in a message."""
    if isinstance(source, bytes | bytearray | memoryview):
        return f"picture of {memoryview(source).nbytes} bytes"
    if isinstance(source, str | os.PathLike):
        return printable(os.fsdecode(source))
    name = getattr(source, "name", None)
    return printable(os.fsdecode(name)) if isinstance(name, str | bytes) else f"picture from {type(source).__name__}"


@contextmanager
def opened(source: Source, name: str) -> Iterator[BinaryIO]:
    """A seekable binary file at its start. A file opened here is closed here; a stream that was given is left open."""
    if isinstance(source, str | os.PathLike):
        with _open_path(source, name) as file:
            yield file
    elif isinstance(source, bytes | bytearray | memoryview):
        with io.BytesIO(source) as buffer:
            yield buffer
    elif hasattr(source, "read"):
        yield _seekable(source, name)
    else:
        raise PictureError(
            f"{name}: a {type(source).__name__} is not a picture; "
            "give a path, bytes, a binary file, a PIL picture or a NumPy array"
        )


def _open_path(path: str | os.PathLike[str], name: str) -> BinaryIO:
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            raise PictureError(f"{name}: this is a folder, not a picture; name a file in it")
        if not stat.S_ISREG(kind):  # opening a pipe would wait for ever, and a device has no end
            raise PictureError(f"{name}: this is a pipe or a device, not a file; give the bytes themselves")
        return open(path, "rb")
    except FileNotFoundError:
        raise PictureError(f"{name}: there is no such file; check the path") from None
    except PermissionError:
        raise PictureError(f"{name}: reading it is not permitted; change the file's permissions") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        cause = printable(getattr(error, "strerror", None) or error)
        raise PictureError(f"{name}: cannot be opened ({cause}); check the path") from error


def _seekable(stream: BinaryIO, name: str) -> BinaryIO:
    try:
        if stream.seekable():
            stream.seek(0)
            return stream
    except AttributeError:
        pass
    except (OSError, ValueError) as error:
        raise PictureError(f"{name}: cannot be read ({printable(error)}); give an open binary file") from error
    try:
        return io.BytesIO(stream.read())
    except Exception as error:
        raise PictureError(f"{name}: cannot be read ({printable(error)}); give an open binary file") from error
