"""`vitrail train`: from a folder of pictures to a run."""

from __future__ import annotations

import dataclasses
import os
import sys
import tomllib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token

from vitrail.commands.printing import Json, print_json
from vitrail.errors import VitrailError
from vitrail.training.recipe import METHODS, Recipe

_SHORT = ("subset",)  # settings of a table that are flags by themselves too


def _flags(kind: Any) -> Any:
    """The settings of a recipe as flags, each of which may be left out: `--epochs`, `--optimiser.lr`."""
    hints, made = typing.get_type_hints(kind), []
    for item in dataclasses.fields(kind):
        hint = hints[item.name]
        if item.name in METHODS:
            continue
        if dataclasses.is_dataclass(hint):
            table = _flags(hint)
            made.append((item.name, table, dataclasses.field(default_factory=table)))
        elif typing.get_origin(hint) is dict:  # what its values are is for TOML to say
            made.append((item.name, dict[str, str] | None, dataclasses.field(default=None)))
        elif typing.get_origin(hint) is not tuple or typing.get_args(hint)[-1] is not Ellipsis:  # lists of tables: TOML
            value = Annotated[int | None, Parameter(converter=_whole)] if hint in (int, int | None) else hint | None
            if item.name in _SHORT:  # a name with dashes is not put below the table's
                value = Annotated[value, Parameter(name=(item.name, f"--{item.name}"))]
            made.append((item.name, value, dataclasses.field(default=None)))
    flags = dataclasses.make_dataclass(f"{kind.__name__}Flags", made, frozen=True)
    flags.__module__ = __name__  # else cyclopts takes it for a built-in type and does not look inside
    return flags


def _whole(kind: Any, tokens: Sequence[Token]) -> int:
    """cyclopts would round: a batch of 1.5 pictures became one of 2."""
    return int(tokens[0].value)


Settings: Any = _flags(Recipe)


def _given(flags: Any, prefix: str = "") -> dict[str, Any]:
    """What was set, by the keys of the recipe."""
    found: dict[str, Any] = {}
    for item in dataclasses.fields(flags):
        value, key = getattr(flags, item.name), prefix + item.name
        if dataclasses.is_dataclass(value):
            found |= _given(value, f"{key}.")
        elif isinstance(value, dict):
            found |= {f"{key}.{name.replace('-', '_')}": _parsed(text) for name, text in value.items()}
        elif value is not None:
            found[key] = list(value) if isinstance(value, tuple) else value
    return found


def _parsed(text: str) -> Any:
    """As TOML reads it: `2`, `0.1`, `true`, `[1, 2]`; anything else is a word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def train(
    data: str | None = None,
    /,
    *,
    recipe: str | None = None,
    start: Annotated[str | None, Parameter(name="--from")] = None,
    grow_from: str | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    device: str | None = None,
    shard: Annotated[bool, Parameter(negative="")] = False,
    track: Annotated[list[Literal["tensorboard", "mlflow"]] | None, Parameter(negative_iterable="")] = None,
    data_dir: Path | None = None,
    download: Annotated[bool, Parameter(negative="")] = False,
    path_column: str | None = None,
    label_column: str | None = None,
    separator: str | None = None,
    group_by: str | None = None,
    as_json: Json = False,
    settings: Annotated[Settings, Parameter(name="*")] = Settings(),  # noqa: B008
) -> int:
    """Train a model, from scratch or from another one; with no DATA, on handwritten digits.

    Example: vitrail train photos/

    Example: vitrail train photos/ --from my-model/ --epochs 5 --optimiser.lr 1e-4

    Example: vitrail train photos/ --recipe small --architecture.depth 8 --grow-from runs/photos-1

    Example: vitrail train --resume runs/photos-1

    Parameters
    ----------
    data
        a folder of class folders, a table, a named set, tar shards; see docs/data.md
    recipe
        a named recipe or a TOML file; flags below change it. By default one that suits the data
    start
        the model to fine-tune: a run, a model folder, a checkpoint of any known family, hf:owner/name
    grow_from
        a trained model with fewer blocks than the recipe's and otherwise like it: the new one begins as its equal
    out
        the folder of the run; by default runs/<data>-<number>
    resume
        go on with this run where its last checkpoint left it
    device
        cpu, cuda, cuda:1, mps; by default the fastest there is
    shard
        under torchrun: each process holds a part of the model, and computes activations again (FSDP2)
    track
        also log to these (pip install 'vitrail[track]')
    data_dir
        where named sets are kept
    download
        get a named set if it is not there
    path_column
        of a table: the column with paths
    label_column
        of a table: the column with labels
    separator
        of a table: what stands between several labels
    group_by
        a pattern: pictures in whose names it finds the same are kept on one side of the split
    as_json
        print one JSON object
    """
    from vitrail.training.stopping import StoppedError

    changes = _given(settings)
    options = {
        "data_dir": data_dir,
        "download": download or None,
        "path_column": path_column,
        "label_column": label_column,
        "separator": separator,
        "group_by": group_by,
    }
    if resume is not None:
        asked: dict[str, Any] = {"DATA": data, "--recipe": recipe, "--from": start, "--grow-from": grow_from}
        asked |= {"--out": out, "--shard": shard or None}
        asked |= {f"--{name}": value for name, value in (options | changes).items()}
        if given := [name.replace("_", "-") for name, value in asked.items() if value is not None]:
            raise VitrailError(f"--resume goes on with a run as it began: leave out {given[0]}")
    try:
        if resume is not None:
            run = _go_on(resume, device=device, trackers=track or (), quiet=as_json)
        else:
            from vitrail.training.train import train as begin

            run = begin(
                data,
                recipe=recipe,
                start=start,
                grow_from=grow_from,
                out=out,
                device=device,
                shard=shard,
                changes=changes,
                data_options={name: _plain(value) for name, value in options.items() if value is not None},
                trackers=track or (),
                quiet=as_json,
            )
    except StoppedError as stopped:
        if _is_first():
            print(f"vitrail: {stopped}", file=sys.stderr)
        return 128 + (stopped.signal or 0)  # as a shell says that a signal ended a command
    if not _is_first():
        return 0
    if as_json:
        print_json({"run": str(run.folder), **run.facts})
    else:
        best = run.folder / ("best" if (run.folder / "best").is_dir() else "last")
        print(f"the report is {run.folder / 'report.html'}; the model is {best}")
        print(f"next: vitrail predict {best} PICTURES, or vitrail train YOUR-FOLDER --from {best}")
    return 0


def _go_on(folder: Path, **options: Any) -> Any:
    from vitrail.training.run import Run
    from vitrail.training.train import resume

    if Run.open(folder).is_complete and _is_first():
        print(f"{folder} is complete: nothing is left to train", file=sys.stderr)
    return resume(folder, **options)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _plain(value: Any) -> Any:
    return os.path.abspath(value) if isinstance(value, Path) else value
