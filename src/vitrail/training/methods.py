"""The settings of learning without labels, one table for each method: see `vitrail.pretraining`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.errors import ConfigError

Target = Literal["mean-colour", "patch-4x4", "pixels"]
Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Masked:
    """The paper's masked patch prediction (appendix B.1.2)."""

    target: Annotated[Target, "one of 512 colours; 4 x 4 of them; or every pixel, by the squared error"] = "mean-colour"
    mask_ratio: Annotated[float, "the part of the patch embeddings that is corrupted, and predicted"] = 0.5
    replaced: Annotated[float, "the part of the corrupted ones that becomes the learned [mask] …"] = 0.8
    swapped: Annotated[float, "… or another patch of the picture; the rest stay as they are"] = 0.1

    def __post_init__(self) -> None:
        check_ratio("masked", self.mask_ratio)
        if self.replaced < 0 or self.swapped < 0 or self.replaced + self.swapped > 1:
            raise ConfigError("recipe: masked.replaced and masked.swapped must not be negative, nor above 1 together")


@dataclass(frozen=True)
class Mae:
    """The masked autoencoder (He et al. 2021)."""

    mask_ratio: Annotated[float, "the part of the patches that the encoder does not see, and that is predicted"] = 0.75
    decoder_dim: Annotated[int, "width of the decoder"] = 512
    decoder_depth: Annotated[int, "its blocks"] = 8
    decoder_heads: Annotated[int, "its heads of attention"] = 16
    norm_pixels: Annotated[bool, "each patch is predicted as if its pixels had mean 0 and variance 1"] = True

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
    """Self-distillation (Caron et al. 2021). Large crops are made as `augmentation` says, at the model's size."""

    local_crops: Annotated[int, "small crops, beside the two large ones"] = 8
    local_size: Annotated[int, "their side in pixels"] = 96
    local_scale: Annotated[tuple[float, float], "their part of the picture's area, least and most"] = (0.05, 0.4)
    blur: Annotated[Triple, "its chance in the first large crop, in the second, and in each small one"] = (
        1.0,
        0.1,
        0.5,
    )
    solarize: Annotated[Triple, "likewise"] = (0.0, 0.2, 0.0)
    out_dim: Annotated[int, "prototypes that pictures are compared with"] = 65_536
    hidden_dim: Annotated[int, "width of the head's three layers …"] = 2_048
    bottleneck_dim: Annotated[int, "… and of what the last of them leaves"] = 256
    student_temperature: Annotated[float, "by what its scores are divided"] = 0.1
    teacher_temperature: Annotated[float, "by what its scores are divided"] = 0.07
    warmup_temperature: Annotated[float, "the teacher's at first, from which it moves evenly"] = 0.04
    warmup_temperature_epochs: Annotated[float, "for how long"] = 30.0
    momentum: Annotated[float, "how slowly the teacher follows, at first; it goes by a cosine to 1"] = 0.996
    centre_momentum: Annotated[float, "how slowly the mean of its scores, which is taken off, follows"] = 0.9
    freeze_epochs: Annotated[float, "in which the last layer of the head stays as it is"] = 1.0

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
