"""The Vision Transformer: patches, tokens, blocks, norm, head (equations 1 to 4 of the paper)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitrail.errors import ConfigError
from vitrail.model.attention import AttentionPool, RelativeBias, Watch, keep_weights
from vitrail.model.block import Block
from vitrail.model.config import ViTConfig
from vitrail.model.devices import is_elsewhere, kernel_type
from vitrail.model.fields import Pair, pair
from vitrail.model.initialise import initialise, initialise_head
from vitrail.model.layers import added, check_image_size, check_pictures, exchange, make_dropout, make_norm
from vitrail.model.patches import PatchEmbed, kept_mask, kept_tokens, some_patches
from vitrail.model.positions import (
    Resampling,
    fixed_table,
    relative_index,
    resample_patches,
    resize_bias_table,
    resize_line,
    resize_positions,
    rotations,
)

Change = Callable[[Tensor], Tensor] | None


class Intermediates(NamedTuple):
    """What `forward_intermediates` saw on the way to the logits."""

    logits: Tensor
    tokens: dict[int, Tensor]  # block → (batch, tokens, width), or (batch, width, h, w) maps of the patches
    attention: dict[int, Tensor]  # block → (batch, heads, tokens, tokens), float32


class ViT(nn.Module):
    """Pictures in, logits out. Parameters are named as in timm.

    The last block computes only the tokens that the head reads (with `pool="token"`: the class token), which changes
    no logit and saves most of that block; `forward_features` and `forward_intermediates` have every token.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self.set_patch_drop(config.patch_drop)
        self.residual_dtype: torch.dtype | None = None  # of tokens between blocks, in training; None: as it comes
        width = config.embed_dim
        self.patch_embed = PatchEmbed(config)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if config.class_token else None
        self.dist_token = nn.Parameter(torch.zeros(1, 1, width)) if config.distilled else None
        self.reg_token = nn.Parameter(torch.zeros(1, config.registers, width)) if config.registers else None
        self._make_positions()
        self.pos_drop = make_dropout(config.embed_dropout)
        self.norm_pre = make_norm(config, width) if config.pre_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(config, rate) for rate in config.drop_paths)
        self.norm = make_norm(config, width) if config.final_norm == "tokens" else nn.Identity()
        self.attn_pool = AttentionPool(config) if config.pool == "map" else None
        self.fc_norm = make_norm(config, width) if config.final_norm == "pooled" else nn.Identity()
        self.pre_logits: nn.Module = nn.Identity()
        if config.pre_logits is not None:
            fc = nn.Linear(config.pooled_dim, config.pre_logits)
            self.pre_logits = nn.Sequential(OrderedDict(fc=fc, act=nn.Tanh()))
        self.head_drop = make_dropout(config.head_dropout)
        self._make_heads()
        self.init_weights()

    def init_weights(self) -> None:
        """Fills the model with fresh weights, as its configuration says."""
        if self.patch_embed.proj.weight.is_meta:
            return  # there is nothing to fill yet
        initialise(self, self.config)
        for head in (self.head, self.head_dist):
            initialise_head(head, self.config)
        if self.config.positions in ("sincos_1d", "sincos_2d") and self.pos_embed is not None:
            self.pos_embed.copy_(fixed_table(self.config, self.config.grid))

    def _make_positions(self) -> None:
        config, (h, w), width = self.config, self.config.grid, self.config.embed_dim
        self.pos_embed: Tensor | None = None
        if config.positions == "learned":
            self.pos_embed = nn.Parameter(torch.zeros(1, config.num_positioned + h * w, width))
        elif config.positions == "learned_2d":
            self.pos_embed_rows = nn.Parameter(torch.zeros(1, h, width // 2))
            self.pos_embed_cols = nn.Parameter(torch.zeros(1, w, width // 2))
            if config.num_positioned:
                self.pos_embed_prefix = nn.Parameter(torch.zeros(1, config.num_positioned, width))
        elif config.positions in ("sincos_1d", "sincos_2d"):
            del self.pos_embed  # fixed, but kept in checkpoints, where others expect it
            self.register_buffer("pos_embed", fixed_table(config, config.grid))

    def _make_heads(self) -> None:
        config = self.config
        width = config.pre_logits or config.pooled_dim
        self.head = nn.Linear(width, config.num_classes) if config.num_classes else nn.Identity()
        self.head_dist = nn.Linear(width, config.num_classes) if config.distilled and config.num_classes else None

    def forward(
        self,
        pictures: Tensor,
        *,
        mask: Tensor | None = None,
        keep: Tensor | None = None,
        heads: bool = False,
        watch: Mapping[int, Watch] | None = None,
    ) -> Tensor:
        """Logits, (batch, classes), of pictures, (batch, channels, height, width).

        mask: which patches are seen, (batch, rows, columns) or (batch, patches), true where seen; the others take
            part in nothing.
        keep: indices of the patches that alone go through the encoder, (batch, kept).
        heads: both heads of a distilled model by themselves, (2, batch, classes).
        watch: block → what is shown its attention, beside the fused kernel; pooling by attention is block `depth`.
        """
        if self.training and self._thousandths and mask is None and keep is None:
            keep = some_patches(pictures, self.config, self._thousandths)
        tokens = self._encode(pictures, mask, keep, only_read=True, watch=watch)[0]
        if heads:
            return torch.stack(self.forward_heads(tokens))
        return self.forward_head(tokens, kept_mask(mask, keep), (watch or {}).get(self.config.depth))

    def set_patch_drop(self, rate: float) -> None:
        """The part of the patches that `forward` leaves out in training from now on, others for each picture: what is
        learned is a little less, and quicker."""
        self._thousandths = round(1000 * rate)  # a whole number, which a compiler takes as it is

    def forward_features(
        self, pictures: Tensor, *, mask: Tensor | None = None, keep: Tensor | None = None, change: Change = None
    ) -> Tensor:
        """All tokens after the last block and the norm: (batch, prefix + patches, width). `change` is what becomes of
        the patch embeddings, (batch, patches, width), before they get their positions."""
        return self._encode(pictures, mask, keep, change=change)[0]

    def forward_intermediates(
        self,
        pictures: Tensor,
        layers: int | Sequence[int] | Literal["all"] = (),
        *,
        attention: int | Sequence[int] | Literal["all"] = (),
        maps: bool = False,
        norm: bool = False,
        mask: Tensor | None = None,
        keep: Tensor | None = None,
    ) -> Intermediates:
        """Logits with the tokens after the chosen blocks and the attention weights inside the chosen blocks.

        Blocks count from 0, or from the end with -1, -2, …. `maps` gives the patches alone, as (batch, width, h, w);
        `norm` applies the final norm. Attention weights are computed beside the fused kernel, so that asking for
        them changes no bit of the logits.
        """
        wanted, watched = self.block_numbers(layers), self.block_numbers(attention)
        if maps and keep is not None:
            raise ConfigError("maps need every patch: leave out keep, or maps")
        last = self.config.depth - 1
        weights: dict[int, Tensor] = {}
        watch = {i: partial(keep_weights, weights, i) for i in watched}
        features, grid, tokens = self._encode(pictures, mask, keep, last not in wanted, wanted, watch)
        if norm:
            tokens = {i: self.norm(x) for i, x in tokens.items()}
        if maps:
            patches = {i: x[:, self.config.num_prefix :] for i, x in tokens.items()}
            tokens = {i: x.transpose(1, 2).reshape(len(x), -1, *grid) for i, x in patches.items()}
        return Intermediates(self.forward_head(features, kept_mask(mask, keep)), tokens, weights)

    def forward_head(self, tokens: Tensor, mask: Tensor | None = None, watch: Watch | None = None) -> Tensor:
        """Logits from the tokens of `forward_features`; `mask` says which of their patches are seen."""
        if self.config.distilled:
            first, second = self.forward_heads(tokens)
            return (first + second) / 2
        return self.head(self.head_drop(self.pre_logits(self.fc_norm(self.pool(tokens, mask, watch)))))

    def forward_heads(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The two logits of a distilled model: from the class token, and from the distillation token."""
        if not self.config.distilled:
            raise ConfigError("this model has one head: make it with distilled=True")
        x = self.head_drop(self.fc_norm(tokens[:, :2]))
        return self.head(x[:, 0]), (self.head_dist or nn.Identity())(x[:, 1])

    def pool(self, tokens: Tensor, mask: Tensor | None = None, watch: Watch | None = None) -> Tensor:
        """One vector for each picture: (batch, width)."""
        config = self.config
        if config.pool == "token":
            return tokens[:, 0]
        patches = tokens[:, config.num_prefix :]
        seen = None if mask is None else mask.flatten(1)
        if self.attn_pool is not None:
            return self.attn_pool(patches, None if seen is None else seen[:, None, None], watch)
        if seen is None:
            mean = patches.mean(dim=1)
        else:
            mean = (patches * seen[..., None]).sum(dim=1) / seen.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.cat([tokens[:, 0], mean], dim=-1) if config.pool == "token_mean" else mean

    def _encode(
        self,
        pictures: Tensor,
        mask: Tensor | None,
        keep: Tensor | None,
        only_read: bool = False,
        wanted: Sequence[int] = (),
        watch: Mapping[int, Watch] | None = None,
        change: Change = None,
    ) -> tuple[Tensor, Pair, dict[int, Tensor]]:
        """Equations 1 to 4: the normed tokens, the grid of patches, and what was asked for on the way."""
        if not torch.compiler.is_compiling() and is_elsewhere(pictures):  # our kernels start on the current GPU
            with torch.cuda.device(pictures.device):
                return self._encode(pictures, mask, keep, only_read, wanted, watch, change)
        config = self.config
        x, grid = self._embed(pictures, keep, change)  # (batch, tokens, width)
        turn, offsets = self._turn(grid, keep, x.device), self._offsets(grid, keep, x.device)
        if mask is not None and (mask.dtype != torch.bool or mask.flatten(1).shape[1] != grid[0] * grid[1]):
            raise ConfigError(f"mask must be true or false for each of {grid[0]} x {grid[1]} patches")
        seen = kept_mask(mask, keep)
        if seen is not None:
            seen = F.pad(seen.flatten(1), (config.num_prefix, 0), value=True)[:, None, None]
        only_read = only_read and config.pool == "token" and not config.levels
        tokens: dict[int, Tensor] = {}
        defer = self.training and kernel_type(x) is not None and not self.gradient_checkpointing
        for i, block in enumerate(self.blocks):
            read = 1 + config.distilled if only_read and i == config.depth - 1 else None
            shown = watch.get(i) if watch else None
            x = x.to(self.residual_dtype) if self.residual_dtype is not None and self.training else x
            if self.gradient_checkpointing and self.training and shown is None:
                x = checkpoint(block, x, turn, offsets, seen, read, use_reentrant=False)
            else:
                x = block(x, turn, offsets, seen, read, shown, defer)
            if i in wanted or i in config.levels:
                tokens[i] = x = added(x)
        if config.levels:
            x = torch.cat([self.norm(tokens[level]) for level in config.levels], dim=-1)
            return x, grid, {i: tokens[i] for i in wanted}
        return self.norm(added(x)), grid, tokens

    def _embed(self, pictures: Tensor, keep: Tensor | None, change: Change) -> tuple[Tensor, Pair]:
        """Equation 1: z0 = [x_class; x_p E] + E_pos."""
        config = self.config
        check_pictures(pictures, config.in_chans)
        check_image_size(pictures, config)
        x, grid = self.patch_embed(pictures, keep)
        x = x if change is None else change(x)
        positions = self.position_table(grid)
        n = config.num_positioned
        if positions is not None:
            x = x + (positions[:, n:] if keep is None else F.embedding(keep, positions[0, n:]))
        prefix: list[Tensor] = [t for t in (self.cls_token, self.dist_token, self.reg_token) if t is not None]
        if prefix:
            first = torch.cat(prefix, dim=1)
            if positions is not None and n:
                first = torch.cat([first[:, :n] + positions[:, :n], first[:, n:]], dim=1)
            x = torch.cat([first.expand(x.shape[0], -1, -1).to(x.dtype), x], dim=1)
        return self.norm_pre(self.pos_drop(x)), grid

    def position_table(self, grid: Pair) -> Tensor | None:
        """(1, positioned prefix + patches, width) for this grid."""
        config = self.config
        if config.positions == "learned_2d":
            rows, cols = resize_line(self.pos_embed_rows, grid[0]), resize_line(self.pos_embed_cols, grid[1])
            rows, cols = rows[:, :, None].expand(-1, -1, grid[1], -1), cols[:, None].expand(-1, grid[0], -1, -1)
            table = torch.cat([cols, rows], dim=-1).flatten(1, 2)
            return torch.cat([self.pos_embed_prefix, table], dim=1) if config.num_positioned else table
        if self.pos_embed is None or grid == config.grid:
            return self.pos_embed
        if config.positions == "learned":
            return resize_positions(self.pos_embed, config.grid, grid, config.num_positioned)
        return fixed_table(config, grid, self.pos_embed.device).to(self.pos_embed)

    def _turn(self, grid: Pair, keep: Tensor | None, device: torch.device) -> Tensor | None:
        """RoPE's rotations: (2, 1 or batch, 1, tokens, head_dim / 2)."""
        config = self.config
        if not config.rope:
            return None
        turn = rotations(grid, config.key_dim, config.rope_theta, config.num_prefix, device)
        return turn[:, None, None] if keep is None else turn[:, kept_tokens(keep, config.num_prefix)][:, :, None]

    def _offsets(self, grid: Pair, keep: Tensor | None, device: torch.device) -> Tensor | None:
        """Rows of the relative bias tables: (1 or batch, tokens, tokens)."""
        if not self.config.relative_bias:
            return None
        if grid != self.config.grid:
            raise ConfigError("a relative bias cannot be resized on the way: call model.set_image_size() first")
        index = relative_index(grid, self.config.num_prefix > 0, self.config.num_prefix, device)
        if keep is None:
            return index[None]
        kept = kept_tokens(keep, self.config.num_prefix)
        return index[kept[:, :, None], kept[:, None, :]]

    def block_numbers(self, layers: int | Sequence[int] | Literal["all"]) -> list[int]:
        """The blocks that are meant, from 0, in order; one that does not exist is an error."""
        depth = self.config.depth
        if layers == "all":
            return list(range(depth))
        layers = [layers] if isinstance(layers, int) else layers
        for layer in layers:
            if not isinstance(layer, int) or not -depth <= layer < depth:
                raise ConfigError(f"there is no block {layer!r}: the model has blocks 0 to {depth - 1}")
        return sorted({int(layer) % depth for layer in layers})

    def set_image_size(
        self, img_size: int | Pair, patch_size: int | Pair | None = None, resampling: Resampling = "timm"
    ) -> None:
        """Fits the model, in place, to another picture size and, if given, another patch size."""
        old = self.config
        changes: dict[str, object] = {"img_size": pair("img_size", img_size)}
        if patch_size is not None:
            changes["patch_size"] = pair("patch_size", patch_size)
            if old.stride is not None or old.patch_norm in ("before", "both"):
                raise ConfigError("the patch size can change only where patches do not overlap and have no norm before")
        new: ViTConfig = old.replace(**changes)
        with torch.no_grad():
            proj = self.patch_embed.proj
            exchange(proj, "weight", resample_patches(proj.weight, new.patch_size))
            proj.kernel_size, proj.stride = new.patch_size, new.stride or new.patch_size
            if old.positions == "learned" and self.pos_embed is not None:
                table = resize_positions(self.pos_embed, old.grid, new.grid, old.num_positioned, resampling)
                exchange(self, "pos_embed", table)
            elif old.positions == "learned_2d":
                exchange(self, "pos_embed_rows", resize_line(self.pos_embed_rows, new.grid[0], resampling))
                exchange(self, "pos_embed_cols", resize_line(self.pos_embed_cols, new.grid[1], resampling))
            for module in self.modules():
                if isinstance(module, RelativeBias):
                    table = resize_bias_table(module.relative_position_bias_table, old.grid, new.grid)
                    exchange(module, "relative_position_bias_table", table)
            self.config = new
            if old.positions in ("sincos_1d", "sincos_2d") and self.pos_embed is not None:
                self.pos_embed = fixed_table(new, new.grid).to(self.pos_embed)

    def reset_head(self, num_classes: int) -> None:
        """Replaces the head for another number of classes (0: features)."""
        self.config = self.config.replace(num_classes=num_classes)
        self._make_heads()
        for head in (self.head, self.head_dist):
            if isinstance(head, nn.Linear):
                head.to(self.patch_embed.proj.weight)  # where that is, and in its numbers
                nn.init.trunc_normal_(head.weight, std=0.01)
                initialise_head(head, self.config)
