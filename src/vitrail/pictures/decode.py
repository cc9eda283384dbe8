"""One way to read a picture, whatever it is stored in and however it is broken: an upright 8-bit RGB picture or one
`PictureError`."""

import io
from collections.abc import Callable
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import (  # the plugins register themselves here; without that Pillow imports all forty of them
    AvifImagePlugin,  # noqa: F401
    BmpImagePlugin,  # noqa: F401
    GifImagePlugin,  # noqa: F401
    Image,
    ImageFile,
    Jpeg2KImagePlugin,  # noqa: F401
    JpegImagePlugin,  # noqa: F401
    PngImagePlugin,  # noqa: F401
    PpmImagePlugin,  # noqa: F401
    TiffImagePlugin,  # noqa: F401
    UnidentifiedImageError,
    WebPImagePlugin,  # noqa: F401
)

from vitrail.errors import PictureError
from vitrail.pictures.bombs import MAX_PIXELS, check_promise, check_size, too_large
from vitrail.pictures.draft import draft, reduce, reduction
from vitrail.pictures.modes import from_array, to_rgb
from vitrail.pictures.png import without_remarks
from vitrail.pictures.quiet import quiet_pillow
from vitrail.pictures.sources import Source, name_of, opened, printable

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")  # MPO opens as JPEG

Truncated = Literal["error", "fill"]
Shrink = Callable[[int, int], float]

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ON_ITS_SIDE = {turn for orientation, turn in _TURNS.items() if orientation >= 5}
_JPEGS = ("JPEG", "MPO")
_JPEG_END = b"\xff\xd9"


def decode(
    source: Source, *, max_pixels: int = MAX_PIXELS, truncated: Truncated = "error", name: str | None = None
) -> Image.Image:
    """The first frame of a picture file, upright, as 8-bit RGB with no metadata.

    `max_pixels` is checked on the header, before anything is decoded. A file that ends early is refused, or with
    `truncated="fill"` keeps the part that can be decoded, if there is one (WebP and AVIF have none). `name` replaces
    the path in messages. A limit above twice `PIL.Image.MAX_IMAGE_PIXELS` needs that one raised too.
    """
    return _decode(source, None, max_pixels, truncated, name)[0]


def decode_at(
    source: Source,
    shrink: Shrink,
    *,
    max_pixels: int = MAX_PIXELS,
    truncated: Truncated = "error",
    name: str | None = None,
) -> tuple[Image.Image, tuple[int, int]]:
    """Like `decode`, for a caller who will make the picture smaller: a JPEG may come at a half, a quarter or an eighth
    of its size, which is much quicker. The second value is its full (width, height).

    `shrink(width, height)` is asked of a JPEG, with its full upright size, and says by how much the caller will reduce
    it; what comes is still `MARGIN` times larger than that. `reduction` says where a point of the full picture is.
    """
    return _decode(source, shrink, max_pixels, truncated, name)


def _decode(
    source: Source, shrink: Shrink | None, max_pixels: int, truncated: Truncated, name: str | None
) -> tuple[Image.Image, tuple[int, int]]:
    if truncated not in ("error", "fill"):
        raise ValueError(f'truncated={truncated!r} is neither "error" nor "fill"')
    label = name_of(source) if name is None else printable(name)
    with opened(source, label) as file, quiet_pillow():
        try:
            try:
                return _read(file, shrink, max_pixels, truncated, label)
            except (ValueError, SyntaxError, OSError):
                bare = without_remarks(file)
                if bare is None:
                    raise
                return _read(bare, shrink, max_pixels, truncated, label)
        except PictureError:
            raise
        except Image.DecompressionBombError as error:
            raise too_large(label, max_pixels) from error
        except UnidentifiedImageError as error:
            raise _unidentified(file, label) from error
        except Exception as error:  # a broken file can raise nearly anything in Pillow
            raise _broken(error, label, truncated == "error" and _has_a_header(file)) from error


def _read(
    file: BinaryIO, shrink: Shrink | None, max_pixels: int, truncated: Truncated, label: str
) -> tuple[Image.Image, tuple[int, int]]:
    with Image.open(file, formats=FORMATS) as picture:
        check_size(picture, max_pixels, label)
        check_promise(picture, file, label)
        full = _draft(picture, shrink) if shrink and picture.format in _JPEGS else None
        upright = _upright(_load(picture, file, truncated), ours=True)
        return upright, full or upright.size


