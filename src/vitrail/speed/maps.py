"""What a ResNet's feature maps keep for the backward pass: bytes for one picture, in closed form."""

from __future__ import annotations

from vitrail.model.config import ResNetConfig
from vitrail.model.fields import Pair

FULL = 4  # bytes of a float32
INDEX = 8  # of where a maximum was


def kept_of_maps(config: ResNetConfig, img_size: Pair, precision: str) -> tuple[int, int]:
    """Bytes that are saved, and what the fullest moment of the backward pass needs beside them.

    A norm keeps its input and a ReLU its output, in float32 as autocast has them. A convolution keeps its input: that
    output itself, or a copy of it where it is padded by hand or has other numbers.
    """
    maps = _Maps(config, precision)
    size = maps.stem(img_size)
    chans = config.width
    for stage, depth in enumerate(config.layers):
        out = config.width * 4 * 2**stage
        for block in range(depth):
            size = maps.bottleneck(size, chans, out, 2 if stage and block == 0 else 1, first=block == 0)
            chans = out
    if config.preact:
        maps.keep(chans, size, 2 * FULL)
    return maps.saved, 2 * maps.largest * FULL


class _Maps:
    """The sum over the maps, one after the other."""

    def __init__(self, config: ResNetConfig, precision: str) -> None:
        self.config = config
        self.number = FULL if precision == "fp32" else 2  # bytes of what a convolution reads
        self.by_hand = config.padding == "same"
        self.saved = self.largest = 0

    def keep(self, chans: int, size: Pair, width: int) -> None:
        self.saved += chans * size[0] * size[1] * width
        self.largest = max(self.largest, chans * size[0] * size[1])

    def stem(self, size: Pair) -> Pair:
        config = self.config
        kernel, stride = (3, 1) if config.small_stem else (7, 2)
        self.keep(config.in_chans, _padded(size, kernel, stride) if self.by_hand else size, self.number)
        size = _halved(size) if stride == 2 else size
        if not config.preact:
            self.keep(config.width, size, 2 * FULL)  # norm and ReLU
        if not config.small_stem:
            around = _padded(size, 3, 2) if self.by_hand else (size[0] + 2, size[1] + 2)
            self.keep(config.width, around, FULL if self.number == FULL or not config.preact else self.number)
            size = _halved(size)
            self.keep(config.width, size, INDEX)
        if not config.preact:
            self.keep(config.width, size, self.number)  # what the first bottleneck reads
        return size

    def bottleneck(self, size: Pair, chans: int, out: int, stride: int, *, first: bool) -> Pair:
        inner, after = out // 4, _halved(size) if stride == 2 else size
        if self.config.preact:
            self.keep(chans, size, FULL)
            self._active(chans, size, 1, 1)
        for width, where, kernel in ((inner, size, 3), (inner, after, 1)):  # norm and ReLU before each convolution
            self.keep(width, where, FULL)
            self._active(width, where, kernel, stride if kernel == 3 else 1)
        if not self.config.preact:
            self.keep(out, after, FULL * (2 if first else 1))  # the last norm, and that of the shortcut
            self._active(out, after, 1, 1)
        return after

    def _active(self, chans: int, size: Pair, kernel: int, stride: int) -> None:
        """A ReLU's output, and what the convolution after it reads."""
        self.keep(chans, size, FULL)
        if kernel == 3 and self.by_hand:
            self.keep(chans, _padded(size, kernel, stride), self.number)
        elif self.number != FULL:
            self.keep(chans, size, self.number)


def _halved(size: Pair) -> Pair:
    return -(-size[0] // 2), -(-size[1] // 2)


def _padded(size: Pair, kernel: int, stride: int) -> Pair:
    """As TensorFlow pads."""
    h, w = (n + max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in size)
    return h, w
