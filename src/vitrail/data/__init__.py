"""From a folder, a table or a bucket of shards to batches: sources, splits, augmentation, loading."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.data.arrays import from_arrays, from_npz
    from vitrail.data.folder import from_folder
    from vitrail.data.hub import from_hub
    from vitrail.data.named import from_named
    from vitrail.data.opening import open_source
    from vitrail.data.samples import Names, Samples
    from vitrail.data.source import Source, Subset
    from vitrail.data.splits import Splits, make_splits
    from vitrail.data.table import from_table

_HOMES = {
    "Names": "samples",
    "Samples": "samples",
    "Source": "source",
    "Splits": "splits",
    "Subset": "source",
    "from_arrays": "arrays",
    "from_folder": "folder",
    "from_hub": "hub",
    "from_named": "named",
    "from_npz": "arrays",
    "from_table": "table",
    "make_splits": "splits",
    "open_source": "opening",
}

__all__ = [
    "Names",
    "Samples",
    "Source",
    "Splits",
    "Subset",
    "from_arrays",
    "from_folder",
    "from_hub",
    "from_named",
    "from_npz",
    "from_table",
    "make_splits",
    "open_source",
]


def __getattr__(name: str) -> Any:
    # imported when first used: a worker that reads pictures does not wait for what it does not need
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"vitrail.data.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
