"""Which recipe is taken where none was asked for."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from vitrail.data.source import Source
from vitrail.errors import PictureError
from vitrail.pictures import as_picture
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_files import read_recipe

SMALL = 96  # pixels: pictures up to this shorter side are small


def choose_recipe(
    asked: str | os.PathLike[str] | Recipe | None, source: Source, start: Any, *, digits: bool = False
) -> tuple[Recipe, str]:
    """The recipe, and what it was chosen by."""
    if isinstance(asked, Recipe):
        return asked, "given in Python"
    if asked is not None:
        return read_recipe(asked), os.fspath(asked)
    name = "digits" if digits else "finetune" if start is not None else "small" if is_small(source) else "scratch"
    return read_recipe(name), name


def is_small(source: Source) -> bool:
    """Whether the pictures, by a sample of them, are mostly small."""
    sides = []
    for row in np.linspace(0, len(source) - 1, min(9, len(source))).astype(int):
        try:
            sides.append(min(as_picture(source.reader.read_many([int(row)])[0]).size))
        except PictureError:
            continue
    return bool(sides) and float(np.median(sides)) <= SMALL
