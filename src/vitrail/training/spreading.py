"""A model that several processes train: a copy in each (DDP), or a part of it in each (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from vitrail.training.parallel import World


def replicate(model: nn.Module, world: World) -> nn.Module:
    """The same weights in every process, gradients averaged (DDP). What is frozen must be so before."""
    if world.size == 1:
        return model
    devices = [world.device] if world.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def shard(model: nn.Module, world: World) -> None:
    """Each process holds a part of the weights, gradients and state (FSDP2): block by block, then the rest.

    It is for models that are large for their GPUs, so activations inside blocks are computed again, not kept. The
    parameters are other objects afterwards; their names stay.
    """
    model.gradient_checkpointing = True  # type: ignore[assignment]
    if world.size == 1:
        return
    for block in getattr(model, "blocks", []):
        fully_shard(block)
    fully_shard(model)


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def whole_state(model: nn.Module, world: World) -> dict[str, Tensor]:
    """All weights on the CPU of rank 0, put together where they are spread; nothing elsewhere."""
    state = {}
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor  # one at a time
        if world.is_first:
            state[name] = whole.detach().cpu()
    return state


def load_whole(model: nn.Module, state: Mapping[str, Tensor], world: World) -> None:
    """Gives every process the weights, or its part of them, that rank 0 has."""
    if world.size == 1:
        model.load_state_dict(state)
        return
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, dict(state), options=options)


@contextmanager
def in_step(model: nn.Module, world: World, batches: int, like: Tensor) -> Iterator[None]:
    """Around an evaluation. Processes that share weights must all go through the model equally often: those with
    fewer `batches` go on with pictures `like` these until all are done. Afterwards none keeps gathered weights, which
    are no longer the model's once it changes."""
    if not isinstance(model, FSDPModule):
        yield
        return
    most = max(world.gathered(batches))
    yield
    for _ in range(most - batches):
        model(like)
    model.reshard()
