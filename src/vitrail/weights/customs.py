"""What the families share: how a configuration follows from shapes, and the customs of the field."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from vitrail.errors import UnknownSizeError, WeightsError
from vitrail.model.fields import Pair
from vitrail.weights.files import State

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
WIDE_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}  # heads by width, where they are not 64 channels each


def mlp_ratio(width: int, hidden: int) -> float:
    """The ratio that gives exactly this hidden width."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def custom_heads(width: int) -> int:
    """64 channels a head, but for the widths that are published otherwise."""
    return WIDE_HEADS.get(width, max(1, width // 64))


def renamed(state: State, ours: Mapping[str, str], family: str) -> State:
    """The tensors under our names; raises one line if one has no name here, or two have the same."""
    strangers = [name for name in state if name not in ours]
    if not strangers:
        new = {ours[name]: tensor for name, tensor in state.items()}
        if len(new) == len(state):
            return new
        strangers = [name for name in state if list(ours.values()).count(ours[name]) > 1]
    more = f", and {len(strangers) - 3} more" if len(strangers) > 3 else ""
    raise WeightsError(
        f"the {family} checkpoint has tensors that its ViT does not have ({', '.join(strangers[:3])}{more}):"
        " it is another architecture, or two checkpoints are mixed"
    )


def check_whole(state: State, needed: Iterable[str], family: str) -> None:
    """Raises one line if a tensor is missing without which nothing can be told."""
    missing = [name for name in needed if name not in state]
    if missing:
        raise WeightsError(f"the {family} checkpoint is not whole: it has nothing for {', '.join(missing)}")


def square_size(patches: int, patch: Pair) -> Pair:
    """The size of a square picture of so many patches."""
    side = math.isqrt(max(patches, 0))
    if side * side != patches or not side:
        raise UnknownSizeError(f"{patches} positions make no square picture: give its img_size")
    return side * patch[0], side * patch[1]
