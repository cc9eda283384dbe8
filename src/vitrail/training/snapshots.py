"""A state at one moment: copied to memory of its own, so that training goes on while it is written."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.weights.files import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# where parts of tensors say what they are parts of: the key and the form that torch.distributed.checkpoint reads
SHARDING_KEY, OFFSETS_KEY = "DCP_SHARDING_INFO", "saved_offsets"


@dataclass(frozen=True)
class Piece:
    """A tensor, or the part of one that this process holds."""

    name: str
    values: Tensor
    offsets: tuple[int, ...] | None = None  # where the part begins in the whole; None: it is the whole

    @property
    def nbytes(self) -> int:
        return self.values.numel() * self.values.element_size()


def whole_pieces(tensors: Mapping[str, Tensor]) -> list[Piece]:
    """Each tensor as one piece."""
    return [Piece(name, values.detach()) for name, values in tensors.items()]


def find_non_finite(pieces: Iterable[Piece]) -> str | None:
    """The name of a tensor that holds a NaN or an infinity. The device is waited for once.

    A sum is finite only if all of its terms are; where it is not, it may have overflown, and each number is looked at.
    """
    suspects: list[Piece] = []
    by_device: dict[torch.device, list[Piece]] = {}
    for piece in pieces:
        if piece.values.is_floating_point():
            by_device.setdefault(piece.values.device, []).append(piece)
    for there in by_device.values():
        sums = [piece.values.sum(dtype=_wide(piece.values.dtype)) for piece in there]
        finite = torch.stack([total.isfinite() for total in sums]).tolist()
        suspects += [piece for piece, good in zip(there, finite, strict=True) if not good]
    return next((piece.name for piece in suspects if not piece.values.isfinite().all()), None)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


class Snapshot:
    """Memory laid out as the data of a safetensors file. It is used again for each checkpoint; for states on a GPU it
    is page-locked, and the copies run there in the order of the training's own work, which does not wait for them."""

    def __init__(self) -> None:
        self.header = b""
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._length = 0
        self._locked = False
        self._events: list[torch.cuda.Event] = []

    @property
    def nbytes(self) -> int:
        """The length of the file."""
        return len(self.header) + self._length

    def take(self, pieces: Sequence[Piece]) -> None:
        """Copies the pieces; on return their memory may be overwritten by whatever is queued next."""
        # the widest numbers first, so that each tensor begins at a multiple of its own width
        ordered = sorted(pieces, key=lambda piece: (-piece.values.element_size(), piece.name))
        self.header = _header(ordered)
        self._length = sum(piece.nbytes for piece in ordered)
        devices = {piece.values.device for piece in ordered if piece.values.is_cuda}
        self._reserve(self._length, lock=bool(devices))
        begin = 0
        for piece in ordered:
            end = begin + piece.nbytes
            room = self._memory[begin:end].view(piece.values.dtype).view(piece.values.shape)
            room.copy_(piece.values, non_blocking=piece.values.is_cuda)
            begin = end
        self._events = [torch.cuda.current_stream(device).record_event() for device in devices]

    def data(self) -> memoryview:
        """The bytes that follow the header, once they have arrived."""
        for event in self._events:
            event.synchronize()
        return self._memory[: self._length].numpy().data

    def _reserve(self, length: int, *, lock: bool) -> None:
        if len(self._memory) < length or (lock and not self._locked):
            self._memory = torch.empty(0, dtype=torch.uint8)  # the old memory goes before the new one comes
            self._memory, self._locked = torch.empty(length, dtype=torch.uint8), lock
            if lock and length:
                _lock_pages(self._memory)


def _lock_pages(memory: Tensor) -> None:
    """Registers memory with the driver. (torch's own page-locked tensors are rounded up to a power of two.)"""
    address, driver = memory.data_ptr(), torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(driver.cudaHostRegister(address, memory.numel(), 1)):  # 1: for all GPUs
        raise VitrailError(
            f"{memory.numel():,} bytes of memory for checkpoints cannot be page-locked: free memory on this machine"
        )
    weakref.finalize(memory, driver.cudaHostUnregister, address).atexit = False


def _header(pieces: Sequence[Piece]) -> bytes:
    """The head of a safetensors file: its length, then names, types, shapes and places as JSON."""
    parts = {piece.name: {OFFSETS_KEY: list(piece.offsets)} for piece in pieces if piece.offsets is not None}
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"} | ({SHARDING_KEY: json.dumps(parts)} if parts else {})}
    begin = 0
    for piece in pieces:
        dtype = piece.values.dtype
        if dtype not in _NAMES:
            raise VitrailError(f"{piece.name} cannot be saved: numbers of type {dtype} are not known to checkpoints")
        place = [begin, begin + piece.nbytes]
        entries[piece.name] = {"dtype": _NAMES[dtype], "shape": list(piece.values.shape), "data_offsets": place}
        begin += piece.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begin at a multiple of the widest number
    return len(text).to_bytes(8, "little") + text
