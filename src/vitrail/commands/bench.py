"""`vitrail bench`: speed of models, beside the peers that are installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.commands.printing import Json, print_json, print_table

Many = Parameter(negative_iterable="", consume_multiple=True)


def bench(
    models: Annotated[list[str] | None, Parameter(negative_iterable="")] = None,
    /,
    *,
    batch_sizes: Annotated[list[int] | None, Many] = None,
    precisions: Annotated[list[Literal["fp32", "bf16", "fp16", "fast", "fp8"]] | None, Many] = None,
    modes: Annotated[list[Literal["infer", "train"]] | None, Many] = None,
    ways: Annotated[list[Literal["eager", "compiled", "graphs", "tuned"]] | None, Many] = None,
    peers: Annotated[list[str] | None, Many] = None,
    peer_ways: Annotated[list[Literal["eager", "compiled", "graphs", "tuned"]] | None, Many] = None,
    img_size: int | None = None,
    device: str | None = None,
    rounds: int = 5,
    seconds: float = 1.0,
    out: Path = Path("bench"),
    as_json: Json = False,
) -> int:
    """Measure inference and training of models, beside the peers that are installed, in one run.

    Example: vitrail bench vit_s16 vit_b16 --batch-sizes 1 256 --device cuda

    Example: vitrail bench vit_ti16 --batch-sizes 8 --modes infer --peers timm torchvision

    Each contender is a process of its own; they take turns, with the same weights and pictures, and their outputs are
    compared. docs/bench.md explains the table.

    Parameters
    ----------
    models
        named models, runs, model folders, checkpoints, hf:owner/name; by default vit_ti16
    batch_sizes
        by default 1 and 128 on a GPU, 1 and 8 on a CPU
    precisions
        by default bf16 on a GPU, fp32 on a CPU; ours alone, beside peers in bf16: fast (residuals of training in it
        too) and fp8 (linear maps in eight bits, of inference and of such training)
    modes
        infer, train or both
    ways
        eager, compiled, graphs (compiled, with CUDA graphs; in training one of the whole step), tuned (and kernels
        tried against each other); by default eager and compiled on a GPU, eager on a CPU
    peers
        timm, torchvision, transformers, vit-pytorch, or none; by default those that are installed
    peer_ways
        in which peers run, where these are others; by default as ways
    device
        cpu, cuda, cuda:1; by default the fastest there is
    rounds
        of turns; figures are medians and quartiles over them
    seconds
        of a turn
    out
        the folder of bench.json and bench.png
    as_json
        print one JSON object
    """
    from vitrail.speed.bench import bench as begin

    result = begin(
        *(models or ()),
        batch_sizes=batch_sizes,
        precisions=precisions,
        modes=modes or ("infer", "train"),
        ways=ways,
        peers=peers,
        peer_ways=peer_ways,
        img_size=img_size,
        device=device,
        rounds=rounds,
        seconds=seconds,
        out=out,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    is_measured = any(row.pictures_per_s for one in result.measurements for row in one.rows)
    if as_json:
        print_json(result.to_json())
        return 0 if is_measured else 1
    print(f"{result.about['hardware']}, {result.about['threads']} threads, {result.about['date']}")
    print(", ".join(f"{name} {version}" for name, version in result.about["versions"].items()) + "\n")
    print_table(result.table(), right={1, 2, 3, 4, 5})
    if is_measured:
        print(f"\nthe plot is {out / 'bench.png'}; the figures are in bench.json beside it")
    else:
        print(f"\nnothing could be measured; why is in {out / 'bench.json'} too")
    return 0 if is_measured else 1
