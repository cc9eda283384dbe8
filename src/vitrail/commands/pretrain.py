"""`vitrail pretrain`: from pictures without labels to an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.commands.data_flags import NO_FLAGS, Data
from vitrail.commands.printing import Json
from vitrail.commands.running import NEW_RUN, SETTINGS, RunOptions, recipe_flags
from vitrail.errors import VitrailError
from vitrail.training.methods import Target
from vitrail.training.recipe import Recipe

Settings: Any = recipe_flags(Recipe, leave_out=("loss", "distillation"))


def pretrain(
    data: str | None = None,
    /,
    *,
    method: Literal["masked", "mae", "dino"] | None = None,
    target: Target | None = None,
    mask_ratio: float | None = None,
    recipe: str | None = None,
    start: Annotated[str | None, Parameter(name="--from")] = None,
    run: RunOptions = NEW_RUN,
    opening: Data = NO_FLAGS,
    as_json: Json = False,
    settings: Annotated[Settings, SETTINGS] = Settings(),  # noqa: B008
) -> int:
    """Learn without labels: an encoder to train from, to probe and to look at.

    Example: vitrail pretrain photos/ --method mae

    Example: vitrail pretrain cifar10 --method masked --target patch-4x4 --download

    Example: vitrail train photos/ --from runs/photos-1

    Labels, where there are some, judge by neighbours what was learned, and have no part in learning.

    Parameters
    ----------
    data
        a folder of pictures, with class folders or without, a table, a named set, tar shards; see docs/data.md
    method
        masked: the paper's masked patch prediction; mae: a masked autoencoder; dino: self-distillation. By default mae
    target
        of masked, what is predicted: mean-colour, patch-4x4 (16 colours) or pixels
    mask_ratio
        of masked and mae: the part of the patches that is hidden
    recipe
        a named recipe or a TOML file; flags below change it. By default one that suits the method and the data
    start
        the model to go on from: a run, a model folder, a checkpoint of any known family, hf:owner/name
    as_json
        print one JSON object
    """
    if data is None and run.resume is None:
        raise VitrailError("there is nothing to learn from: give a folder of pictures, or a run to --resume")

    def begin(**how: Any) -> Any:
        from vitrail.pretraining.pretrain import pretrain

        assert data is not None
        own = {"method": method, "target": target, "mask_ratio": mask_ratio}
        return pretrain(data, recipe=recipe, start=start, **own, **how)  # type: ignore[arg-type]

    asked = {"DATA": data, "--method": method, "--target": target, "--mask-ratio": mask_ratio}
    asked |= {"--recipe": recipe, "--from": start}
    return run.carry_out(begin, _next, asked, settings=settings, opening=opening, as_json=as_json)


def _next(best: Path) -> str:
    return f"next: vitrail train YOUR-FOLDER --from {best}, or vitrail probe {best} YOUR-FOLDER"
