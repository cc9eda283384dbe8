"""Which device computes."""

from __future__ import annotations

import torch

from vitrail.errors import VitrailError


def choose_device(name: str | None, local_rank: int = 0) -> torch.device:
    """The device that was asked for, or the fastest there is."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name, local_rank) if name == "cuda" else torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:120]
        raise VitrailError(f"the device {name!r} cannot be used here: {reason}") from error
    return device
