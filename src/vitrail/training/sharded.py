"""State that is spread over processes: each writes the parts that it holds, and any number of processes reads them.

The files are those of `torch.distributed.checkpoint`'s safetensors storage, whose reader reads them. They are not
written with its writer, which builds each file in memory and talks to the other processes while training does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load as read_distributed
from torch.distributed.tensor import DTensor, Replicate

from vitrail.errors import VitrailError, WeightsError
from vitrail.training.manifest import Found
from vitrail.training.snapshots import OFFSETS_KEY, SHARDING_KEY, Piece
from vitrail.weights.files import DTYPES, State, read_safetensors

T = TypeVar("T")
Gather = Callable[[Any], list[Any]]  # what each process gives, on all of them
Described = dict[str, tuple[torch.dtype, tuple[int, ...]]]


def own_pieces(tensors: Mapping[str, Tensor], rank: int) -> list[Piece]:
    """What this process writes: its part of each sharded tensor, and on the first process the tensors that all have."""
    pieces = []
    for name, values in tensors.items():
        if isinstance(values, DTensor):
            piece = _own_piece(name, values)
            pieces += [piece] if piece is not None else []
        elif rank == 0:
            pieces.append(Piece(name, values.detach(), (0,) * values.dim()))
    return pieces


def _own_piece(name: str, values: DTensor) -> Piece | None:
    where = values.device_mesh.get_coordinate()
    if where is None:  # this process has no part in it
        return None
    copies = [at for at, placed in zip(where, values.placements, strict=True) if isinstance(placed, Replicate)]
    chunk = values.__create_chunk_list__()[0]  # type: ignore[no-untyped-call]
    empty = not values.to_local().numel() and any(chunk.offsets)  # beyond the end: there are more processes than rows
    return None if any(copies) or empty else Piece(name, values.to_local().detach(), tuple(chunk.offsets))


def agree(work: Callable[[], T], gather: Gather) -> list[T]:
    """What `work` gives on each process. If it fails on one of them, all of them raise, and none waits in vain."""
    failure: Exception | None = None
    outcome: tuple[T | None, Exception | None] = (None, None)
    try:
        outcome = (work(), None)
    except (OSError, VitrailError) as error:
        outcome = (None, error)
    except Exception as error:
        failure, outcome = error, (None, VitrailError(f"another process failed: {type(error).__name__}: {error}"))
    outcomes = gather(outcome)
    for problem in [failure, *(problem for _, problem in outcomes)]:
        if problem is not None:
            raise problem
    return [value for value, _ in outcomes]


def gather_in(group: dist.ProcessGroup) -> Gather:
    """Gathers over a group of processes."""

    def gather(value: Any) -> list[Any]:
        values: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(values, value, group=group)
        return values

    return gather


def describe(found: Found) -> Described:
    """Type and full shape of each tensor, from the heads of the files."""
    described: Described = {}
    for path in found.files:
        with safe_open(path, framework="pt") as file:
            offsets = _offsets(file.metadata())
            for name in file.keys():  # noqa: SIM118 (it is no dictionary)
                part = file.get_slice(name)
                ends = _ends(part.get_shape(), offsets.get(name))
                before = described.get(name, (None, ends))[1]
                described[name] = (DTYPES[part.get_dtype()], tuple(map(max, ends, before)))
    return described


def read_whole(found: Found) -> State:
    """All tensors, put together from their parts."""
    state: State = {}
    written: dict[str, int] = {}
    shapes = describe(found)
    for path in found.files:
        with safe_open(path, framework="pt") as file:
            offsets = _offsets(file.metadata())
        for name, part in read_safetensors(path).items():
            dtype, shape = shapes[name]
            written[name] = written.get(name, 0) + part.numel()
            if tuple(part.shape) == shape:
                state[name] = part
                continue
            whole = state.setdefault(name, torch.empty(shape, dtype=dtype))
            begins = zip(offsets[name], part.shape, strict=True)
            whole[tuple(slice(begin, begin + length) for begin, length in begins)] = part
    for name, values in state.items():
        if written[name] != values.numel():
            raise WeightsError(f"{found.folder} holds {written[name]:,} of the {values.numel():,} numbers of {name}")
    return state


def load_into(found: Found, into: Mapping[str, Tensor], group: dist.ProcessGroup) -> None:
    """Reads what each process needs into its tensors, sharded or not; the names and shapes must be the same."""
    stored, wanted = describe(found), {name: (values.dtype, tuple(values.shape)) for name, values in into.items()}
    if stored != wanted:
        raise WeightsError(_difference(found, stored, wanted))
    reader = HuggingFaceStorageReader(str(found.folder))
    try:
        read_distributed(dict(into), storage_reader=reader, process_group=group)
    except CheckpointException as error:
        raise WeightsError(f"{found.folder} cannot be read: {' '.join(str(error).split())[:200]}") from error


def _difference(found: Found, stored: Described, wanted: Described) -> str:
    missing, unexpected = sorted(wanted.keys() - stored.keys()), sorted(stored.keys() - wanted.keys())
    other = [name for name in sorted(wanted.keys() & stored.keys()) if wanted[name] != stored[name]]
    parts = [
        f"{len(names)} {kind} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("of another shape or type", other))
        if names
    ]
    return f"{found.folder} is a checkpoint of another training: of its tensors {', '.join(parts)}"


def _offsets(metadata: Mapping[str, str] | None) -> dict[str, list[int]]:
    parts = json.loads((metadata or {}).get(SHARDING_KEY, "{}"))
    return {name: part[OFFSETS_KEY] for name, part in parts.items()}


def _ends(shape: list[int], offsets: list[int] | None) -> tuple[int, ...]:
    return tuple(length + begin for length, begin in zip(shape, offsets or [0] * len(shape), strict=True))
