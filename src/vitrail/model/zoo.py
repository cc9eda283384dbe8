"""The named models, as a table. `vit_b16`, the paper's `ViT-B/16` and timm's `vit_base_patch16_224` are one."""

from __future__ import annotations

import difflib
import fnmatch
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from vitrail.errors import ConfigError, VitrailError
from vitrail.model.config import ResNetConfig, ViTConfig

if TYPE_CHECKING:
    from vitrail.model.resnet import ResNet
    from vitrail.model.vit import ViT

Config = ViTConfig | ResNetConfig


@dataclass(frozen=True)
class ZooModel:
    """A row of the zoo."""

    name: str
    title: str  # the paper's spelling
    config: Config
    timm: str | None  # timm's name for the same architecture, where timm has it
    imagenet_pixels: bool = False  # pixels are normalised by ImageNet's mean, not to [-1, 1]
    alias: str | None = None  # one more spelling


# letter: width, depth, heads, MLP ratio, timm's word, the paper's spelling
SIZES: dict[str, tuple[int, int, int, float, str, str]] = {
    "ti": (192, 12, 3, 4.0, "tiny", "Ti"),
    "s": (384, 12, 6, 4.0, "small", "S"),
    "m": (512, 12, 8, 4.0, "medium", "M"),
    "b": (768, 12, 12, 4.0, "base", "B"),
    "l": (1024, 24, 16, 4.0, "large", "L"),
    "h": (1280, 32, 16, 4.0, "huge", "H"),
    "g": (1408, 40, 16, 48 / 11, "giant", "g"),
    "bigg": (1664, 48, 16, 64 / 13, "gigantic", "G"),
}
IN21K_CLASSES = 21_843
IN_TIMM = {
    ("ti", 16),
    ("l", 14),
    ("h", 14),
    ("g", 14),
    ("bigg", 14),
    *((size, patch) for size in "sb" for patch in (8, 16, 32)),
}
IN_TIMM |= {("l", 16), ("l", 32)}


def _size(letter: str, **rest: Any) -> dict[str, Any]:
    width, depth, heads, ratio, _, _ = SIZES[letter]
    return {"embed_dim": width, "depth": depth, "num_heads": heads, "mlp_ratio": ratio, **rest}


def _hybrid_backbone(*layers: int) -> ResNetConfig:
    return ResNetConfig(layers=layers, preact=False, padding="same", num_classes=0)


def _vits() -> list[ZooModel]:
    rows = []
    for letter in ("ti", "s", "b", "l", "h", "g", "bigg"):
        *_, word, title = SIZES[letter]
        for patch in (8, 14, 16, 32) if letter != "bigg" else (14,):
            name, title_ = f"vit_{letter}{patch}", f"ViT-{title}/{patch}"
            config = ViTConfig(**_size(letter, patch_size=patch))
            timm = f"vit_{word}_patch{patch}"
            in_timm = (letter, patch) in IN_TIMM
            rows.append(ZooModel(name, title_, config, f"{timm}_224" if in_timm else None, alias=f"{timm}_224"))
            if patch != 14:
                large, also = config.replace(img_size=384), in_timm and patch != 8
                rows.append(ZooModel(f"{name}_384", f"{title_}-384", large, f"{timm}_384" if also else None))
            if patch != 8:
                in21k = config.replace(num_classes=IN21K_CLASSES, pre_logits=config.embed_dim)
                rows.append(ZooModel(f"{name}_in21k", f"{title_}-in21k", in21k, None, alias=f"{timm}_224_in21k"))
    for letter, patch in (("s", 16), ("b", 16), ("b", 32)):
        *_, word, title = SIZES[letter]
        gap = ViTConfig(**_size(letter, patch_size=patch, class_token=False, pool="mean", final_norm="tokens"))
        rows.append(ZooModel(f"vit_{letter}{patch}_gap", f"ViT-{title}/{patch}-GAP", gap, None))
    return rows


