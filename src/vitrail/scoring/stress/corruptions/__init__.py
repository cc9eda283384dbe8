"""The 15 common corruptions of ImageNet-C and CIFAR-10-C, written from their published definitions.

Differences: frost is drawn, not photographed; motion is a line of pixels, as ImageMagick's documentation has it; and
pictures are not saved as JPEG files afterwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.scoring.stress.corruptions.blurs import BLURS
from vitrail.scoring.stress.corruptions.digital import DIGITAL
from vitrail.scoring.stress.corruptions.noise import NOISES
from vitrail.scoring.stress.corruptions.severities import CERTAIN, CORRUPTIONS, SEVERITIES, strength
from vitrail.scoring.stress.corruptions.weather import WEATHERS
from vitrail.scoring.stress.dice import Dice

__all__ = ["CERTAIN", "CORRUPTIONS", "SEVERITIES", "corrupt"]

_WAYS: dict[str, Any] = {**NOISES, **BLURS, **WEATHERS, **DIGITAL}
_AT_ONCE = 2**21  # values of pixels: some ways need a hundred bytes for each


def corrupt(pixels: Tensor, name: str, severity: int, rows: Tensor, seed: int = 0) -> Tensor:
    """Pictures, uint8 of (n, channels, height, width), corrupted; `rows` tell them apart for the random numbers."""
    if name not in CORRUPTIONS or severity not in SEVERITIES:
        raise VitrailError(f"there is no {name} of severity {severity}: {', '.join(CORRUPTIONS)}; 1 to 5")
    how = strength(name, severity, (pixels.shape[-2], pixels.shape[-1]))
    few = max(1, _AT_ONCE // pixels[0].numel())
    parts = [
        _whole(_WAYS[name](pixels[at : at + few], how, Dice(rows[at : at + few], seed, name)))
        for at in range(0, len(pixels), few)
    ]
    return torch.cat(parts)


def _whole(values: Tensor) -> Tensor:
    """Grey levels, rounded down as theirs are; the small addition keeps what is whole but for the last bit."""
    return (values.clamp(0, 1) * 255 + 1e-4).to(torch.uint8)
