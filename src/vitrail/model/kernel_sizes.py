"""For which layers there are kernels of our own. Without torch, for the planner's sake."""

from __future__ import annotations

SHORT, SHORT_WIDTHS = 64, (32, 64, 128)  # tokens for which one kernel does all of attention, and widths of a head
MID, MID_WIDTHS = 640, (32, 64)  # those for which kernels do attention itself
# channels times numbers of a layer of tokens: below, a GPU is done with a block before its kernels could be started,
# and Triton's take longer to start than a compiler's
LEAST_WORK = 12 * 10**9


def is_large(numbers: int, channels: int) -> bool:
    """Whether a layer of so many numbers takes a GPU longer than to start kernels for it."""
    return numbers * channels >= LEAST_WORK