def _deits() -> list[ZooModel]:
    rows = []
    for letter in ("ti", "s", "b"):
        *_, word, title = SIZES[letter]
        for distilled in (False, True):
            for size in (224, 384) if letter == "b" else (224,):
                suffix = ("_distilled" if distilled else "") + ("_384" if size == 384 else "")
                timm = f"deit_{word}{'_distilled' if distilled else ''}_patch16_{size}"
                config = ViTConfig(**_size(letter, img_size=size, distilled=distilled, init="trunc_normal"))
                title_ = f"DeiT-{title}/16{suffix.replace('_', '-')}"
                rows.append(ZooModel(f"deit_{letter}16{suffix}", title_, config, timm, True))
    for letter, patch in (("s", 16), ("m", 16), ("b", 16), ("l", 16), ("h", 14)):
        *_, word, title = SIZES[letter]
        for size in (224, 384) if letter in "sbl" else (224,):
            suffix = "_384" if size == 384 else ""
            args = _size(letter, patch_size=patch, img_size=size, layer_scale=1e-6, prefix_positions="none")
            config = ViTConfig(**args, init="trunc_normal")
            title_ = f"DeiT-III-{title}/{patch}{suffix.replace('_', '-')}"
            rows.append(
                ZooModel(f"deit3_{letter}{patch}{suffix}", title_, config, f"deit3_{word}_patch{patch}_{size}", True)
            )
    return rows


def _hybrids() -> list[ZooModel]:
    rows = []
    for name, title, letter, layers, patch, timm in (
        ("r_vit_ti16", "R+ViT-Ti/16", "ti", (), 8, "vit_tiny_r_s16_p8"),
        ("r26_vit_s32", "R26+ViT-S/32", "s", (2, 2, 2, 2), 1, "vit_small_r26_s32"),
        ("r26_vit_b32", "R26+ViT-B/32", "b", (2, 2, 2, 2), 1, "vit_base_r26_s32"),
        ("r50_vit_b16", "R50+ViT-B/16", "b", (3, 4, 9), 1, "vit_base_r50_s16"),
        ("r50_vit_l32", "R50+ViT-L/32", "l", (3, 4, 6, 3), 1, "vit_large_r50_s32"),
    ):
        config = ViTConfig(**_size(letter, patch_size=patch, backbone=_hybrid_backbone(*layers)))
        rows.append(ZooModel(name, title, config, f"{timm}_224"))
        large = f"{timm}_384" if name != "r26_vit_b32" else None
        rows.append(ZooModel(f"{name}_384", f"{title}-384", config.replace(img_size=384), large))
        in21k = config.replace(num_classes=IN21K_CLASSES, pre_logits=config.embed_dim)
        rows.append(ZooModel(f"{name}_in21k", f"{title}-in21k", in21k, None, alias=f"{timm}_224_in21k"))
    return rows


def _resnets() -> list[ZooModel]:
    rows = []
    for name, layers in (("r26", (2, 2, 2, 2)), ("r50", (3, 4, 6, 3)), ("r101", (3, 4, 23, 3))):
        config = ResNetConfig(layers=layers)
        timm = None if name == "r26" else f"resnetv2_{name[1:]}x1_bit"
        rows.append(ZooModel(name, f"{name.upper()} (BiT)", config, timm))
        small = config.replace(small_stem=True, img_size=32, num_classes=10)
        rows.append(ZooModel(f"{name}_small", f"{name.upper()} (BiT, 32 px)", small, None))
    return rows


def _dinov2s() -> list[ZooModel]:
    rows = []
    for letter in ("s", "b", "l", "g"):
        for registers in (0, 4):
            args = _size(letter, patch_size=14, img_size=518, layer_scale=1e-5, num_classes=0, registers=registers)
            if letter == "g":
                args |= {"embed_dim": 1536, "num_heads": 24, "mlp": "swiglu", "mlp_ratio": 8192 / 1536}
            if registers:
                args |= {"prefix_positions": "none"}
            *_, word, title = SIZES[letter]
            timm = f"vit_{word}_patch14_{'reg4_' if registers else ''}dinov2"
            suffix = "_reg" if registers else ""
            config = ViTConfig(**args, init="trunc_normal")
            rows.append(
                ZooModel(
                    f"dinov2_{letter}14{suffix}", f"DINOv2-{title}/14{suffix.replace('_', '-')}", config, timm, True
                )
            )
    return rows


