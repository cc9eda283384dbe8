"""State that processes hold in parts: saved by two of them, read by one and by three."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.training.processes import run_ranks
from vitrail.errors import VitrailError, WeightsError
from vitrail.training.checkpoints import Checkpoints, find_latest, load_checkpoint
from vitrail.training.manifest import Found
from vitrail.training.sharded import describe, read_whole
from vitrail.training.writer import Room

State = dict[str, torch.Tensor]


def train(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small model with rows that do not divide evenly, one of two rows and one of a single number; sharded."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 10), nn.GELU(), nn.Linear(10, 5), nn.LayerNorm(5), nn.Linear(5, 2))
    model.register_buffer("seen", torch.tensor(3))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(steps):
        optimiser.zero_grad()
        model(torch.full((4, 7), float(step)).cumsum(0).cumsum(1)).square().mean().backward()
        optimiser.step()
    return model, optimiser


def state_of(model: nn.Module, optimiser: torch.optim.Optimizer) -> State:
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    weights, moments = get_state_dict(model, optimiser, options=options)
    state = {f"model.{name}": value for name, value in weights.items()}
    return state | {f"optimiser.{name}": value for name, value in moments.items() if isinstance(value, torch.Tensor)}


def full(state: State) -> State:
    return {name: value.full_tensor() if isinstance(value, DTensor) else value.clone() for name, value in state.items()}


def equal(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def save_on_ranks(rank: int, world: int, folder: Path) -> None:
    model, optimiser = train(3)
    state = state_of(model, optimiser)
    whole = full(state)
    with Checkpoints(folder / "checkpoints", 1, rank=rank, world=world) as checkpoints:
        assert checkpoints.latest() is None
        for step in (2, 3):
            checkpoints.save_sharded(step, state, {"rank 0": rank == 0})
            with torch.no_grad():
                for value in state.values():
                    (value.to_local() if isinstance(value, DTensor) else value).mul_(2)  # training goes on
        checkpoints.wait()
        found = checkpoints.latest()
        assert found is not None
        assert found.step == 3
        assert found.plain == {"rank 0": True}
    writer = HuggingFaceStorageWriter(str(folder / "peer"), save_distributed=True)
    dcp.save(state, storage_writer=writer)
    if rank == 0:
        save_file({name: value * 2 for name, value in whole.items()}, folder / "saved.safetensors")
        save_file({name: value * 4 for name, value in whole.items()}, folder / "peer.safetensors")


def load_on_ranks(rank: int, world: int, folder: Path) -> None:
    model, optimiser = train(1)
    state = state_of(model, optimiser)
    with Checkpoints(folder / "checkpoints", 1, rank=rank, world=world) as checkpoints:
        found = checkpoints.latest()
        assert found is not None
        expected = load_file(folder / "saved.safetensors")
        assert not equal(full(state), expected)
        assert checkpoints.load_sharded(found, state) == {"rank 0": True}
        assert equal(full(state), expected)
        state["model.0.weight"] = state["model.0.weight"].to(torch.float64)
        state["model.another"] = state.pop("model.seen")
        words = (
            r"1 missing \(model.another\), 1 unexpected \(model.seen\), 1 of another shape or type \(model.0.weight\)"
        )
        with pytest.raises(WeightsError, match=words):
            checkpoints.load_sharded(found, state)


def test_what_two_processes_save_is_read_by_one_and_three(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, save_on_ranks, tmp_path)
    expected = load_file(tmp_path / "saved.safetensors")
    found = find_latest(tmp_path / "checkpoints")
    assert found is not None
    assert [path.name for path in found.files] == [f"state-0000{n}-of-00002.safetensors" for n in (1, 2)]
    tensors, plain = load_checkpoint(found)
    assert plain == {"rank 0": True}
    assert equal(tensors, expected)
    for world in (1, 3):
        run_ranks(world, tmp_path, load_on_ranks, tmp_path)
    # and what torch's own writer makes of such parts
    assert equal(read_whole(Peer(tmp_path / "peer", 0)), load_file(tmp_path / "peer.safetensors"))


class Peer(Found):
    """A folder that was written by torch."""

    files = property(lambda self: tuple(sorted(self.folder.glob("*.safetensors"))))  # type: ignore[assignment]


def fail_on_one_rank(rank: int, world: int, folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    spread = distribute_tensor(torch.arange(5.0), mesh, [Shard(0)])
    copied = distribute_tensor(torch.arange(5.0) * 2, mesh, [Replicate()])
    with Checkpoints(folder, rank=rank, world=world) as checkpoints:
        checkpoints.save_sharded(1, {"spread": spread, "copied": copied}, {})
        checkpoints.wait()
        broken = distribute_tensor(torch.tensor([1.0, 2, 3, 4, torch.nan]), mesh, [Shard(0)])  # on the second alone
        with pytest.raises(VitrailError, match="step 2 is not saved: spread holds"):
            checkpoints.save_sharded(2, {"spread": broken}, {})
        write = Room.write

        def refuse(self: Room, name: str, parts: Any) -> Any:
            if "00002-of" in name:
                raise OSError(28, "No space left on device")
            return write(self, name, parts)

        Room.write = refuse  # type: ignore[method-assign]
        checkpoints.save_sharded(2, {"spread": spread}, {})
        with pytest.raises(VitrailError, match=r"step 2 is not written: it needs \d{3} bytes.*No space left"):
            checkpoints.wait()
        dist.barrier()
        assert sorted(path.name for path in folder.iterdir()) == [".lock", "step-00000001"]
        found = checkpoints.latest()
        assert found is not None
        assert describe(found)["copied"] == (torch.float32, (5,))
        tensors, _ = checkpoints.load(found)
        assert equal(tensors, {"spread": torch.arange(5.0), "copied": torch.arange(5.0) * 2})


def test_if_one_process_fails_all_of_them_say_so_and_nothing_is_left(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, fail_on_one_rank, tmp_path / "checkpoints")
