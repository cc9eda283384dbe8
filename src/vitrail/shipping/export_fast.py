"""The same model, written so that a runtime has less to move: queries, keys and values by themselves, and bytes that go
straight into the patch projection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.model.attention import Attention
from vitrail.model.layers import twin
from vitrail.model.merging import merged
from vitrail.model.patches import PatchEmbed
from vitrail.model.positions import rotate
from vitrail.model.resnet import ResNet
from vitrail.model.vit import ViT
from vitrail.pictures import Preprocessing
from vitrail.shipping.export_graph import FromBytes, WithFeatures


class SplitAttention(nn.Module):
    """`Attention` with three projections for one: nothing is cut apart, so that no copy is made of the parts. Of the
    last block's queries only those that are read are computed."""

    def __init__(self, whole: Attention) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.scale = whole.num_heads, whole.head_dim, whole.scale
        self.q, self.k, self.v = (_part(whole.qkv, number) for number in range(3))
        self.q_norm, self.k_norm, self.rel_pos, self.proj = whole.q_norm, whole.k_norm, whole.rel_pos, whole.proj

    def forward(
        self,
        x: Tensor,
        turn: Tensor | None = None,
        offsets: Tensor | None = None,
        mask: Tensor | None = None,
        read: int | None = None,
        watch: None = None,
    ) -> Tensor:
        first = x if read is None else x[:, :read]
        q, k, v = self._heads(self.q(first)), self._heads(self.k(x)), self._heads(self.v(x))
        q, k = self.q_norm(q), self.k_norm(k)
        if turn is not None:
            q, k = rotate(q, turn if read is None else turn[..., :read, :]), rotate(k, turn)
        bias = mask if self.rel_pos is None else self.rel_pos(offsets)
        if self.rel_pos is not None and bias is not None and read is not None:
            bias = bias[..., :read, :]
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale)
        # without the copy, which is none in a graph, the shape would hold for one kernel of attention alone
        return self.proj(x.transpose(1, 2).clone(memory_format=torch.contiguous_format).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)


class BytePatches(nn.Module):
    """`PatchEmbed` for whole numbers from 0 to 255: the normalisation is in the projection's weights."""

    def __init__(self, whole: PatchEmbed, preprocessing: Preprocessing) -> None:
        super().__init__()
        weight = whole.proj.weight.detach()  # (width, channels, h, w)
        mean, std = (torch.tensor(numbers).view(1, -1, 1, 1) for numbers in (preprocessing.mean, preprocessing.std))
        shift = -(weight * (mean / std)).sum(dim=(1, 2, 3))
        self.patch = (weight.shape[2], weight.shape[3])
        self.weight = nn.Parameter((weight / (255 * std)).permute(0, 2, 3, 1).flatten(1))
        self.bias = nn.Parameter(shift if whole.proj.bias is None else shift + whole.proj.bias.detach())
        self.norm = whole.norm

    def forward(self, x: Tensor, keep: None = None) -> tuple[Tensor, tuple[int, int]]:
        batch, chans, height, width = x.shape
        (p, q), grid = self.patch, (height // self.patch[0], width // self.patch[1])
        rows = x.permute(0, 2, 3, 1).reshape(batch, grid[0], p, grid[1], q * chans).permute(0, 1, 3, 2, 4)
        patches = rows.reshape(batch, grid[0] * grid[1], p * q * chans).to(self.weight.dtype)
        return self.norm(F.linear(patches, self.weight, self.bias)), grid


class _Turned(nn.Module):
    """Channels last go in, as pictures are stored."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pixels: Tensor) -> Any:
        return self.inner(pixels.permute(0, 3, 1, 2))


def with_split_attention(model: ViT | ResNet) -> ViT | ResNet:
    """The same model, with the same weights otherwise, whose attention is split; a ResNet is as it was."""
    if isinstance(model, ResNet):
        return model
    other: Any = twin(model)
    other.blocks = nn.ModuleList(twin(block) for block in model.blocks)
    for block in other.blocks:
        block.attn = SplitAttention(block.attn)
    return other


def fast_graph(model: ViT | ResNet, preprocessing: Preprocessing, *, merging: bool = False) -> nn.Module:
    """Bytes in, as `Preprocessing.pixels` makes them; logits and features out. `merging`: of merged tokens."""
    other: Any = with_split_attention(model)
    if merging:
        other = merged(other)
    config = model.config
    if isinstance(model, ResNet) or _reads_values(config):
        return FromBytes(WithFeatures(other), preprocessing).eval()
    other.patch_embed = BytePatches(model.patch_embed, preprocessing)
    return _Turned(WithFeatures(other)).eval()


def _reads_values(config: Any) -> bool:
    """Something stands between the pixels and the projection, or patches overlap."""
    before = config.backbone is not None or config.conv_stem or config.patch_norm in ("before", "both")
    return bool(before or (config.stride is not None and config.stride != config.patch_size))


def _part(qkv: nn.Linear, number: int) -> nn.Linear:
    width = qkv.out_features // 3
    part = nn.Linear(qkv.in_features, width, bias=qkv.bias is not None)
    chosen = slice(number * width, (number + 1) * width)
    part.weight = nn.Parameter(qkv.weight.detach()[chosen])
    if qkv.bias is not None:
        part.bias = nn.Parameter(qkv.bias.detach()[chosen])
    return part
