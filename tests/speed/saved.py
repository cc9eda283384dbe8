"""What autograd really saves for a backward pass: the oracle of the planner's closed forms."""

from collections.abc import Iterator
from unittest.mock import patch

import torch
from torch.nn import functional as F

import vitrail
from tests.model.interpreting import interpreted
from vitrail.model import attention


def saved_bytes(
    config,
    batch: int,
    precision: str,
    *,
    checkpointing: bool = False,
    compiled: bool = False,
    half: torch.dtype = torch.bfloat16,
) -> int:
    """Of all storages that a forward pass and its loss keep, weights and pictures left out.

    Computed on a CPU, it stands for a GPU: attention is fused, where CPUs that train in bfloat16 would keep weights.
    """
    torch.manual_seed(0)
    model = vitrail.create(config).train()
    model.gradient_checkpointing = checkpointing
    if precision == "bf16_residual":
        model.residual_dtype = half
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    pictures, labels = torch.randn(batch, 3, *config.img_size), torch.arange(batch) % config.num_classes
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    run = torch.compile(model, backend="aot_eager_decomp_partition", dynamic=False) if compiled else model
    fused = patch.object(attention, "PLAIN", 0)
    with fused, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", half, enabled=precision != "fp32"):
            logits = run(pictures)
        F.cross_entropy(logits.float(), labels)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def saved_by_kernels(cases: list[tuple[dict, int, str]]) -> list[float]:
    """The same where our kernels compute, for configurations, batches and precisions: in Triton's interpreter."""
    return interpreted(f"from tests.speed.saved import with_kernels\nprint(*with_kernels({cases!r}))")


def with_kernels(cases: list[tuple[dict, int, str]]) -> Iterator[int]:
    """As on a GPU, but in float16, since the interpreter computes no products of bfloat16; however small."""
    from vitrail.model import devices, kernel_sizes

    attention.half_on_gpu = devices.half_on_gpu = lambda x: torch.float16
    attention.is_hopper = lambda: True
    kernel_sizes.LEAST_WORK = 0
    for options, batch, precision in cases:
        yield saved_bytes(vitrail.ViTConfig(**options), batch, precision, half=torch.float16)
