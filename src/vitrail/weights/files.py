"""Reading checkpoint files without trusting them: safetensors, `.pth` with nothing but tensors in it, `.npz`."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrail.errors import WeightsError

State = dict[str, Tensor]

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# what a folder may call its weights, the first one found is taken
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "model.pth")
OTHER_SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin")
# what training scripts wrap a state dict into, smoothed weights first
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model", "module")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise WeightsError(f"{path} cannot be read as JSON: {_one_line(error)}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} does not hold a JSON object")
    return content


def find_weights(folder: Path) -> Path:
    """The file with the weights in a model folder."""
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    others = [path for path in sorted(folder.iterdir()) if path.suffix in OTHER_SUFFIXES and path.is_file()]
    if len(others) == 1:
        return others[0]
    raise WeightsError(f"{folder} holds no weights: expected one of {', '.join(WEIGHT_FILES)}")


def read_state(path: Path) -> State:
    """The tensors of a checkpoint file, by name; wrappers and `module.` prefixes are taken off."""
    if not path.is_file():
        raise WeightsError(f"there is no file {path}: check the path")
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    with path.open("rb") as file:
        head = file.read(16)
    if not head:
        raise WeightsError(f"{path} is empty: fetch it again")
    if head[5:9] == b"\0\0\0{":  # eight bytes of length, of which the last are zero, then JSON
        return unwrap(read_safetensors(path), path)
    if head[:2] == b"PK" and any(name.endswith(".npy") for name in _members(path)):
        return _read_npz(path)
    if head[:1] == b"\x80" or head[:2] == b"PK":
        return unwrap(_read_pickle(path), path)
    if path.suffix in (".onnx", ".xml"):
        raise WeightsError(
            f"{path} is an exported file: vitrail predict MODEL … --engine {path} computes with it, and vitrail serve"
            f" {path} serves it; here give the model that it was made of"
        )
    raise WeightsError(
        f"{path} is no checkpoint that is known here: it is neither safetensors nor a PyTorch file nor .npz"
        f" (it starts with {head[:8]!r})"
    )


def read_safetensors(path: Path) -> State:
    """The tensors of a safetensors file, each in memory of its own. safetensors' loader hands out views into the mapped
    file, which start at any address: kernels then take other paths, and the same weights give other last bits."""
    try:
        with safe_open(path, framework="pt"):  # the library checks the header: shapes, sizes, offsets
            pass
        with path.open("rb", buffering=0) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
            entries.sort(key=lambda item: item[1]["data_offsets"][0])
            return {name: _read_tensor(file, 8 + length, entry) for name, entry in entries}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        missing = _missing_bytes(path)
        if missing:
            raise WeightsError(
                f"{path} is truncated: {missing:,} bytes are missing at its end; fetch it again"
            ) from error
        raise WeightsError(f"{path} is not a readable safetensors file: {_one_line(error)}") from error


def _read_tensor(file: io.FileIO, start: int, entry: Mapping[str, Any]) -> Tensor:
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"numbers of type {entry['dtype']} are not known here")
    tensor = torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
    begin, end = entry["data_offsets"]
    file.seek(start + begin)
    if tensor.numel():
        space, done = memoryview(tensor.view(-1).view(torch.uint8).numpy().data), 0
        while done < end - begin:  # the system may read less than it was asked for
            count = file.readinto(space[done:])
            if not count:
                raise OSError("the file ends too early")
            done += count
    return tensor


def _missing_bytes(path: Path) -> int:
    """How many bytes a safetensors file lacks, by its own header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if length > 100_000_000:
            return 0
        header = file.read(length)
    if len(header) < length:
        return int(length) - len(header)
    try:
        ends = [entry["data_offsets"][1] for name, entry in json.loads(header).items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return 0
    return max(0, 8 + int(length) + max(ends, default=0) - size)


def _members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise WeightsError(f"{path} is truncated or damaged ({_one_line(error)}); fetch it again") from error


def _read_npz(path: Path) -> State:
    """NumPy's archives of arrays, one array at a time; numbers with a fraction become float32."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: _from_numpy(name, archive[name]) for name in archive.files}
    except Exception as error:  # zipfile, zlib and NumPy raise many kinds on damaged files
        if "Object arrays cannot be loaded" in str(error):
            raise WeightsError(
                f"{path} is refused: it holds pickled objects, which could run code when read;"
                " ask its author for plain arrays"
            ) from error
        raise WeightsError(f"{path} is no readable .npz file ({_one_line(error)}); fetch it again") from error


def _from_numpy(name: str, array: Any) -> Tensor:
    if not isinstance(array, np.ndarray):  # np.load hands out the bytes of whatever is no array
        raise ValueError(f"{name} is not an array")
    if array.dtype == np.dtype("V2"):  # bfloat16, whose type NumPy cannot write
        values = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        values = torch.from_numpy(array)
    dtype = torch.float32 if values.is_floating_point() else values.dtype
    return torch.empty(values.shape, dtype=dtype).copy_(values)


def _read_pickle(path: Path) -> Any:
    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"
    if is_zip and not any(name.endswith("data.pkl") for name in _members(path)):
        raise WeightsError(f"{path} is a zip archive, but no PyTorch checkpoint")
    try:
        # nothing but tensors and plain containers is built; any other object is refused before it is made
        with path.open("rb") as file:
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path} is refused: it holds objects other than tensors, which could run code when read;"
            " ask its author for a safetensors file, or save its state_dict alone"
        ) from error
    except Exception as error:  # torch raises many kinds on damaged files
        raise WeightsError(f"{path} is no readable PyTorch file ({_one_line(error)}); fetch it again") from error


def _read_shards(index: Path) -> State:
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict):
        raise WeightsError(f"{index} has no weight_map")
    state: State = {}
    for name in sorted(set(shards.values())):
        if Path(name).name != name:
            raise WeightsError(f"{index} names a file outside of its folder: {name!r}")
        state |= read_safetensors(index.parent / name)
    return state


def unwrap(content: Any, path: Path) -> State:
    """The state dict inside a checkpoint, without wrappers and `module.` prefixes."""
    for _ in range(3):
        if not isinstance(content, Mapping):
            raise WeightsError(f"{path} holds a {type(content).__name__}, not a state dict")
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    state = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    state.pop("n_averaged", None)  # torch's averaged models count their steps among the weights
    if not state:
        raise WeightsError(f"{path} holds no tensors")
    for prefix in ("module.", "_orig_mod."):
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
