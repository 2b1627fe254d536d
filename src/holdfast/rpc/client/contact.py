"""Where a worker can be reached, and what finds it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = ["Contact", "PeerDirectory", "Target", "machine_id"]

Target: TypeAlias = str | int | WorkerInfo


@dataclass(frozen=True, slots=True)
class Contact:
    """Where a worker is: `incarnation` is this life of it, `machine` the host that it runs on.

    `world_size` is how many workers it waits for; 0 where workers come and go.
    """

    info: WorkerInfo
    incarnation: str
    machine: str
    unix: str
    tcp: str
    world_size: int = 0


class PeerDirectory(Protocol):
    """Who is where."""

    def find(self, target: Target) -> Contact:
        """Return where a worker is now; UsageError if nobody of that name is known."""
        ...

    def find_incarnation(self, incarnation: str) -> Contact:
        """Return where this life of a worker is; PeerLost if it is over.

        Another error if that cannot be told now.
        """
        ...


def machine_id() -> str:
    """Return what tells this machine from others, and this boot of it from earlier ones."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() + str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        return socket.gethostname()
