"""Pictures that show what was learned so far: reconstructions, and what tokens have in common."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.batch import Batch
from vitrail.data.sheet import as_pictures, contact_sheet
from vitrail.data.source import Subset
from vitrail.errors import PictureError
from vitrail.model.vit import ViT
from vitrail.pictures import Preprocessing

SHOWN = 8  # pictures
_SIDE = 128
_BRIGHT = 0.98  # of the numbers are inside the range of colours, on either side


def some_pictures(subset: Subset, preprocessing: Preprocessing, count: int = SHOWN) -> Tensor | None:
    """The first that can be read, of some that lie apart, as the model takes them."""
    found: list[np.ndarray] = []
    for sample in np.linspace(0, len(subset) - 1, min(len(subset), 4 * count)).astype(int).tolist():
        try:
            found.append(preprocessing(subset.read(sample)))
        except PictureError:
            continue
    step = max(1, len(found) // count)
    return torch.from_numpy(np.stack(found[::step][:count])) if found else None


def reconstruction_sheet(pictures: Tensor, masked: Tensor, drawn: Tensor, preprocessing: Preprocessing) -> Image.Image:
    """Two pictures to a row, each three times: as it is, with patches left out, and with what was drawn in them."""
    triples = zip(*(as_pictures(some, preprocessing) for some in (pictures, masked, drawn)), strict=True)
    flat = [picture for triple in triples for picture in triple]
    return contact_sheet(flat, ["picture", "seen", "drawn"] * len(pictures), columns=6, side=_SIDE)


@torch.no_grad()
def features_sheet(encoder: ViT, pictures: Tensor, preprocessing: Preprocessing) -> Image.Image:
    """Each picture, what sets its patches apart (their first three principal components over all the pictures, as red,
    green and blue), and where the class token looks in the last block, if there is one."""
    last = encoder.config.depth - 1
    found = encoder.eval().forward_intermediates(pictures, last, attention=last, maps=True, norm=True)
    columns = [as_pictures(pictures, preprocessing), _coloured(found.tokens[last])]
    captions = ["picture", "its patches"]
    if encoder.config.class_token:
        grid, prefix = encoder.config.grid, encoder.config.num_prefix
        heads = found.attention[last][:, :, 0, prefix:].mean(1)
        columns.append(_shaded(heads.view(-1, *grid)))
        captions.append("class token")
    flat = [picture for row in zip(*columns, strict=True) for picture in row]
    return contact_sheet(flat, captions * len(pictures), columns=2 * len(columns), side=_SIDE)


def _coloured(maps: Tensor) -> list[Image.Image]:
    """(n, width, h, w): patches that are alike have like colours."""
    n, width, h, w = maps.shape
    points = maps.permute(0, 2, 3, 1).reshape(-1, width).double().cpu()
    points = points - points.mean(0)
    _, _, axes = torch.linalg.svd(points, full_matrices=False)
    found = points @ axes[:3].T
    if found.shape[1] < 3:
        found = torch.nn.functional.pad(found, (0, 3 - found.shape[1]))
    low, high = found.quantile(1 - _BRIGHT, 0), found.quantile(_BRIGHT, 0)
    levels = ((found - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return [Image.fromarray(one) for one in (levels * 255).byte().view(n, h, w, 3).numpy()]


def _shaded(maps: Tensor) -> list[Image.Image]:
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    levels = ((maps - low) / (high - low).clamp(min=1e-12) * 255).byte().cpu().numpy()
    return [Image.fromarray(one).convert("RGB") for one in levels]


def crops_sheet(batch: Batch, preprocessing: Preprocessing, most: int = 4) -> Image.Image:
    """A row for each of some pictures: all its crops, as the model is shown them."""
    views = [batch.inputs(preprocessing)[:, None], *batch.crop_inputs(preprocessing)]
    names = ["large", "large", "small"]
    flat, captions = [], []
    for number in range(min(most, len(batch))):
        for crops, name in zip(views, names, strict=True):
            shown = as_pictures(crops[number], preprocessing)
            flat += shown
            captions += [name] * len(shown)
    return contact_sheet(flat, captions, columns=sum(crops.shape[1] for crops in views), side=96)
