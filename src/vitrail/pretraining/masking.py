"""Which patches of which picture are hidden: a function of the seed, the step and the place in the whole batch."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.data.augmentation.draws import Stream, keys, uniform
from vitrail.data.schedule import ALONE, Share
from vitrail.errors import ConfigError
from vitrail.model.config import ViTConfig

STILL = -1  # the "step" of what is looked at again and again: evaluation, and pictures to see


class Places:
    """Random numbers for the pictures of a batch. `at` is filled before the step, and all else is on the device, so
    that a step can be recorded; the same pictures get the same numbers over any number of processes."""

    def __init__(self, seed: int, device: torch.device, share: Share = ALONE) -> None:
        self.seed, self.share = seed, share
        self.at = torch.zeros((), dtype=torch.int64, device=device)

    def begin(self, step: int) -> None:
        self.at.fill_(step)

    def numbers(self, stream: Stream, pictures: int, count: int) -> Tensor:
        """From [0, 1), float64: (pictures, count)."""
        first = self.share.rank * pictures
        place = torch.arange(first, first + pictures, device=self.at.device)
        return uniform(keys(stream, self.seed, 0, place, self.at.expand_as(place)), count)


def still_numbers(stream: Stream, seed: int, index: Tensor, count: int) -> Tensor:
    """The same for pictures that are looked at again and again, by their number in the set."""
    return uniform(keys(stream, seed, 0, index, STILL), count)


def hidden_of(config: ViTConfig, ratio: float, method: str) -> int:
    """How many patches of a picture are hidden; at least one is, and one is not."""
    patches = config.num_patches
    hidden = patches - int(patches * (1 - ratio))
    if not 0 < hidden < patches:
        what = "seen" if hidden else "hidden"
        raise ConfigError(
            f"{method}.mask_ratio = {ratio:g} leaves none of {patches} patches to be {what}:"
            " choose another, or smaller patches"
        )
    return hidden


def order_by(noise: Tensor) -> Tensor:
    """The patches of each picture in the order of their noise, (pictures, patches): the first are seen, the last are
    hidden."""
    return noise.argsort(dim=1, stable=True)


def gathered(patches: Tensor, index: Tensor) -> Tensor:
    """The patches (n, patches, …) at `index` (n, some)."""
    return patches.gather(1, index[..., None].expand(-1, -1, patches.shape[-1]))


def cut(pictures: Tensor, size: tuple[int, int]) -> Tensor:
    """(n, patches, height * width * channels), a pixel's channels together, as MAE has them."""
    n, channels, height, width = pictures.shape
    p, q = size
    cells = pictures.view(n, channels, height // p, p, width // q, q)
    return cells.permute(0, 2, 4, 3, 5, 1).reshape(n, -1, p * q * channels)


def joined(patches: Tensor, size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """`cut` taken back: (n, channels, height, width)."""
    (n, _, numbers), (p, q), (h, w) = patches.shape, size, grid
    channels = numbers // (p * q)
    return patches.view(n, h, w, p, q, channels).permute(0, 5, 1, 3, 2, 4).reshape(n, channels, h * p, w * q)


def shown(patches: Tensor, at: Tensor, found: Tensor, config: ViTConfig) -> tuple[Tensor, Tensor]:
    """To look at: pictures whose patches `at` (n, some) are left out, and the same with `found` in their place."""
    place = at[..., None].expand_as(found)
    size, grid = config.patch_size, config.grid
    blank, full = patches.scatter(1, place, torch.zeros_like(found)), patches.scatter(1, place, found)
    return joined(blank, size, grid), joined(full, size, grid)


def check_encoder(config: ViTConfig, method: str) -> None:
    """Masks need patches that lie side by side, and tokens that come out of the last block."""
    if config.backbone is not None or config.conv_stem or config.stride is not None:
        raise ConfigError(f"{method} hides patches of the picture: it needs a model whose patches lie side by side")
    if config.levels or config.final_norm == "pooled" or config.distilled or config.pool == "map":
        raise ConfigError(
            f"{method} needs a plain encoder: final_norm='tokens', pool 'token' or 'mean', no levels, not distilled"
        )
