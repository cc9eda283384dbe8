"""JPEGs decoded smaller, where the caller will reduce them anyway: their blocks can be read at a half, a quarter or an
eighth, which saves most of the time of a large photograph."""

from PIL import Image, ImageFile

MARGIN = 1.5  # how much larger than its target a picture stays; docs/pictures.md has what others would cost
_SCALES = (8, 4, 2)


def draft(picture: ImageFile.ImageFile, shrink: float, turn: Image.Transpose | None) -> None:
    """Makes a JPEG that is not loaded yet load smaller, so that it is still `MARGIN` times larger than wanted."""
    width, height = picture.size
    across, down = _whole_sides(turn)
    for scale in _SCALES:
        if scale > shrink / MARGIN or scale > min(width, height):
            continue
        if (across and width % scale) or (down and height % scale):
            continue
        reduce(picture, scale)
        return


def reduce(picture: Image.Image, scale: int) -> None:
    """Makes a JPEG that is not loaded yet load at 1 / `scale`; neither side may be shorter than that."""
    picture.draft(None, (picture.width // scale, picture.height // scale))


def reduction(size: tuple[int, int], full: tuple[int, int]) -> int:
    """How many pixels of a picture's `full` side make one of what `decode_at` returned: 1, 2, 4 or 8.

    A point (x, y) of the full picture is at (x / reduction, y / reduction). The last column and row may be partly
    beyond the edge, so that the ratio of the sizes is not it.
    """
    for scale in (1, *reversed(_SCALES)):
        if size == (-(-full[0] // scale), -(-full[1] // scale)):
            return scale
    raise ValueError(f"{size[0]} x {size[1]} is no reduction of {full[0]} x {full[1]}")


def _whole_sides(turn: Image.Transpose | None) -> tuple[bool, bool]:
    """Which stored sides a turn mirrors, across and down: a partial last pixel would come first there, and everything
    after it would be shifted. These sides are divided without a rest, or not at all."""
    transpose = Image.Transpose
    across = (transpose.FLIP_LEFT_RIGHT, transpose.ROTATE_180, transpose.TRANSVERSE, transpose.ROTATE_90)
    down = (transpose.FLIP_TOP_BOTTOM, transpose.ROTATE_180, transpose.TRANSVERSE, transpose.ROTATE_270)
    return turn in across, turn in down
