"""The masked autoencoder (He et al. 2021): the encoder sees a quarter of the patches, a light decoder draws the
others."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.data.augmentation.draws import Stream
from vitrail.data.batch import Batch
from vitrail.model.block import Block
from vitrail.model.config import NOISE, ViTConfig
from vitrail.model.fields import Pair
from vitrail.model.layers import make_norm
from vitrail.model.vit import ViT
from vitrail.pictures import Preprocessing
from vitrail.pretraining.masking import Places, check_encoder, cut, gathered, hidden_of, order_by, shown, still_numbers
from vitrail.training.methods import Mae
from vitrail.training.objective import Objective

EPSILON = 1e-6  # of the variance of a patch's pixels: one of a single colour has none


class MaskedAutoencoder(ViT):
    """A ViT with a decoder; parameters are named as in MAE's own files.

    Nothing is done for what is not seen: hidden patches are left out before they are projected. The decoder works in
    the order of the noise, so that nothing has to be put back in its place: attention does not mind, and each token
    has its position added.
    """

    decoder_pos_embed: Tensor

    def __init__(self, config: ViTConfig, settings: Mae) -> None:
        check_encoder(config, "mae")
        super().__init__(config)
        self.settings = settings
        self.hidden = hidden_of(config, settings.mask_ratio, "mae")
        width = settings.decoder_dim
        inside = decoder_config(config, settings)
        self.decoder_embed = nn.Linear(config.embed_dim, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.register_buffer("decoder_pos_embed", decoder_positions(config, width))
        self.decoder_blocks = nn.ModuleList(Block(inside, 0.0) for _ in range(settings.decoder_depth))
        self.decoder_norm = make_norm(inside, width)
        self.decoder_pred = nn.Linear(width, config.patch_size[0] * config.patch_size[1] * config.in_chans)
        if not self.mask_token.is_meta:
            self._init_decoder()

    def _init_decoder(self) -> None:
        nn.init.normal_(self.mask_token, std=0.02)
        for part in (self.decoder_embed, self.decoder_blocks, self.decoder_pred):
            for module in part.modules():
                if isinstance(module, nn.Linear):
                    nn.init.xavier_uniform_(module.weight)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)

    def forward(self, pictures: Tensor, order: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """What the hidden patches, the last of `order` (n, patches), are thought to be: (n, hidden, pixels). Without an
        order: what the encoder makes of all patches, pooled."""
        if order is None:
            return super().forward(pictures)
        seen, hidden = order[:, : -self.hidden], order[:, -self.hidden :]
        tokens = self.decoder_embed(self.forward_features(pictures, keep=seen))  # (n, prefix + seen, width)
        x = torch.cat([self.mask_token.to(tokens.dtype).expand(len(tokens), self.hidden, -1), tokens], dim=1)
        x = x + self._places(seen, hidden).to(x.dtype)
        for block in self.decoder_blocks[:-1]:
            x = block(x)
        x = self.decoder_blocks[-1](x, read=self.hidden)  # the last block computes what is wanted alone
        return self.decoder_pred(self.decoder_norm(x))

    def _places(self, seen: Tensor, hidden: Tensor) -> Tensor:
        """Positions in the order in which the decoder has its tokens: hidden, prefix, seen."""
        prefix = self.config.num_prefix
        first, table = self.decoder_pos_embed[:, :prefix], self.decoder_pos_embed[0, prefix:]
        return torch.cat([F.embedding(hidden, table), first.expand(len(seen), -1, -1), F.embedding(seen, table)], dim=1)

    def wanted(self, pictures: Tensor, order: Tensor) -> Tensor:
        """What they are, in the same shape."""
        patches = gathered(cut(pictures, self.config.patch_size), order[:, -self.hidden :])
        return normalised(patches)[0] if self.settings.norm_pixels else patches

    @torch.no_grad()
    def drawn(self, pictures: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """To look at: the pictures with hidden patches left out, and with those that were drawn in their place.

        Where pixels are normalised patch by patch, the drawn ones get the mean and the variance of the true ones."""
        patches, last = cut(pictures, self.config.patch_size), order[:, -self.hidden :]
        drawn = self(pictures, order).float()
        if self.settings.norm_pixels:
            _, mean, deviation = normalised(gathered(patches, last))
            drawn = drawn * deviation + mean
        return shown(patches, last, drawn, self.config)


def normalised(patches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With mean 0 and variance 1 in each, and the mean and deviation that they had."""
    variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
    deviation = (variance + EPSILON) ** 0.5
    return (patches - mean) / deviation, mean, deviation


def decoder_config(config: ViTConfig, settings: Mae) -> ViTConfig:
    """Plain blocks of the decoder's width, with the norm and the activation of the encoder."""
    changed: ViTConfig = config.replace(
        embed_dim=settings.decoder_dim, depth=settings.decoder_depth, num_heads=settings.decoder_heads, head_dim=None,
        mlp="plain", mlp_ratio=4.0, rope=False, relative_bias=False, attn_scale=None, layer_scale=None,
        positions="none", prefix_positions="none", init="identity" if config.init == "local" else config.init,
        **dict.fromkeys(NOISE, 0.0),
    )  # fmt: skip
    return changed


def decoder_positions(config: ViTConfig, width: int) -> Tensor:
    """MAE's sines and cosines, (1, prefix + patches, width): of the column, then of the row; the prefix has none."""
    table = mae_sincos(config.grid, width)
    return F.pad(table, (0, 0, config.num_prefix, 0))[None]


def mae_sincos(grid: Pair, width: int) -> Tensor:
    y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in grid), indexing="ij")
    frequency = 10_000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    x, y = (axis.flatten()[:, None] * frequency for axis in (x, y))
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=-1).float()


class Reconstruction(Objective):
    """The objective: the mean squared error of the hidden patches' pixels."""

    answers = False

    def __init__(self, plain: MaskedAutoencoder, places: Places) -> None:
        self.plain, self.places = plain, places

    def begin(self, step: int) -> None:
        self.places.begin(step)

    def prepare(self, batch: Batch, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
        inputs = batch.inputs(preprocessing)
        return inputs, order_by(self.places.numbers(Stream.MASK, len(inputs), self.plain.config.num_patches))

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        drawn = model(inputs, targets).float()
        loss = F.mse_loss(drawn, self.plain.wanted(inputs, targets))
        return loss, torch.zeros((), device=loss.device)

    def example(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        patches = torch.arange(self.plain.config.num_patches, device=pictures.device)
        return pictures, patches.expand(len(pictures), -1).contiguous()

    def still(self, samples: Tensor) -> Tensor:
        """The targets of pictures that are looked at again and again, by their numbers in the set."""
        return order_by(still_numbers(Stream.MASK, self.places.seed, samples, self.plain.config.num_patches))
