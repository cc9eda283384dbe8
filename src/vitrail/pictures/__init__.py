"""From a file to pixels: hardened decoding, and the preprocessing stored with a model. Pillow and NumPy alone."""

from vitrail.pictures.decode import as_picture, decode, decode_at
from vitrail.pictures.draft import MARGIN, reduction
from vitrail.pictures.preprocessing import Preprocessing

__all__ = ["MARGIN", "Preprocessing", "as_picture", "decode", "decode_at", "reduction"]