def _for_small_pictures() -> list[ZooModel]:
    small = ViTConfig(img_size=(32, 32), patch_size=(4, 4), embed_dim=192, depth=6, num_heads=3, num_classes=10)
    pooled: dict[str, Any] = {"class_token": False, "pool": "mean"}
    config = small.replace(**pooled, norm="rms", qk_norm=True, rope=True, init="local")
    return [ZooModel("cifar10_small", "ViT for CIFAR-10", config, None)]


@cache
def zoo() -> dict[str, ZooModel]:
    """All named models, by name."""
    rows = (*_vits(), *_deits(), *_hybrids(), *_resnets(), *_dinov2s(), *_for_small_pictures())
    return {row.name: row for row in rows}


def _squeeze(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "", name)


@cache
def _spellings() -> dict[str, ZooModel]:
    table: dict[str, ZooModel] = {}
    for row in zoo().values():
        timm = row.timm or row.alias or row.name
        for spelling in (row.name, row.title, row.title.removeprefix("ViT-"), timm, re.sub(r"_(224|384)$", "", timm)):
            table.setdefault(_squeeze(spelling), row)
    for key, row in list(table.items()):
        table.setdefault(key.lower(), row)  # case counts only between g/14 and G/14
    return table


def _look_up(name: str) -> ZooModel | None:
    return _spellings().get(_squeeze(name)) or _spellings().get(_squeeze(name).lower())


def find(name: str) -> ZooModel:
    """The row with this name, in any of its spellings; a size after it (`vit_b16_512`) changes the picture size."""
    bare = re.sub(r"\.\w+$", "", name)  # without timm's tag: `vit_base_patch16_224.augreg_in21k`
    row = _look_up(bare)
    if row is not None:
        return row
    sized = re.fullmatch(r"(.+?)[_-](\d{2,4})", bare)
    if sized and (row := _look_up(sized[1])) is not None:
        size = int(sized[2])
        return ZooModel(
            f"{row.name}_{size}", f"{row.title}-{size}", row.config.replace(img_size=size), None, row.imagenet_pixels
        )
    candidates = [*zoo(), *(row.timm for row in zoo().values() if row.timm), *(row.title for row in zoo().values())]
    near = difflib.get_close_matches(bare, candidates, 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise VitrailError(f"there is no model named {name!r}: {hint}`vitrail models` lists them all")


def configure(name: str | Config, **changes: Any) -> Config:
    """The configuration of a named model, with some fields changed."""
    config = find(name).config if isinstance(name, str) else name
    if isinstance(config, ViTConfig) and config.backbone and "in_chans" in changes and "backbone" not in changes:
        changes["backbone"] = config.backbone.replace(in_chans=changes["in_chans"])
    if "img_size" in changes and isinstance(config, ResNetConfig) and "patch_size" in changes:
        raise ConfigError("a ResNet has no patches: leave out patch_size")
    new: Config = config.replace(**changes)
    return new


def create(name: str | Config, **changes: Any) -> ViT | ResNet:
    """A model with fresh weights: `create("vit_b16", num_classes=10, img_size=384)`. A plain `nn.Module`."""
    config = configure(name, **changes)
    if isinstance(config, ResNetConfig):
        from vitrail.model.resnet import ResNet

        return ResNet(config)
    from vitrail.model.vit import ViT

    return ViT(config)


def models(pattern: str = "*") -> list[ZooModel]:
    """The zoo's rows whose names match a pattern, such as `deit*`."""
    return [row for row in zoo().values() if fnmatch.fnmatchcase(row.name, pattern)]
