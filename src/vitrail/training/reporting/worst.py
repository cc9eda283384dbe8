"""`worst.png`: the most confident mistakes, to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from vitrail.pages.document import colours
from vitrail.pictures.sources import printable

MOST = 48  # in the picture and on the page
_COLUMNS = 8
_SIDE, _GAP, _LINE = 144, 14, 17


@dataclass(frozen=True)
class ShownMistake:
    """A wrong answer with its picture; the most confident come first."""

    picture: Image.Image
    labels: tuple[str, ...]
    answer: str
    probability: float
    name: str = ""  # of the file

    @property
    def label(self) -> str:
        return ", ".join(map(printable, self.labels)) or "no label"


def worst(mistakes: Sequence[ShownMistake]) -> Image.Image:
    """The pictures in rows, each above its label and the answer."""
    mistakes = mistakes[:MOST]
    columns = min(_COLUMNS, len(mistakes))
    rows = -(-len(mistakes) // columns)
    wide, high = _SIDE + _GAP, _SIDE + 2 * _LINE + 10 + _GAP
    ink, bad, card = (colours()[name] for name in ("ink", "bad", "card"))
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 12)
    sheet = Image.new("RGB", (columns * wide + _GAP, rows * high + _GAP), card)
    pen = ImageDraw.Draw(sheet)
    for number, mistake in enumerate(mistakes):
        x, y = _GAP + number % columns * wide, _GAP + number // columns * high
        small = _fitted(mistake.picture)
        sheet.paste(small, (x + (_SIDE - small.width) // 2, y + (_SIDE - small.height) // 2))
        chance = f" {mistake.probability:.0%}"
        room = _SIDE - font.getlength(chance)
        answer = _short(f"→ {printable(mistake.answer)}", font, room)
        pen.text((x, y + _SIDE + 5), _short(mistake.label, font, _SIDE), fill=ink, font=font)
        pen.text((x, y + _SIDE + 5 + _LINE), answer + chance, fill=bad, font=font)
    return sheet


def _fitted(picture: Image.Image) -> Image.Image:
    """As large as there is room; a small one without smoothing."""
    scale = _SIDE / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.convert("RGB").resize(size, Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.BICUBIC)


def _short(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"
