"""A batch as one picture to look at: what the model is really shown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vitrail.data.batch import Batch
from vitrail.pictures import Preprocessing
from vitrail.pictures.sources import printable

_INK, _PAPER, _GAP = (70, 70, 70), (255, 255, 255), 8
_LINE = 14  # pixels from a line of a caption to the next


def batch_sheet(batch: Batch, preprocessing: Preprocessing, classes: Sequence[str], most: int = 32) -> Image.Image:
    """The first pictures of a batch as they go to the model, mixed and erased, with their labels."""
    shown = min(most, len(batch))
    values, targets = batch.inputs(preprocessing)[:shown], batch.targets(len(classes))[:shown]
    return contact_sheet(as_pictures(values, preprocessing), [_caption(target, classes) for target in targets])


def as_pictures(values: Tensor, preprocessing: Preprocessing) -> list[Image.Image]:
    """Normalised numbers, (n, channels, height, width), back as pictures."""
    mean, std = (np.array(numbers, np.float32) for numbers in (preprocessing.mean, preprocessing.std))
    levels = values.cpu().permute(0, 2, 3, 1).numpy() * std + mean
    pixels = (levels * 255).round().clip(0, 255).astype(np.uint8)
    return [Image.fromarray(one if one.shape[2] == 3 else one[..., 0]).convert("RGB") for one in pixels]


def _caption(target: Tensor, classes: Sequence[str]) -> str:
    """The class, or several labels; of mixed pictures each with its share, the largest on a line of its own."""
    if target.ndim == 0:
        return printable(classes[int(target)]) if 0 <= int(target) < len(classes) else ""
    parts = sorted(((float(share), number) for number, share in enumerate(target) if share > 0), reverse=True)
    if len(parts) == 1 or all(share == 1 for share, _ in parts):
        return ", ".join(printable(classes[number]) for _, number in parts)
    most, *others = (f"{printable(classes[number])} {share:.0%}" for share, number in parts)
    return "\n".join([most, ", ".join(others)])


def contact_sheet(
    pictures: Sequence[Image.Image], captions: Sequence[str], *, columns: int = 8, side: int = 128
) -> Image.Image:
    """Pictures in rows, small ones enlarged without smoothing, each above the lines of its caption."""
    columns = min(columns, max(1, len(pictures)))
    rows = -(-len(pictures) // columns)
    font = ImageFont.load_default(12)
    lines = 1 + max((caption.count("\n") for caption in captions), default=0)
    cell_w, cell_h = side + _GAP, side + _GAP + 4 + _LINE * lines
    page = Image.new("RGB", (columns * cell_w + _GAP, rows * cell_h + _GAP), _PAPER)
    pen = ImageDraw.Draw(page)
    for number, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        x, y = _GAP + number % columns * cell_w, _GAP + number // columns * cell_h
        scale = side / max(picture.size)
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        way = Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.BICUBIC
        page.paste(picture.resize(size, way), (x + (side - size[0]) // 2, y + (side - size[1]) // 2))
        for place, line in enumerate(caption.split("\n")):
            pen.text((x, y + side + 3 + _LINE * place), _fitted(line, font, side), fill=_INK, font=font)
    return page


def _fitted(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    text = text if len(text) <= width else text[:width] + "…"  # no letter is narrower than a pixel
    while text and font.getlength(text) > width:
        text = text.removesuffix("…")[:-1] + "…" if len(text) > 1 else ""
    return text
