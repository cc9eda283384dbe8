"""Which device computes, and whether by kernels of our own."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import TypeVar

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.kernel_sizes import is_large

HAS_TRITON = find_spec("triton") is not None  # it comes with torch where that is made for GPUs
NARROW = 128  # channels below which a CPU computes in float32

Question = TypeVar("Question", bound=Callable[..., bool])


def constant(question: Question) -> Question:
    """Marks what a compiler need not look into, as `torch.compiler.assume_constant_result` does; but that imports the
    compiler, for which every command would wait a second."""
    question._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return question


def kernel_type(x: Tensor) -> torch.dtype | None:
    """The half-precision type in which kernels of our own compute a layer of tokens in training, if it is large enough
    for them."""
    return half_on_gpu(x) if is_large(x.numel(), x.shape[-1]) else None


def half_on_gpu(x: Tensor) -> torch.dtype | None:
    """The half-precision type in which kernels of our own can compute with a tensor, by autocast or as it is."""
    if not x.is_cuda or not HAS_TRITON:
        return None
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return kind if kind in (torch.bfloat16, torch.float16) else None


def made_current(device: torch.device) -> AbstractContextManager[object]:
    """Inside, kernels of our own and recordings begin on this GPU, wherever their tensors lie."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def is_elsewhere(x: Tensor) -> bool:
    """Whether a tensor lies on another GPU than the current one."""
    return x.is_cuda and torch.cuda.device_count() > 1 and x.get_device() != torch.cuda.current_device()


def free_unused(device: torch.device) -> None:
    """Gives back the memory of what nobody refers to any more, in circles too, as trainings do to their parts."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@cache
def recording_stream(device: int) -> torch.cuda.Stream:
    """The stream on which work is recorded on this GPU. torch's own is of the first GPU that recorded anything."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@constant
def is_hopper() -> bool:
    """Whether the GPU has what kernels for some hundred tokens need: tiles that it fetches by itself."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


@constant
def multiplies_eight_bits() -> bool:
    """Whether the GPU has products of eight-bit floating point: Ada, Hopper and later."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


@constant
def cpu_multiplies_bf16() -> bool:
    """Whether the processor has instructions for products of bfloat16 (AVX-512's)."""
    return bool(torch.cpu.get_capabilities().get("avx512_bf16", False))


def cpu_gains_by_bf16(channels: int) -> bool:
    """Whether the processor computes faster in bfloat16 with so many channels. With few, to convert the numbers takes
    longer than they save."""
    return channels >= NARROW and cpu_multiplies_bf16()


def choose_device(name: str | None, local_rank: int = 0) -> torch.device:
    """The device that was asked for, or the fastest there is."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name, local_rank) if name == "cuda" else torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        if "device string" in reason:
            reason = "choose cpu, cuda, cuda:1 or mps"
        raise VitrailError(f"the device {name!r} cannot be used here: {reason}") from error
    return device
