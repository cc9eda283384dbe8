"""For which layers there are kernels of our own. Without torch, for the planner's sake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

SHORT, SHORT_WIDTHS = 64, (32, 64, 128)  # tokens for which one kernel does all of attention, and widths of a head
MID, MID_WIDTHS = 640, (32, 64)  # those for which kernels do attention itself
TRAINED_WIDTHS = (*MID_WIDTHS, 80)  # in training, where queries and keys are multiplied as they come
SINGLE, SINGLE_HEADS = 256, 6  # tokens, and heads of all pictures, for which a kernel has all keys at once
# channels times numbers of a layer of tokens: below, a GPU is done with a block before its kernels could be started,
# and Triton's take longer to start than a compiler's
LEAST_WORK = 12 * 10**9


def is_large(numbers: int, channels: int) -> bool:
    """Whether a layer of so many numbers takes a GPU longer than to start kernels for it."""
    return numbers * channels >= LEAST_WORK


@contextmanager
def small_layers_too() -> Iterator[None]:
    """Kernels for layers of any size: in steps that are recorded, nothing needs to be started."""
    global LEAST_WORK
    usual, LEAST_WORK = LEAST_WORK, 0
    try:
        yield
    finally:
        LEAST_WORK = usual
