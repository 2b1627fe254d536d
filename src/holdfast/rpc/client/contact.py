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
    """Where a worker is: `incarnation` identifies one run of it, `machine` the host it runs on.

    `world_size` is how many workers it waits for; 0 if workers join and leave freely.
    """

    info: WorkerInfo
    incarnation: str
    machine: str
    unix: str
    tcp: str
    world_size: int = 0


class PeerDirectory(Protocol):
    """Finds workers."""

    def find(self, target: Target) -> Contact:
        """Return where a worker is now; UsageError if no worker of that name is known."""
        ...

    def find_incarnation(self, incarnation: str) -> Contact:
        """Return where this incarnation of a worker is; PeerLost if it is gone.

        Another error if that is not known now.
        """
        ...


def machine_id() -> str:
    """Return an identifier of this machine, of its current boot and of its network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() + str(os.stat("/proc/self/ns/net").st_ino)
    except OSError:
        return socket.gethostname()
