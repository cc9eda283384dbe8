"""`vitrail pretrain`: from pictures without labels to an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.commands.data_flags import NO_FLAGS, Data
from vitrail.commands.printing import Json
from vitrail.commands.running import carried_out, given, go_on, recipe_flags, refuse_beside_resume
from vitrail.errors import VitrailError
from vitrail.training.methods import Target
from vitrail.training.recipe import Recipe

if TYPE_CHECKING:
    from vitrail.training.run import Run

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
    """Learn without labels: an encoder to train from, to probe and to look at.

    Example: vitrail pretrain photos/ --method mae

    Example: vitrail pretrain cifar10 --method masked --target patch-4x4 --download

    Example: vitrail train photos/ --from runs/photos-1

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
        asked: dict[str, Any] = {"DATA": data, "--method": method, "--target": target, "--mask-ratio": mask_ratio}
        asked |= {"--recipe": recipe, "--from": start, "--out": out, "--shard": shard or None}
        asked |= {"--lr-find": lr_find or None}
        refuse_beside_resume(asked | {f"--{name}": value for name, value in (options | changes).items()})
    elif data is None:
        raise VitrailError("there is nothing to learn from: give a folder of pictures, or a run to --resume")

    def work() -> Run:
        if resume is not None:
            return go_on(resume, device=device, trackers=track or (), quiet=as_json)
        from vitrail.pretraining.pretrain import pretrain as begin

        assert data is not None
        return begin(
            data,
            method=method,
            target=target,
            mask_ratio=mask_ratio,
            recipe=recipe,
            start=start,
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
    return f"next: vitrail train YOUR-FOLDER --from {best}, or vitrail probe {best} YOUR-FOLDER"
