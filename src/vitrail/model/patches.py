"""Pictures to patches to tokens: the linear projection, a small convolutional stem, or a ResNet before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.model.config import ViTConfig
from vitrail.model.fields import Pair
from vitrail.model.layers import make_norm
from vitrail.model.resnet import make_backbone


class ConvStem(nn.Sequential):
    """3 x 3 convolutions of stride 2, each with a norm and a ReLU."""

    def __init__(self, in_chans: int, widths: tuple[int, ...]) -> None:
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Conv2d(in_chans, width, 3, stride=2, padding=1, bias=False)]
            layers += [nn.GroupNorm(1, width), nn.ReLU()]
            in_chans = width
        super().__init__(*layers)


class PatchEmbed(nn.Module):
    """x_p E of equation 1: every patch, written as one vector, times one matrix."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        chans = config.in_chans
        self.backbone: nn.Module | None = None
        if config.backbone is not None:
            self.backbone, chans = make_backbone(config.backbone), config.backbone.out_chans
        elif config.conv_stem:
            self.backbone, chans = ConvStem(chans, config.conv_stem), config.conv_stem[-1]
        pixels = chans * config.patch_size[0] * config.patch_size[1]
        before, after = config.patch_norm in ("before", "both"), config.patch_norm in ("after", "both")
        self.norm_pixels = make_norm(config, pixels) if before else nn.Identity()
        # a convolution by its shape, as checkpoints have it; applied as the matrix product that it is
        self.proj = nn.Conv2d(
            chans, config.embed_dim, config.patch_size, config.stride or config.patch_size, bias=config.patch_bias
        )
        self.norm = make_norm(config, config.embed_dim) if after else nn.Identity()

    def forward(self, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Pair]:
        """(batch, channels, height, width) to (batch, patches, width), and the grid of patches; with `keep`, (batch,
        kept), only those patches are projected."""
        if self.backbone is not None:
            x = self.backbone(x)
        patches, grid = self.cut(x)
        if keep is not None:
            patches = patches.gather(1, keep[..., None].expand(-1, -1, patches.shape[-1]))
        x = F.linear(self.norm_pixels(patches), self.proj.weight.flatten(1), self.proj.bias)
        return self.norm(x), grid

    def cut(self, x: Tensor) -> tuple[Tensor, Pair]:
        """(batch, patches, channels * patch height * patch width), row by row, and the grid."""
        (p, q), (s, t) = self.proj.kernel_size, self.proj.stride
        batch, chans, height, width = x.shape
        h, w = (height - p) // s + 1, (width - q) // t + 1
        if (p, q) != (s, t):
            return F.unfold(x, (p, q), stride=(s, t)).transpose(1, 2), (h, w)
        x = x.reshape(batch, chans, h, p, w, q).permute(0, 2, 4, 1, 3, 5)
        return x.reshape(batch, h * w, chans * p * q), (h, w)


def some_patches(pictures: Tensor, config: ViTConfig, left_out: int) -> Tensor:
    """Indices of patches, others for each picture, of which so many thousandths are left out: (batch, kept)."""
    rows, columns = config.grid_of((pictures.shape[-2], pictures.shape[-1]))
    kept = max(1, rows * columns * (1000 - left_out) // 1000)
    return torch.rand(pictures.shape[0], rows * columns, device=pictures.device).topk(kept).indices


def kept_tokens(keep: Tensor, prefix: int) -> Tensor:
    """Indices among all tokens, the prefix included, of what goes through the encoder."""
    first = torch.arange(prefix, device=keep.device).expand(len(keep), -1)
    return torch.cat([first, keep + prefix], dim=1)


def kept_mask(mask: Tensor | None, keep: Tensor | None) -> Tensor | None:
    """Which of the patches that go through the encoder are seen."""
    return mask if mask is None or keep is None else mask.flatten(1).gather(1, keep)
