"""AutoAugment's learned policies (Cubuk et al. 2018, appendix): 25 pairs of operation, probability and level of 9."""

from __future__ import annotations

from vitrail.data.augmentation.ops import Op

_IMAGENET = """
    posterize 0.4 8, rotate 0.6 9
    solarize 0.6 5, autocontrast 0.6
    equalize 0.8, equalize 0.6
    posterize 0.6 7, posterize 0.6 6
    equalize 0.4, solarize 0.2 4
    equalize 0.4, rotate 0.8 8
    solarize 0.6 3, equalize 0.6
    posterize 0.8 5, equalize 1
    rotate 0.2 3, solarize 0.6 8
    equalize 0.6, posterize 0.4 6
    rotate 0.8 8, color 0.4 0
    rotate 0.4 9, equalize 0.6
    equalize 0, equalize 0.8
    invert 0.6, equalize 1
    color 0.6 4, contrast 1 8
    rotate 0.8 8, color 1 2
    color 0.8 8, solarize 0.8 7
    sharpness 0.4 7, invert 0.6
    shear_x 0.6 5, equalize 1
    color 0.4 0, equalize 0.6
    equalize 0.4, solarize 0.2 4
    solarize 0.6 5, autocontrast 0.6
    invert 0.6, equalize 1
    color 0.6 4, contrast 1 8
    equalize 0.8, equalize 0.6
"""

_CIFAR10 = """
    invert 0.1, contrast 0.2 6
    rotate 0.7 2, translate_x 0.3 9
    sharpness 0.8 1, sharpness 0.9 3
    shear_y 0.5 8, translate_y 0.7 9
    autocontrast 0.5, equalize 0.9
    shear_y 0.2 7, posterize 0.3 7
    color 0.4 3, brightness 0.6 7
    sharpness 0.3 9, brightness 0.7 9
    equalize 0.6, equalize 0.5
    contrast 0.6 7, sharpness 0.6 5
    color 0.7 7, translate_x 0.5 8
    equalize 0.3, autocontrast 0.4
    translate_y 0.4 3, sharpness 0.2 6
    brightness 0.9 6, color 0.2 8
    solarize 0.5 2, invert 0
    equalize 0.2, autocontrast 0.6
    equalize 0.2, equalize 0.6
    color 0.9 9, equalize 0.6
    autocontrast 0.8, solarize 0.2 8
    brightness 0.1 3, color 0.7 0
    solarize 0.4 5, autocontrast 0.9
    translate_y 0.9 9, translate_y 0.7 9
    autocontrast 0.9, solarize 0.8 3
    equalize 0.8, invert 0.1
    translate_y 0.7 9, autocontrast 0.9
"""

_SVHN = """
    shear_x 0.9 4, invert 0.2
    shear_y 0.9 8, invert 0.7
    equalize 0.6, solarize 0.6 6
    invert 0.9, equalize 0.6
    equalize 0.6, rotate 0.9 3
    shear_x 0.9 4, autocontrast 0.8
    shear_y 0.9 8, invert 0.4
    shear_y 0.9 5, solarize 0.2 6
    invert 0.9, autocontrast 0.8
    equalize 0.6, rotate 0.9 3
    shear_x 0.9 4, solarize 0.3 3
    shear_y 0.8 8, invert 0.7
    equalize 0.9, translate_y 0.6 6
    invert 0.9, equalize 0.6
    contrast 0.3 3, rotate 0.8 4
    invert 0.8, translate_y 0 2
    shear_y 0.7 6, solarize 0.4 8
    invert 0.6, rotate 0.8 4
    shear_y 0.3 7, translate_x 0.9 3
    shear_x 0.1 6, invert 0.6
    solarize 0.7 2, translate_y 0.6 7
    shear_y 0.8 4, invert 0.8
    shear_x 0.7 9, translate_y 0.8 3
    shear_y 0.8 5, autocontrast 0.7
    shear_x 0.7 2, invert 0.1
"""


def _parse(text: str) -> tuple[tuple[tuple[Op, float, int], ...], ...]:
    pairs = [[part.split() for part in line.split(",")] for line in text.strip().splitlines()]
    return tuple(
        tuple((Op[word[0].upper()], float(word[1]), int(word[2]) if len(word) > 2 else 0) for word in pair)
        for pair in pairs
    )


POLICIES = {"imagenet": _parse(_IMAGENET), "cifar10": _parse(_CIFAR10), "svhn": _parse(_SVHN)}
