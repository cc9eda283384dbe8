"""The settings of learning without labels, one table for each method: see `vitrail.pretraining`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitrail.errors import ConfigError

Target = Literal["mean-colour", "patch-4x4", "pixels"]
Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Masked:
    """The paper's masked patch prediction (appendix B.1.2)."""

    target: Target = "mean-colour"  # 512 colours; 4 x 4 of them; or every pixel, by the squared error
    mask_ratio: float = 0.5  # of the patch embeddings are corrupted, and predicted
    replaced: float = 0.8  # of the corrupted ones: by the learned [mask] …
    swapped: float = 0.1  # … by the embedding of another patch of the picture; the rest stay as they are

    def __post_init__(self) -> None:
        check_ratio("masked", self.mask_ratio)
        if self.replaced < 0 or self.swapped < 0 or self.replaced + self.swapped > 1:
            raise ConfigError("recipe: masked.replaced and masked.swapped must not be negative, nor above 1 together")


@dataclass(frozen=True)
class Mae:
    """The masked autoencoder (He et al. 2021)."""

    mask_ratio: float = 0.75  # of the patches are hidden from the encoder, and predicted
    decoder_dim: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    norm_pixels: bool = True  # each patch is predicted as if its pixels had mean 0 and variance 1

    def __post_init__(self) -> None:
        check_ratio("mae", self.mask_ratio)
        for name in ("decoder_dim", "decoder_depth", "decoder_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"recipe: mae.{name} must be at least 1")
        if self.decoder_dim % self.decoder_heads or self.decoder_dim % 4:
            raise ConfigError(
                f"recipe: mae.decoder_dim = {self.decoder_dim} must be divided by 4 and by decoder_heads,"
                f" {self.decoder_heads}"
            )


@dataclass(frozen=True)
class Dino:
    """Self-distillation (Caron et al. 2021). Large crops are made as `augmentation` says, at the model's size; blur and
    solarize are the chances of the first large crop, of the second, and of each small one."""

    local_crops: int = 8  # small ones, beside the two large ones
    local_size: int = 96  # in pixels
    local_scale: tuple[float, float] = (0.05, 0.4)  # of the picture's area
    blur: Triple = (1.0, 0.1, 0.5)
    solarize: Triple = (0.0, 0.2, 0.0)
    out_dim: int = 65_536  # prototypes
    hidden_dim: int = 2_048  # of the head's three layers …
    bottleneck_dim: int = 256  # … and what the last of them leaves
    student_temperature: float = 0.1
    teacher_temperature: float = 0.07
    warmup_temperature: float = 0.04  # of the teacher, at first; it rises evenly
    warmup_temperature_epochs: float = 30.0
    momentum: float = 0.996  # of the teacher, at first; it follows a cosine to 1
    centre_momentum: float = 0.9
    freeze_epochs: float = 1.0  # in which the last layer of the head stays as it is

    def __post_init__(self) -> None:
        sizes = ("local_size", "out_dim", "hidden_dim", "bottleneck_dim")
        temperatures = ("student_temperature", "teacher_temperature", "warmup_temperature")
        low, high = self.local_scale
        wrong = [
            (self.local_crops < 0, "local_crops must not be negative"),
            *((getattr(self, name) < 1, f"{name} must be at least 1") for name in sizes),
            *((getattr(self, name) <= 0, f"{name} must be above 0") for name in temperatures),
            (not 0 < low <= high <= 1, "local_scale must be two numbers above 0 and up to 1, the smaller first"),
            (any(not 0 <= p <= 1 for p in (*self.blur, *self.solarize)), "blur and solarize must be from 0 to 1"),
            (not 0 <= self.momentum <= 1, "momentum must be from 0 to 1"),
            (not 0 <= self.centre_momentum < 1, "centre_momentum must be from 0 to below 1"),
            (self.warmup_temperature_epochs < 0, "warmup_temperature_epochs must not be negative"),
            (self.freeze_epochs < 0, "freeze_epochs must not be negative"),
        ]
        for is_so, words in wrong:
            if is_so:
                raise ConfigError(f"recipe: dino.{words}")


def check_ratio(method: str, ratio: float) -> None:
    if not 0 < ratio < 1:
        nothing = "nothing is left to predict" if ratio <= 0 else "nothing is left to see"
        raise ConfigError(f"recipe: {method}.mask_ratio = {ratio:g}: {nothing}; choose a number above 0 and below 1")
