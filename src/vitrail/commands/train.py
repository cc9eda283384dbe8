"""`vitrail train`: from a folder of pictures to a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.commands.data_flags import NO_FLAGS, Data
from vitrail.commands.printing import Json
from vitrail.commands.running import carried_out, given, go_on, recipe_flags, refuse_beside_resume
from vitrail.training.recipe import METHODS, Recipe

if TYPE_CHECKING:
    from vitrail.training.run import Run

Settings: Any = recipe_flags(Recipe, leave_out=METHODS)


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
    lr_find: Annotated[bool, Parameter(negative="")] = False,
    track: Annotated[list[Literal["tensorboard", "mlflow"]] | None, Parameter(negative_iterable="")] = None,
    opening: Data = NO_FLAGS,
    as_json: Json = False,
    settings: Annotated[Settings, Parameter(name="*")] = Settings(),  # noqa: B008
) -> int:
    """Train a model, from scratch or from another one; with no DATA, on handwritten digits.

    Example: vitrail train photos/

    Example: vitrail train photos/ --from my-model/ --epochs 5 --optimiser.lr 1e-4

    Example: vitrail train photos/ --recipe small --architecture.depth 8 --grow-from runs/photos-1

    Example: vitrail train photos/ --from my-model/ --batch-size auto --lr-find

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
    lr_find
        first a short training whose learning rate rises; the one that suits goes into the run's recipe (lr_find.png)
    track
        also log to these (pip install 'vitrail[track]')
    as_json
        print one JSON object
    """
    changes = given(settings)
    options = opening.given()
    if resume is not None:
        asked: dict[str, Any] = {"DATA": data, "--recipe": recipe, "--from": start, "--grow-from": grow_from}
        asked |= {"--out": out, "--shard": shard or None, "--lr-find": lr_find or None}
        refuse_beside_resume(asked | {f"--{name}": value for name, value in (options | changes).items()})

    def work() -> Run:
        if resume is not None:
            return go_on(resume, device=device, trackers=track or (), quiet=as_json)
        from vitrail.training.train import train as begin

        return begin(
            data,
            recipe=recipe,
            start=start,
            grow_from=grow_from,
            out=out,
            device=device,
            shard=shard,
            lr_find=lr_find,
            changes=changes,
            data_options=options,
            trackers=track or (),
            quiet=as_json,
        )

    return carried_out(work, _next, as_json=as_json)


def _next(run: Run, best: Path) -> str:
    return f"next: vitrail predict {best} PICTURES, or vitrail train YOUR-FOLDER --from {best}"