def as_picture(
    obj: Source | Image.Image | NDArray[Any],
    *,
    max_pixels: int = MAX_PIXELS,
    truncated: Truncated = "error",
    name: str | None = None,
) -> Image.Image:
    """What `decode` takes, or a PIL picture, or an array of (height, width[, 1, 3 or 4]): uint8, uint16, bool, or
    floats in [0, 1]. Always a new upright 8-bit RGB picture."""
    if isinstance(obj, np.ndarray):
        return from_array(obj, "array" if name is None else printable(name))
    if not isinstance(obj, Image.Image):
        return decode(obj, max_pixels=max_pixels, truncated=truncated, name=name)
    label = printable(name or getattr(obj, "filename", "") or "PIL picture")
    check_size(obj, max_pixels, label)
    with quiet_pillow():
        try:
            obj.load()  # before the EXIF block is looked at: Pillow turns a TIFF itself while loading
            return _upright(obj)
        except Exception as error:
            raise _broken(error, label) from error


def _draft(picture: ImageFile.ImageFile, shrink: Shrink) -> tuple[int, int]:
    """Makes a JPEG load smaller if the caller can do with that; its full upright size."""
    turn = _turn(picture)
    width, height = picture.size if turn not in _ON_ITS_SIDE else picture.size[::-1]
    draft(picture, shrink(width, height), turn)
    return width, height


def _load(picture: ImageFile.ImageFile, file: BinaryIO, truncated: Truncated) -> Image.Image:
    """The picture with its pixels decoded.

    Pillow's switch for files that end early, `ImageFile.LOAD_TRUNCATED_IMAGES`, is one variable for all threads: to
    turn it on for one picture would turn it on for those that other threads are reading. It is not needed: a load that
    fails has left the rows it decoded in the picture, and a JPEG only lacks the marker that ends it.
    """
    try:
        picture.load()
        return picture
    except MemoryError:
        raise
    except Exception as error:
        kept = _decoded_part(picture, file) if truncated == "fill" else None
        if kept is None:
            raise error
        return kept


def _decoded_part(picture: ImageFile.ImageFile, file: BinaryIO) -> Image.Image | None:
    if picture.format in _JPEGS:
        file.seek(0)
        ended = Image.open(io.BytesIO(file.read() + _JPEG_END), formats=["JPEG"])
        reduce(ended, reduction(picture.size, ended.size))
        try:
            ended.load()
            picture = ended
        except Exception:
            pass  # what the first attempt decoded is still there
    picture.tile = []  # nothing is left to decode
    extrema = picture.getextrema()
    bands = extrema if isinstance(extrema[0], tuple) else (extrema,)
    if all(low == high for low, high in bands):  # one colour: nothing was decoded
        return None
    return picture


def _upright(picture: Image.Image, ours: bool = False) -> Image.Image:
    rgb = to_rgb(picture, may_keep=ours)
    turn = _turn(picture)
    return rgb if turn is None else rgb.transpose(turn)


def _turn(picture: Image.Image) -> Image.Transpose | None:
    """What makes the picture upright."""
    try:
        orientation = picture.getexif().get(_ORIENTATION)
    except Exception:  # a broken EXIF block must not lose the picture
        return None
    return _TURNS.get(orientation) if isinstance(orientation, int) else None


def _unidentified(file: BinaryIO, label: str) -> PictureError:
    known = f"known are {', '.join(FORMATS)}"
    try:
        file.seek(0)
        head = file.read(1024)
    except Exception as error:
        return PictureError(f"{label}: cannot be read ({printable(error)}); give an open binary file")
    if not head:
        return PictureError(f"{label}: is empty (0 bytes); replace the file")
    if _starts_like_a_picture(head):
        return PictureError(
            f"{label}: its header is truncated, damaged or of an unusual kind; replace or convert the file"
        )
    if _is_text(head):
        return PictureError(f"{label}: holds text, not a picture; replace the file ({known})")
    return PictureError(f"{label}: is in no known picture format; convert it ({known})")


def _starts_like_a_picture(head: bytes) -> bool:
    for kind in FORMATS:
        accepts = Image.OPEN[kind][1]
        try:
            if accepts is not None and accepts(head[:16]) is True:
                return True
        except Exception:  # shorter than any header
            continue
    return False


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8", errors="strict" if len(head) < 1024 else "ignore")
    except UnicodeDecodeError:
        return False
    return len(text) > 0.9 * len(head) and all(c.isprintable() or c.isspace() for c in text)


def _has_a_header(file: BinaryIO) -> bool:
    try:
        file.seek(0)
        with Image.open(file, formats=FORMATS):
            return True
    except Exception:
        return False


def _broken(error: Exception, label: str, fillable: bool = False) -> PictureError:
    cause = printable(str(error) or type(error).__name__)
    if isinstance(error, MemoryError):
        return PictureError(f"{label}: there is not enough memory to decode it; lower max_pixels, or make it smaller")
    sure = "truncat" in cause.lower() or isinstance(error, EOFError)
    state = "is truncated" if sure else "is damaged or truncated"
    fill = ', or from Python keep the part that is there: truncated="fill"' if sure and fillable else ""
    return PictureError(f"{label}: {state} ({cause}); replace the file{fill}")
