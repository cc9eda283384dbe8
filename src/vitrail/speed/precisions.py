"""The numbers that training computes in on a kind of device that need not be here."""

from __future__ import annotations

from typing import cast

from vitrail.errors import VitrailError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.speed.activations import PRECISIONS, Precision
from vitrail.speed.hardware import Device

CHOOSING = ("auto", "fast")
NARROW = 128  # that of `model.devices`, which brings torch along


def check_name(name: str) -> None:
    known = (*CHOOSING, *PRECISIONS)
    if name not in known:
        raise VitrailError(f"precision {name!r} is not known: choose from {', '.join(known)}")


def planned(name: str, device: Device, config: ViTConfig | ResNetConfig) -> Precision:
    """What is planned where these are asked for: `auto` and `fast` are what `training.precision` makes of them."""
    check_name(name)
    if name in CHOOSING:
        half: Precision = "bf16_residual" if name == "fast" and isinstance(config, ViTConfig) else "bf16"
        return half if _gains_by_bfloat16(device, config) else "fp32"
    if name == "fp8" and not device.eight_bits:
        raise VitrailError(f"{device.title} has no eight-bit products: use --precision fast, which is quicker there")
    if name == "fp16" and device.name == "cpu":
        raise VitrailError("precision fp16 needs a GPU: use bf16 or fp32 on the CPU")
    if name.startswith("bf16") and not device.bfloat16:
        return "fp16"
    return cast(Precision, name)


def _gains_by_bfloat16(device: Device, config: ViTConfig | ResNetConfig) -> bool:
    if device.name == "cpu" and isinstance(config, ViTConfig):
        return config.embed_dim >= NARROW
    return device.bfloat16


def replaced(name: str, got: Precision, device: Device) -> list[str]:
    """A line where numbers that were asked for by their name are not those that are planned."""
    if name in CHOOSING or name == got:
        return []
    return [f"planned in {got}, not {name}: {device.title} does not multiply bfloat16; train with --precision {got}"]
