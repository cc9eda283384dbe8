"""What autograd really saves for a backward pass: the oracle of the planner's closed forms."""

import torch
from torch.nn import functional as F

import vitrail


def saved_bytes(config, batch: int, precision: str, *, checkpointing: bool = False, compiled: bool = False) -> int:
    """Of all storages that a forward pass and its loss keep, weights and pictures left out."""
    torch.manual_seed(0)
    model = vitrail.create(config).train()
    model.gradient_checkpointing = checkpointing
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    pictures, labels = torch.randn(batch, 3, *config.img_size), torch.arange(batch) % config.num_classes
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    run = torch.compile(model, backend="aot_eager_decomp_partition", dynamic=False) if compiled else model
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = run(pictures)
        F.cross_entropy(logits.float(), labels)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
