"""Optimisers, SAM and the average on parameters that two processes share (FSDP2), beside one process that has all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from torch import multiprocessing as mp

NAMES = ["adamw", "sgd", "lion", "muon"]


def train(name: str, shard: bool) -> dict[str, Tensor]:
    """Three steps, the second of them left out: weights, state and average."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    from vitrail.model import ViT, ViTConfig
    from vitrail.training import sam
    from vitrail.training.ema import Ema
    from vitrail.training.groups import parameter_groups
    from vitrail.training.optimisers import make_optimiser, named_state, step
    from vitrail.training.recipe import Optimiser

    torch.manual_seed(0)
    model = ViT(
        ViTConfig(img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=5, zero_head=False)
    )
    if shard:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    recipe = Optimiser(name, lr=0.01, weight_decay=0.1, layer_decay=0.8)
    optimizer, ema = make_optimiser(parameter_groups(model, recipe), recipe), Ema(model, 0.9)
    pictures = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    parameters = list(model.parameters())

    def backward() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pictures), torch.arange(4)).backward()

    for number in range(3):
        backward()
        before = sam.ascend(parameters, 0.05)
        backward()
        sam.descend(parameters, before)
        ok = torch.tensor(number != 1)
        step(optimizer, ok)
        ema.update(model, ok, number)
    with ema.swapped(model):
        averaged = {f"swapped.{key}": tensor.detach().clone() for key, tensor in model.named_parameters()}
    found = {**dict(model.named_parameters()), **named_state(optimizer, model), **averaged}
    found |= {f"ema.{key}": tensor for key, tensor in ema.state().items()}
    return {
        key: (one.full_tensor() if isinstance(one, DTensor) else one).detach().clone() for key, one in found.items()
    }


def process(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for name in NAMES:
        whole, shared = train(name, shard=False), train(name, shard=True)
        assert whole.keys() == shared.keys()
        for key, tensor in whole.items():
            torch.testing.assert_close(
                shared[key], tensor, rtol=1e-5, atol=1e-6, msg=lambda words, key=key: f"{key}: {words}"
            )
        print(f"{name} is the same", flush=True)
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed")
def test_shared_parameters_learn_as_whole_ones_do(tmp_path: Path) -> None:
    command = [sys.executable, __file__, str(tmp_path / "store")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(done.stdout.count(f"{name} is the same") == 2 for name in NAMES)


if __name__ == "__main__":
    mp.spawn(process, args=(sys.argv[1],), nprocs=2)
