"""`vitrail convert`: anybody's checkpoint in anybody else's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import vitrail
from vitrail.commands.printing import Json, print_assumed, print_json


def convert(
    source: str,
    destination: Path,
    /,
    *,
    to: Literal["vitrail", "timm", "transformers", "torchvision", "google"],
    img_size: int | None = None,
    num_classes: int | None = None,
    num_heads: int | None = None,
    norm_eps: float | None = None,
    act: str | None = None,
    fit: str | None = None,
    crop_pct: float | None = None,
    interpolation: str | None = None,
    mean: tuple[float, float, float] | None = None,
    std: tuple[float, float, float] | None = None,
    as_json: Json = False,
) -> int:
    """Write anybody's checkpoint in anybody else's format.

    Example: vitrail convert ViT-B_16.npz vit-b16/ --to transformers

    Parameters
    ----------
    source
        a model folder, a checkpoint file of any known family, or hf:owner/name
    destination
        vitrail, timm and transformers: a folder; torchvision: a .pth file; google: an .npz file
    to
        whose format to write
    img_size
        resize the positions to another picture size
    num_classes
        replace the head by a fresh one
    num_heads
        what a file cannot say: attention heads
    norm_eps
        what a file cannot say: epsilon of the norms
    act
        what a file cannot say: gelu, gelu_tanh, quick_gelu or relu
    fit
        preprocessing: crop, squash or pad
    crop_pct
        preprocessing: part of the resized picture that the crop keeps
    interpolation
        preprocessing: bicubic, bilinear, lanczos, …
    mean
        preprocessing: three numbers
    std
        preprocessing: three numbers
    as_json
        print one JSON object
    """
    asked = {"img_size": img_size, "num_classes": num_classes, "num_heads": num_heads, "norm_eps": norm_eps, "act": act}
    options: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    pixels = {"fit": fit, "crop_pct": crop_pct, "interpolation": interpolation, "mean": mean, "std": std}
    options["preprocessing"] = {name: value for name, value in pixels.items() if value is not None}
    classifier = vitrail.convert(source, destination, to, **options)
    if as_json:
        config = classifier.model.config.to_json()
        print_json(
            {
                "source": source,
                "destination": str(destination),
                "to": to,
                "assumed": classifier.assumed,
                "config": config,
            }
        )
        return 0
    print_assumed(classifier)
    count = sum(parameter.numel() for parameter in classifier.model.parameters())
    print(f"{destination}: {to}, {count:,} parameters, {classifier.model.config.num_classes:,} classes")
    return 0
