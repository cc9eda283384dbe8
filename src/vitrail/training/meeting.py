"""Where processes that were started together meet.

torchrun keeps one store for all of its attempts. Processes that it starts again would find there the addresses of those
that are gone, and wait for them. So the processes of an attempt first agree on a name, under which all else is kept.
"""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from vitrail.errors import VitrailError

PAUSE = 0.02  # seconds between two looks


def meet(patience: timedelta) -> tuple[Store, int, int]:
    """A store of their own for all processes of this attempt, this one's rank, and how many there are."""
    store, rank, size = next(rendezvous("env://", timeout=patience))
    name = _call(store, size, patience) if rank == 0 else _answer(store, rank)
    return PrefixStore(name, store), rank, size


def _call(store: Store, size: int, patience: timedelta) -> str:
    """Rank 0 tells a new name to whoever is there. What it finds may be from an attempt before; nobody hears what it
    says to those, and so it looks again until all have answered."""
    name, told, deadline = uuid.uuid4().hex, dict.fromkeys(range(1, size), b""), time.monotonic() + patience.seconds
    while store.add(f"{name}/heard", 0) < size - 1:
        for rank, before in told.items():
            if store.check([f"here/{rank}"]) and (who := store.get(f"here/{rank}")) != before:
                store.set(f"name/{who.decode()}", name)
                told[rank] = who
        if time.monotonic() > deadline:
            raise VitrailError("the processes of this training did not all come: look at what the others say")
        time.sleep(PAUSE)
    return name


def _answer(store: Store, rank: int) -> str:
    who = uuid.uuid4().hex
    store.set(f"here/{rank}", who)
    name = store.get(f"name/{who}").decode()  # waits until it is there
    store.add(f"{name}/heard", 1)
    return name
