"""Flags that say how DATA is opened, the same for all commands that read it."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter


@dataclass(frozen=True)
class DataFlags:
    data_dir: Annotated[Path | None, Parameter(help="where named sets are kept")] = None
    download: Annotated[bool | None, Parameter(negative="", help="get a named set if it is not there")] = None
    path_column: Annotated[str | None, Parameter(help="of a table: the column with paths")] = None
    label_column: Annotated[str | None, Parameter(help="of a table: the column with labels")] = None
    separator: Annotated[str | None, Parameter(help="of a table: what stands between several labels")] = None
    group_by: Annotated[
        str | None,
        Parameter(help="a pattern: pictures in whose names it finds the same are kept on one side of a split"),
    ] = None

    def given(self) -> dict[str, Any]:
        """Those that were given, for `open_source`; a path holds from everywhere, so that a run can write it down."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        known = {name: value for name, value in values.items() if value is not None}
        return {name: os.path.abspath(value) if isinstance(value, Path) else value for name, value in known.items()}


Data = Annotated[DataFlags, Parameter(name="*")]
NO_FLAGS = DataFlags()
