"""Where processes that were started together meet.

torchrun keeps one store for all of its attempts. Processes that it starts again would find there the addresses of those
that are gone, and wait for them. So the processes of an attempt first agree on a name, under which all else is kept.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
import uuid
from contextlib import suppress
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from vitrail.errors import VitrailError

PAUSE = 0.02  # seconds between two looks
SIOCGIFADDR = 0x8915  # Linux: the address of an interface


def meet(patience: timedelta) -> tuple[Store, int, int]:
    """A store of their own for all processes of this attempt, this one's rank, and how many there are."""
    _choose_interface()
    store, rank, size = next(rendezvous("env://", timeout=patience))
    name = _call(store, size, patience) if rank == 0 else _answer(store, rank)
    return PrefixStore(name, store), rank, size


def _choose_interface() -> None:
    """Machines talk over the network that leads to the first of them. gloo would take the one that the machine's own
    name stands for, which is often the machine alone."""
    several = os.environ["WORLD_SIZE"] != os.environ.get("LOCAL_WORLD_SIZE", "1")
    if sys.platform != "linux" or not several or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    import fcntl

    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))  # sends nothing
        own = line.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                found = fcntl.ioctl(line, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == own and name != "lo":
                    os.environ["GLOO_SOCKET_IFNAME"] = name


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
