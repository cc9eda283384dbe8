"""What the commands that train have in common: a recipe's settings as flags, going on, stopping, the last words."""

from __future__ import annotations

import dataclasses
import os
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter, Token

from vitrail.commands.data_flags import DataFlags
from vitrail.commands.printing import print_json
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.training.run import Run

_SHORT = ("subset",)  # settings of a table that are flags by themselves too
SETTINGS = Parameter(name="*", group=Group("Recipe", sort_key=0))
_SET_BY_OTHERS = ("auto_batch",)  # by --batch-size auto


@dataclass(frozen=True)
class RunFlags:
    """How a run begins or goes on."""

    out: Annotated[Path | None, Parameter(help="the folder of the run; by default runs/DATA-1, runs/DATA-2, …")] = None
    resume: Annotated[Path | None, Parameter(help="go on with this run where its last checkpoint left it")] = None
    device: Annotated[str | None, Parameter(help="cpu, cuda, cuda:1, mps; by default the fastest there is")] = None
    shard: Annotated[
        bool,
        Parameter(
            negative="",
            help="under torchrun: each process holds a part of the model, and computes activations again (FSDP2)",
        ),
    ] = False
    lr_find: Annotated[
        bool,
        Parameter(
            negative="",
            help="first a short training whose learning rate rises; the one that suits goes into the run's recipe "
            "(lr_find.png)",
        ),
    ] = False
    track: Annotated[
        list[Literal["tensorboard", "mlflow"]] | None,
        Parameter(negative_iterable="", help="also log to these (pip install 'vitrail[track]')"),
    ] = None

    def carry_out(
        self,
        begin: Callable[..., Run],
        last_words: Callable[[Path], str],
        asked: Mapping[str, Any],
        *,
        settings: Any,
        opening: DataFlags,
        as_json: bool,
    ) -> int:
        """Begins or resumes, and says what came of it; gives the exit code. `asked` are the flags that only a beginning
        takes, by their names; `last_words` get the model."""
        changes, options = given(settings), opening.given()
        how: dict[str, Any] = {"device": self.device, "trackers": self.track or (), "quiet": as_json}
        if self.resume is not None:
            beside = {**asked, "--out": self.out, "--shard": self.shard or None, "--lr-find": self.lr_find or None}
            _refuse_beside_resume(beside | {f"--{name}": value for name, value in (options | changes).items()})
            return _carried_out(partial(_go_on, self.resume, **how), last_words, as_json=as_json)
        how |= {"out": self.out, "shard": self.shard, "lr_find": self.lr_find, "changes": changes}
        return _carried_out(partial(begin, data_options=options, **how), last_words, as_json=as_json)


RunOptions = Annotated[RunFlags, Parameter(name="*")]
NEW_RUN = RunFlags()


def recipe_flags(kind: Any, leave_out: Collection[str]) -> Any:
    """The settings of a recipe as flags, each of which may be left out: `--epochs`, `--optimiser.lr`. Those of a table
    stand together in the help, under its words."""
    hints = typing.get_type_hints(kind, include_extras=True)
    made: list[tuple[str, Any, Any]] = []
    for item in dataclasses.fields(kind):
        if item.name in (*leave_out, *_SET_BY_OTHERS):
            continue
        told, words = typing.get_args(hints[item.name])
        hint = _without_none(told)
        if dataclasses.is_dataclass(hint):
            table = recipe_flags(hint, ())
            group = Group(words, sort_key=len(made) + 1)  # below those that are in no table
            made.append((item.name, Annotated[table, Parameter(group=group)], dataclasses.field(default_factory=table)))
            continue
        parameter: dict[str, Any] = {"help": words, "negative_iterable": ""}
        if typing.get_origin(hint) is dict:  # what its values are is for TOML to say
            hint = dict[str, str]
        elif typing.get_origin(hint) is tuple and typing.get_args(hint)[-1] is Ellipsis:  # lists of tables: TOML
            continue
        if hint is int:
            parameter["converter"] = _whole
        if item.name == "batch_size":
            hint, parameter["converter"] = int | Literal["auto"], _whole_or_auto
        if item.name in _SHORT:  # a name with dashes is not put below the table's
            parameter["name"] = (item.name, f"--{item.name}")
        made.append((item.name, Annotated[hint | None, Parameter(**parameter)], dataclasses.field(default=None)))
    flags = dataclasses.make_dataclass(f"{kind.__name__}Flags", made, frozen=True)
    flags.__module__ = __name__  # else cyclopts takes it for a built-in type and does not look inside
    return flags


def _whole(kind: Any, tokens: Sequence[Token]) -> int:
    """cyclopts would round: a batch of 1.5 pictures became one of 2."""
    return _number(tokens[0].value, "a whole number")


def _whole_or_auto(kind: Any, tokens: Sequence[Token]) -> int | str:
    return tokens[0].value if tokens[0].value == "auto" else _number(tokens[0].value, "a whole number or auto")


def _number(text: str, wanted: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {wanted}") from None


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    return options[0] if len(options) == 1 else hint


def given(flags: Any, prefix: str = "") -> dict[str, Any]:
    """What was set, by the keys of the recipe."""
    found: dict[str, Any] = {}
    for item in dataclasses.fields(flags):
        value, key = getattr(flags, item.name), prefix + item.name
        if dataclasses.is_dataclass(value):
            found |= given(value, f"{key}.")
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


def _refuse_beside_resume(asked: Mapping[str, Any]) -> None:
    """A run goes on as it began: whatever else was asked for is an error."""
    for name, value in asked.items():
        if value is not None:
            raise VitrailError(f"--resume goes on with a run as it began: leave out {name.replace('_', '-')}")


def _go_on(folder: Path, **options: Any) -> Run:
    from vitrail.pretraining.pretrain import resume
    from vitrail.training.run import Run

    if Run.open(folder).is_complete and _is_first():
        print(f"{folder} is complete: nothing is left to train", file=sys.stderr)
    return resume(folder, **options)


def _carried_out(work: Callable[[], Run], last_words: Callable[[Path], str], *, as_json: bool) -> int:
    from vitrail.training.stopping import StoppedError

    try:
        run = work()
    except StoppedError as stopped:
        if _is_first():
            print(f"vitrail: {stopped}", file=sys.stderr)
        return 128 + (stopped.signal or 0)  # as a shell says that a signal ended a command
    if not _is_first():
        return 0
    if as_json:
        print_json({"run": str(run.folder), **run.facts})
    else:
        if bad := run.facts.get("unreadable"):
            print(f"unreadable and left out: {bad:,}; {run.folder / 'bad_images.csv'} names them")
        best = run.folder / ("best" if (run.folder / "best").is_dir() else "last")
        print(f"the report is {run.folder / 'report.html'}; the model is {best}")
        print(last_words(best))
    return 0


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"
