"""Pictures that belong together, as frames of one video do: they stay on one side of a split."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from vitrail.data.samples import UNSAID, Integers, Names
from vitrail.errors import DataError
from vitrail.pictures.sources import printable


def groups_by_name(names: Names, pattern: str) -> Integers:
    """The group of each name: what the pattern's first bracket matches in it, or the whole match where it has none.

    A name without a match is in a group of its own. A pattern that matches no name at all is an error.
    """
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise DataError(
            f"--group-by {printable(pattern)}: this is no regular expression ({error}); "
            "write for example 'patient_(\\d+)'"
        ) from error
    matches = map(search, names)
    found = numbered(None if m is None else (m[1] if m.re.groups else m[0]) for m in matches)
    if len(found) and (found == UNSAID).all():
        raise DataError(f"--group-by {printable(pattern)} matches no name; the first one is {printable(names[0])}")
    return found


def numbered(keys: Iterable[str | None]) -> Integers:
    """A number for each key, equal for equal keys; none for None."""
    numbers: dict[str, int] = {}
    return np.array([UNSAID if key is None else numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
