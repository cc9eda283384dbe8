"""What the commands share: flags, and how figures are printed."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", negative="")]


def print_assumed(classifier: Any) -> None:
    """What the checkpoint did not say."""
    if classifier.assumed:
        words = "; ".join(f"{key} = {value}" for key, value in classifier.assumed.items())
        print(f"assumed, since the file does not say: {words}", file=sys.stderr)


def print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, ensure_ascii=False))


def print_table(rows: list[list[str]], right: set[int]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        print("  ".join(cells).rstrip())
