"""The numbers training computes in: float32, bfloat16 (of residuals too, or not; with eight-bit products, or not), or
float16 with a scaled loss."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vitrail.errors import VitrailError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.devices import cpu_gains_by_bf16, cpu_multiplies_bf16, multiplies_eight_bits
from vitrail.model.fp8_training import use_eight_bits
from vitrail.model.halves import Halves
from vitrail.model.vit import ViT
from vitrail.training.skipping import local

_FIRST_SCALE, _GROW_AFTER = 2.0**16, 2000


def choose_precision(name: str, device: torch.device, config: ViTConfig | ResNetConfig) -> str:
    """What `auto` and `fast` are for a model on a device: half precision where that is faster."""
    if name not in ("auto", "fast"):
        return name
    half = "bf16_residual" if name == "fast" and isinstance(config, ViTConfig) else "bf16"
    if device.type == "cuda":
        return half if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    gains = cpu_gains_by_bf16(config.embed_dim) if isinstance(config, ViTConfig) else cpu_multiplies_bf16()
    return half if device.type == "cpu" and gains else "fp32"


class Precision:
    """Autocast, and for float16 a scale of the loss that finds itself: halved after an overflow, doubled after many
    steps without one. All of it stays on the device."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.device = device
        if name == "fp16" and device.type == "cpu":
            raise VitrailError("precision fp16 needs a GPU: use bf16 or fp32 on the CPU")
        self.name = name
        self.dtype = {"fp32": None, "fp16": torch.float16}.get(name, torch.bfloat16)
        self.scale = torch.tensor(_FIRST_SCALE if name == "fp16" else 1.0, device=device)
        self.calm = torch.zeros((), device=device)  # steps since the scale changed

    def prepare(self, model: nn.Module) -> None:
        """Says to the model what autocast does not: in which numbers its blocks hand tokens on, and multiply."""
        # of norms whose weights are wider than their inputs: they are taken apart, which is what is wanted here
        warnings.filterwarnings("ignore", "Mismatch dtype between input and weight")
        if self.name not in ("bf16_residual", "fp8"):
            return
        encoders = [module for module in model.modules() if isinstance(module, ViT)]
        if not encoders:
            raise VitrailError(f"precision {self.name} is for Vision Transformers: use bf16")
        for encoder in encoders:
            encoder.residual_dtype = self.dtype
            if self.name == "fp8":
                use_eight_bits(encoder.blocks)

    @property
    def remark(self) -> str | None:
        """What one should know of it on this device."""
        if self.name != "fp8" or (self.device.type == "cuda" and multiplies_eight_bits()):
            return None
        return "this device has no eight-bit products: numbers are rounded to eight bits, which is slower than bf16"

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.dtype is None else torch.autocast(self.device.type, self.dtype)

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.scale if self.name == "fp16" else loss

    def unscaled_norm(self, parameters: Sequence[Tensor], clip: float, halves: Halves | None = None) -> Tensor:
        """Undoes the scale, cuts the gradients off at the norm `clip` (0: not), and gives the norm they had.
        `halves` have the gradients of some of the parameters."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.name == "fp16":
            torch._foreach_div_(local(gradients), self.scale)
        more = [] if halves is None else halves.gradients()
        norms = list(torch._foreach_norm(more, dtype=torch.float32)) if more else []
        if gradients or not norms:
            norm = nn.utils.get_total_norm(gradients)
            norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)  # of all shards
        norm = torch.linalg.vector_norm(torch.stack(norms)) if len(norms) > 1 else norms[0]
        if clip > 0:
            factor = (clip / (norm + 1e-6)).clamp(max=1.0)
            if gradients:
                torch._foreach_mul_(local(gradients), factor)
            if halves is not None:
                halves.factor = factor
        return norm

    def update(self, ok: Tensor) -> None:
        if self.name != "fp16":
            return
        calm = torch.where(ok, self.calm + 1, 0.0)
        grown = torch.where(calm >= _GROW_AFTER, self.scale * 2, self.scale)
        self.calm.copy_(torch.where(calm >= _GROW_AFTER, 0.0, calm))
        self.scale.copy_(torch.where(ok, grown, (self.scale / 2).clamp(min=1.0)))

    def is_searching(self) -> bool:
        """Whether overflows are only the scale on its way down."""
        return self.name == "fp16" and float(self.scale) > 1

    def state(self) -> dict[str, Tensor]:
        return {"loop.scale": self.scale, "loop.calm": self.calm}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.scale.copy_(tensors["loop.scale"])
        self.calm.copy_(tensors["loop.calm"])
