"""Masked patch prediction as in the paper (appendix B.1.2): half of the patch embeddings are corrupted, and what was in
the patches is predicted from what comes out in their places."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.data.augmentation.draws import Stream
from vitrail.data.batch import Batch
from vitrail.errors import ConfigError
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT
from vitrail.pictures import Preprocessing
from vitrail.pretraining.masking import Places, check_encoder, cut, gathered, hidden_of, order_by, shown, still_numbers
from vitrail.training.methods import Masked
from vitrail.training.objective import Objective

LEVELS = 8  # of 3 bits
CELLS = 4  # the side of the small patch


class MaskedPredictor(ViT):
    """A ViT with the learned [mask] and a linear map from tokens to what their patches held."""

    def __init__(self, config: ViTConfig, settings: Masked) -> None:
        check_encoder(config, "masked")
        if settings.target == "patch-4x4" and min(config.patch_size) < CELLS:
            raise ConfigError(f"masked.target = 'patch-4x4' needs patches of {CELLS} x {CELLS} pixels or more")
        if config.num_patches < 2:
            raise ConfigError("masked prediction needs two patches or more: choose smaller ones")
        super().__init__(config)
        self.settings = settings
        self.corrupted = hidden_of(config, settings.mask_ratio, "masked")
        p, q = config.patch_size
        colours = LEVELS**config.in_chans
        answers = {"mean-colour": colours, "patch-4x4": CELLS * CELLS * colours, "pixels": p * q * config.in_chans}
        self.mask_token = nn.Parameter(torch.zeros(1, 1, config.embed_dim))
        self.predict = nn.Linear(config.embed_dim, answers[settings.target])
        if not self.mask_token.is_meta:
            nn.init.normal_(self.mask_token, std=0.02)
            nn.init.xavier_uniform_(self.predict.weight)
            nn.init.zeros_(self.predict.bias)

    def forward(self, pictures: Tensor, sources: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """What the corrupted patches are thought to hold: (n, corrupted, answers), colours as their logits. Without
        sources: what the encoder makes of the pictures, pooled.

        `sources` (n, 2, patches) has the patches in the order of their noise, of which the last are corrupted, and for
        each patch where its embedding comes from: from itself, from another, or, where it is -1, from [mask]."""
        if sources is None:
            return super().forward(pictures)
        order, source = sources.unbind(1)

        def corrupt(patches: Tensor) -> Tensor:
            taken = gathered(patches, source.clamp(min=0))
            return torch.where((source < 0)[..., None], self.mask_token.to(patches.dtype), taken)

        tokens = self.forward_features(pictures, change=corrupt)[:, self.config.num_prefix :]
        found = self.predict(gathered(tokens, order[:, -self.corrupted :]))
        return found.view(*found.shape[:2], CELLS * CELLS, -1) if self.settings.target == "patch-4x4" else found

    def wanted(self, pictures: Tensor, sources: Tensor, levels: Tensor) -> Tensor:
        """What they hold: numbers of colours, (n, corrupted) or (n, corrupted, 16), or pixels (n, corrupted, numbers).

        `levels` are the pictures' pixels from 0 to 255."""
        last, size = sources[:, 0, -self.corrupted :], self.config.patch_size
        if self.settings.target == "pixels":
            return gathered(cut(pictures, size), last)
        cells = (1, 1) if self.settings.target == "mean-colour" else (CELLS, CELLS)
        colours = colour_numbers(levels, size, cells)
        found = gathered(colours, last)
        return found[..., 0] if cells == (1, 1) else found

    @torch.no_grad()
    def drawn(self, pictures: Tensor, sources: Tensor, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
        """To look at: the pictures with corrupted patches left out, and with what was predicted in their place."""
        size, channels = self.config.patch_size, self.config.in_chans
        found = self(pictures, sources).float()
        if self.settings.target != "pixels":
            cells = (1, 1) if self.settings.target == "mean-colour" else (CELLS, CELLS)
            found = painted(found.argmax(-1).view(*found.shape[:2], -1), size, cells, channels, preprocessing)
        return shown(cut(pictures, size), sources[:, 0, -self.corrupted :], found, self.config)


def colour_numbers(levels: Tensor, size: tuple[int, int], cells: tuple[int, int]) -> Tensor:
    """The mean colour of each of `cells` of every patch, with 3 bits to a channel, as one number: (n, patches, cells).

    `levels` (n, channels, height, width) are whole numbers from 0 to 255, whose sums are exact."""
    n, channels = levels.shape[:2]
    patches = cut(levels, size).view(-1, *size, channels).permute(0, 3, 1, 2)
    means = F.adaptive_avg_pool2d(patches, cells)  # (n * patches, channels, rows, columns)
    three_bits = (means / (256 / LEVELS)).floor().clamp(0, LEVELS - 1).long().flatten(2)
    places = LEVELS ** torch.arange(channels - 1, -1, -1, device=levels.device)
    return (three_bits * places[:, None]).sum(1).view(n, -1, cells[0] * cells[1])


def painted(
    colours: Tensor, size: tuple[int, int], cells: tuple[int, int], channels: int, preprocessing: Preprocessing
) -> Tensor:
    """Patches of these colours (n, some, cells), each in the middle of its eighth, as a model takes them: (n, some,
    pixels)."""
    places = LEVELS ** torch.arange(channels - 1, -1, -1, device=colours.device)
    levels = (colours[..., None] // places % LEVELS + 0.5) / LEVELS  # (n, some, cells, channels)
    mean, std = (torch.tensor(n, device=colours.device) for n in (preprocessing.mean, preprocessing.std))
    values = ((levels - mean) / std).flatten(0, 1).mT  # (n * some, channels, cells)
    large = F.interpolate(values.reshape(-1, channels, *cells), size, mode="nearest")
    return large.permute(0, 2, 3, 1).reshape(*colours.shape[:2], -1)


def draw_sources(order: Tensor, kind: Tensor, other: Tensor, corrupted: int, settings: Masked) -> Tensor:
    """See `MaskedPredictor.forward`: (n, 2, patches). `kind` and `other` are numbers from [0, 1) for each patch: what
    becomes of it if it is corrupted, and which other patch comes in its place."""
    n, patches = order.shape
    own = torch.arange(patches, device=order.device).expand(n, -1)
    another = (other * (patches - 1)).long().clamp(max=patches - 2)
    another = another + (another >= own).long()  # any but itself
    changed = torch.where(kind < settings.replaced + settings.swapped, another, own)
    changed = torch.where(kind < settings.replaced, -1, changed)
    chosen = torch.zeros_like(order, dtype=torch.bool).scatter(1, order[:, -corrupted:], True)
    return torch.stack([order, torch.where(chosen, changed, own)], dim=1)


class MaskedPrediction(Objective):
    """The objective: cross-entropy of colours, or the squared error of pixels, of the corrupted patches alone."""

    def __init__(self, plain: MaskedPredictor, places: Places, preprocessing: Preprocessing) -> None:
        self.plain, self.places = plain, places
        self.answers = plain.settings.target != "pixels"
        mean, std = (torch.tensor(n, device=places.at.device) for n in (preprocessing.mean, preprocessing.std))
        self.mean, self.std = mean.view(-1, 1, 1), std.view(-1, 1, 1)

    def begin(self, step: int) -> None:
        self.places.begin(step)

    def prepare(self, batch: Batch, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
        inputs = batch.inputs(preprocessing)
        count = self.plain.config.num_patches
        noise = self.places.numbers(Stream.MASK, len(inputs), count)
        rest = self.places.numbers(Stream.CORRUPTION, len(inputs), 2 * count)
        return inputs, self.sources(noise, rest)

    def sources(self, noise: Tensor, rest: Tensor) -> Tensor:
        kind, other = rest.chunk(2, dim=1)
        return draw_sources(order_by(noise), kind, other, self.plain.corrupted, self.plain.settings)

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        found = model(inputs, targets).float()
        levels = ((inputs * self.std + self.mean) * 255).round().clamp(0, 255)
        wanted = self.plain.wanted(inputs, targets, levels)
        if not self.answers:
            return F.mse_loss(found, wanted), torch.zeros((), device=found.device)
        loss = F.cross_entropy(found.flatten(0, -2), wanted.flatten())
        with torch.no_grad():
            right = (found.argmax(-1) == wanted).float().flatten(1).mean(1).sum()
        return loss, right

    def example(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        patches = torch.arange(self.plain.config.num_patches, device=pictures.device)
        return pictures, patches.expand(len(pictures), 2, -1).contiguous()

    def still(self, samples: Tensor) -> Tensor:
        """The targets of pictures that are looked at again and again, by their numbers in the set."""
        seed, count = self.places.seed, self.plain.config.num_patches
        noise = still_numbers(Stream.MASK, seed, samples, count)
        return self.sources(noise, still_numbers(Stream.CORRUPTION, seed, samples, 2 * count))
