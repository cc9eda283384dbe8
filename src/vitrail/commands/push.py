"""`vitrail push`: a model on the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

import vitrail
from vitrail.commands.printing import Json, print_json

Flag = Annotated[bool, Parameter(negative="")]


def push(
    model: str,
    repo: str,
    /,
    *,
    private: Flag = False,
    license: str | None = None,
    message: str | None = None,
    as_json: Json = False,
) -> int:
    """Upload a model to the Hugging Face Hub, with a model card that is written from its run.

    Example: vitrail push runs/flowers-1 hf:me/flowers --license apache-2.0

    Parameters
    ----------
    model
        a run (its best model, with data, recipe and results in the card), a model folder, or a checkpoint file
    repo
        hf:owner/name; it is made if it is not there
    private
        only you may see it, if it is made
    license
        as the Hub writes it: apache-2.0, mit, cc-by-4.0, …
    message
        of the commit
    as_json
        print one JSON object
    """
    address = vitrail.push(model, repo, private=private, license=license, message=message)
    if as_json:
        print_json({"model": model, "repo": repo, "address": address})
    else:
        print(f"{model} is at {address}; load it with vitrail.load({repo!r})")
    return 0
