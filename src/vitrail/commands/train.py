"""`vitrail train`: from a folder of pictures to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from vitrail.commands.data_flags import NO_FLAGS, Data
from vitrail.commands.printing import Json
from vitrail.commands.running import NEW_RUN, SETTINGS, RunOptions, recipe_flags
from vitrail.training.recipe import METHODS, Recipe

Settings: Any = recipe_flags(Recipe, leave_out=METHODS)


def train(
    data: str | None = None,
    /,
    *,
    recipe: str | None = None,
    start: Annotated[str | None, Parameter(name="--from")] = None,
    grow_from: str | None = None,
    run: RunOptions = NEW_RUN,
    opening: Data = NO_FLAGS,
    as_json: Json = False,
    settings: Annotated[Settings, SETTINGS] = Settings(),  # noqa: B008
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
        a folder of class folders, a table, a named set, tar shards, a .npz file; see docs/data.md
    recipe
        a named recipe or a TOML file; flags below change it. By default one that suits the data
    start
        the model to fine-tune: a run, a model folder, a checkpoint of any known family, hf:owner/name
    grow_from
        a trained model with fewer blocks than the recipe's and otherwise like it: the new one begins as its equal
    as_json
        print one JSON object
    """

    def begin(**how: Any) -> Any:
        from vitrail.training.train import train

        return train(data, recipe=recipe, start=start, grow_from=grow_from, **how)

    asked = {"DATA": data, "--recipe": recipe, "--from": start, "--grow-from": grow_from}
    return run.carry_out(begin, _next, asked, settings=settings, opening=opening, as_json=as_json)


def _next(best: Path) -> str:
    return f"next: vitrail predict {best} PICTURES, or vitrail train YOUR-FOLDER --from {best}"
