"""Of the data of a run, what it did not learn from."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from vitrail.data.source import Source, Subset
from vitrail.data.splits import make_splits
from vitrail.training.launching import mark_of
from vitrail.training.run import FACTS, Run


def held_out(model: str | os.PathLike[str], source: Source) -> Subset | None:
    """The part of the data that the model's run set aside for validation, if this is the run's data and has no splits
    of its own; it is empty where the run set nothing aside."""
    place = Path(model)
    run = next((Run(folder) for folder in (place, place.parent) if (folder / FACTS).is_file()), None)
    if run is None or len(source.said("val")) or len(source.said("test")):
        return None
    if run.facts.get("samples") != mark_of(source):
        return None
    data = run.recipe.data
    return replace(make_splits(source, fraction=data.val_fraction, seed=data.split_seed).val, name="val of the run")
