"""`vitrail study`: a recipe that is varied, one table, one plot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vitrail.commands.data_flags import NO_FLAGS, Data
from vitrail.commands.printing import Json, print_json, print_table

if TYPE_CHECKING:
    from vitrail.studies.results import Result

Flag = Annotated[bool, Parameter(negative="")]


def study(
    file: Path,
    /,
    *,
    out: Path | None = None,
    data: str | None = None,
    device: str | None = None,
    jobs: int = 1,
    again: Flag = False,
    opening: Data = NO_FLAGS,
    as_json: Json = False,
) -> int:
    """Vary a recipe: train every row of a study file with every seed; one table, one plot.

    Example: vitrail study benchmarks/cifar10/studies/positions.toml --download

    The same command goes on where it was stopped. docs/studies.md explains the file.

    Parameters
    ----------
    file
        a TOML file: a recipe, the data, seeds, and what varies
    out
        the folder of the runs and of study.csv, study.json, study.png; by default studies/FILE
    data
        train on this instead of what the file says
    device
        cpu, cuda, cuda:1, mps; by default the fastest there is
    jobs
        runs that are trained at a time: small models leave most of a GPU idle; on a CPU each then has fewer threads,
        which changes the last bits of sums and so, over a training, its scores a little
    again
        train anew the runs whose settings have changed since
    as_json
        print one JSON object
    """
    from vitrail.studies.study import study as begin
    from vitrail.training.stopping import StoppedError

    try:
        result = begin(
            file, out=out, data=data, device=device, jobs=jobs, again=again, data_options=opening.given(), say=_say
        )
    except StoppedError as stopped:
        words = str(stopped).partition(": go on")[0]
        print(f"vitrail: {words}: the same command goes on", file=sys.stderr)
        return 128 + (stopped.signal or 0)
    if as_json:
        print_json({"folder": str(result.folder), **result.to_json()})
    else:
        _print(result)
        print(f"the plot is {result.folder / 'study.png'}; the figures are in study.csv and study.json beside it")
    for reason in dict.fromkeys(result.failed.values()):
        folder, *others = (one for one, why in result.failed.items() if why == reason)
        more = f" and {len(others)} more" if others else ""
        print(f"vitrail: {folder}{more} failed: {reason}", file=sys.stderr)
    return int(bool(result.failed))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(result: Result) -> None:
    """With lines on a terminal, plain elsewhere."""
    head, *rows = result.table()
    texts = {0} | ({1} if result.plan.choose else set())
    right = set(range(len(head))) - texts
    if not sys.stdout.isatty():
        print_table([head, *rows], right)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=result.plan.title, title_justify="left", box=box.SIMPLE_HEAD, header_style="bold")
    for place, name in enumerate(head):
        table.add_column(name, justify="right" if place in right else "left", no_wrap=place > 0)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)
