"""Which output of a model is meant by which class of the data: by name, never by position unless that is asked for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from vitrail.data.notes import counted, quoted
from vitrail.data.samples import Integers
from vitrail.errors import DataError

UNKNOWN = -1

_WORDNET_ID = re.compile(r"n\d{8}")
_ENOUGH_NAMES = 0.9  # that agree with ImageNet's: lists differ in a few


def match_classes(data: Sequence[str], model: Sequence[str], *, in_order: bool = False) -> Integers:
    """For each class of the data the model's output, or `UNKNOWN`.

    A name is matched exactly, else without regard to case, spaces, `_` and `-`. The folders of ImageNet, which are
    WordNet ids, are known to a model of its 1,000 classes. `in_order`: class k of the data is output k.
    """
    if in_order:
        if len(data) != len(model):
            raise DataError(f"{len(data)} classes cannot be matched in order to {len(model)} outputs: match by name")
        return np.arange(len(data))
    if list(data) == list(model):  # names may repeat
        return np.arange(len(data))
    outputs = _by_wordnet_id(data, model)
    if outputs is None:
        exact, loose = _places(model), _places([_plain(name) for name in model])
        outputs = np.array([_place(name, exact, loose) for name in data], np.int64)
    _refuse_two_for_one(outputs, data, model)
    return outputs


def is_imagenet(model: Sequence[str]) -> bool:
    """Whether these are the names of ImageNet's 1,000 classes in its order, in any of their usual spellings."""
    if len(model) != 1000:
        return False
    if list(model) == imagenet_ids():
        return True
    from torchvision.models import ViT_B_16_Weights

    usual = ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"]
    same = sum(_plain(ours.split(",")[0]) == _plain(theirs) for ours, theirs in zip(model, usual, strict=True))
    return same >= _ENOUGH_NAMES * len(usual)


@lru_cache(maxsize=1)
def imagenet_ids() -> list[str]:
    """The WordNet ids of ImageNet's 1,000 classes, in the order of a classifier's outputs, which is theirs."""
    return (Path(__file__).parent / "imagenet_ids.txt").read_text(encoding="ascii").split()


def unknown_classes(unknown: Sequence[str], data: Sequence[str], model: Sequence[str]) -> str:
    """What to say of classes that the model does not know."""
    what = f"the model does not know {counted(len(unknown), 'class', 'classes')} of the data: {quoted(unknown)}"
    if list(model) == [str(k) for k in range(len(model))]:
        if len(data) == len(model):
            return f"{what} (it has no names for its outputs: if they are in the data's order, say --in-order)"
        return f"{what} (it has no names for its {len(model)} outputs)"
    return f"{what} (it knows {quoted(model)}; --ignore-unknown leaves their pictures out)"


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _places(names: Sequence[str]) -> dict[str, list[int]]:
    places = defaultdict(list)
    for k, name in enumerate(names):
        places[name].append(k)
    return dict(places)


def _place(name: str, exact: dict[str, list[int]], loose: dict[str, list[int]]) -> int:
    found = exact.get(name) or loose.get(_plain(name)) or [UNKNOWN]
    if len(found) > 1:
        several = " and ".join(map(str, found[:3]))
        raise DataError(f"the class {quoted([name])} could be any of the model's outputs {several}: rename it")
    return found[0]


def _by_wordnet_id(data: Sequence[str], model: Sequence[str]) -> Integers | None:
    if not all(_WORDNET_ID.fullmatch(name) for name in data) or not is_imagenet(model):
        return None
    outputs = {name: k for k, name in enumerate(imagenet_ids())}
    return np.array([outputs.get(name, UNKNOWN) for name in data], np.int64)


def _refuse_two_for_one(outputs: Integers, data: Sequence[str], model: Sequence[str]) -> None:
    first: dict[int, str] = {}
    for name, output in zip(data, outputs.tolist(), strict=True):
        if output != UNKNOWN and output in first:
            both, one = quoted([first[output], name]), quoted([model[output]])
            raise DataError(f"{both} mean the model's class {one} alike: rename or join them")
        first[output] = name
